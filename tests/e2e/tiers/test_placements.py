"""An artifact is kept though its pod has gone, and lies on another node before it is restored."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError
from kybernate.types import Tier
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.conftest import emptied
from tests.e2e.tiers.test_restores import Site, ask, pod, standing
from tests.kit.clients.kubectl import Kubectl
from tests.kit.pods import PODS, Pods

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.clients.models import Answer

    Json = dict[str, Any]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PLACEMENTS = f"/apis/{keys.API_VERSION}/namespaces/default/tierplacements"
LEFT_S = 20
"""Seconds for which an agent keeps what a pod has left."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    left = {"KYB_AGENT_KEEP_LEFT_S": str(LEFT_S)}
    with standing(tmp_path_factory, GpuSpec(count=2), **left) as found:
        yield found


@pytest.fixture
def seats(site: Site) -> Iterator[Pods]:
    with emptied(site.cluster) as found:
        yield found


def placement() -> Json:
    nodes = {"matchLabels": {"kubernetes.io/hostname": "n2"}}
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.TIER_PLACEMENT_KIND,
        "metadata": {"name": "kept"},
        "spec": {
            "selector": {"matchLabels": {keys.OF_POD_LABEL: "a"}},
            "copies": {"nvme": {"nodes": nodes}},
        },
    }


def told(site: Site) -> Json:
    found: Json = site.cluster.api().get(f"{PLACEMENTS}/kept").get("status") or {}
    return found


def is_ready(site: Site) -> bool:
    conditions = told(site).get("conditions") or [{}]
    return bool(conditions[0].get("status") == "True" and told(site).get("copiesThere") == 2)


def places(site: Site, artifact: str) -> set[tuple[str, str]]:
    """Where the registry knows verified copies; empty for an artifact that it has forgotten."""
    try:
        copies = site.registry.get(artifact).copies
    except NotFoundError:
        return set()
    return {(one.place.value, one.node) for one in copies if one.state == "verified"}


def copied(site: Site, seats: Pods, artifact: str) -> Answer:
    """An answer of a copy on n2, which begins while the store's packs are away."""
    packs, away = site.objects / "packs", site.objects / "away"
    packs.rename(away)
    try:
        wanted = pod("b", "n2", require_group="G1", restore_from=artifact, restore_as="template")
        site.cluster.api().post(PODS, wanted)
        answer = ask(seats, "b")
    finally:
        away.rename(packs)
    refused = site.sentence("b", "RestoreRefused") + site.sentence("b", "SeatFailed")
    assert (answer.counter, answer.intact) == (3, True), refused
    return answer


def test_an_artifact_is_placed_on_another_node_and_stays_though_its_pod_goes(
    site: Site, seats: Pods, tmp_path: Path
) -> None:
    """As docs/how-to/workloads/stage-a-model.md has it."""
    api = site.cluster.api()
    created = api.post(PODS, pod("a", "n1", require_group="G0"))
    uid = created["metadata"]["uid"]
    assert ask(seats, "a").counter == 1
    last = ask(seats, "a")
    site.park("n1", "a", "nvme")
    api.post(PLACEMENTS, placement())
    try:
        wait_until(lambda: is_ready(site), 90, f"not placed: {told(site)}")
        (artifact,) = told(site)["artifacts"]
        both = {(Tier.OBJECT.value, ""), (Tier.NVME.value, "n2")}
        wait_until(lambda: both <= places(site, artifact), 20, "the registry isn't told")
        kubectl = Kubectl(site.cluster.kubectl_path, tmp_path, site.cluster.kubeconfig)

        def line() -> str:
            """The Artifact's, which the controller compares with the registry now and then."""
            rows = kubectl("kyb", "artifacts", "ls", "-o", "wide").stdout.splitlines()
            return next(one for one in rows if artifact in one)

        wait_until(lambda: "n2" in line(), 30, "the Artifact isn't told")
        assert "kept" in line()

        seats.delete(["a"])
        seats.gone(["a"], 30)
        site.stopped(uid)
        # By then nobody has come, and without a pin it would be gone.
        over = time.monotonic() + LEFT_S + 15
        wait_until(lambda: time.monotonic() > over, LEFT_S + 60, "time stands still")
        assert both <= places(site, artifact)

        answer = copied(site, seats, artifact)
        assert answer.body["kyb"]["boot"] == last.body["kyb"]["boot"]
        assert both <= places(site, artifact)
    finally:
        api.delete(f"{PLACEMENTS}/kept")
    wait_until(lambda: not places(site, artifact), 150, "nothing pins it, and it stays")
