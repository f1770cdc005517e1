"""`kubectl kyb pin` and `unpin` with a real API server, registry and controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from kybernate.cli import main
from tests.integration.controller.conftest import LIMIT_S, NAMESPACE
from tests.integration.controller.test_placements import ARTIFACTS, PLACEMENTS, api  # noqa: F401
from tests.integration.hooks import until
from tests.kit.servers.recorder import Recorder

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller
    from tests.kit.servers.registryserver import Server

pytestmark = pytest.mark.integration


def test_a_pod_is_pinned_and_unpinned_from_a_laptop(
    control_plane: Cluster,
    api: Api,  # noqa: F811
    server: Server,
    projecting: Controller,
) -> None:
    artifact = Recorder(server).record(1)
    until(lambda: bool(api.get(ARTIFACTS)["items"]), "no Artifact", LIMIT_S)
    at_home = ["--kubeconfig", str(control_plane.kubeconfig), "-n", NAMESPACE]

    def kyb(*words: str) -> str:
        done = CliRunner().invoke(main, [*words, *at_home])
        assert done.exit_code == 0, done.output
        return done.stdout

    def kept(name: str) -> list[str]:
        found = api.get(f"{PLACEMENTS}/{name}").get("status") or {}
        return list(found.get("artifacts") or ())

    assert "would be kept" in kyb("pin", "a", "--dry-run")
    assert api.get(PLACEMENTS)["items"] == []
    assert artifact in kyb("pin", "a", "--for", "720h")
    until(lambda: artifact in kept("pin-a"), "not pinned", LIMIT_S)
    kyb("pin", "a", "--newest", "2")
    spec = api.get(f"{PLACEMENTS}/pin-a")["spec"]
    assert (spec["newest"], "pinnedUntil" in spec) == (2, False)
    kyb("unpin", "a", "--dry-run")
    kyb("unpin", "a")
    assert api.get(PLACEMENTS)["items"] == []
