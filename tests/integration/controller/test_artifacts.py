"""Artifacts follow the registry: a real one over real mutual TLS, a real API server, and the
controller as a process that is killed in between."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError, RefusedError
from tests.integration.controller.conftest import LIMIT_S, NAMESPACE, Controller
from tests.integration.hooks import until
from tests.kit.servers.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.kit.servers.registryserver import Server

pytestmark = pytest.mark.integration

ARTIFACTS = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/artifacts"


@pytest.fixture
def api(control_plane: Cluster) -> Iterator[Api]:
    found = control_plane.api()
    yield found
    for item in found.get(ARTIFACTS)["items"]:
        with contextlib.suppress(NotFoundError):
            found.delete(f"{ARTIFACTS}/{item['metadata']['name']}")


def shown(api: Api) -> list[str]:
    return sorted(item["status"]["artifact"] for item in api.get(ARTIFACTS)["items"])


def shows(api: Api, wanted: list[str]) -> None:
    until(lambda: shown(api) == sorted(wanted), f"not {wanted}: {shown(api)}", LIMIT_S)


def test_they_come_and_go_with_the_registry_and_over_kills(
    api: Api, server: Server, projecting: Controller
) -> None:
    recorder = Recorder(server)
    first = recorder.record(1)
    shows(api, [first])
    (item,) = api.get(ARTIFACTS)["items"]
    assert item["metadata"]["name"] == "a.20260131t120000z-00000001"
    assert item["metadata"]["labels"] == {
        keys.OF_POD_LABEL: "a",
        keys.TIER_LABEL: "object",
        keys.MOMENT_LABEL: first.split("@")[1],
    }
    # Some are written before it dies, some after.
    projecting.kill()
    more = [recorder.record(number) for number in (2, 3)]
    projecting.start(wait=False)
    more += [recorder.record(number) for number in (4, 5)]
    projecting.kill()
    recorder.drop(first)
    projecting.start()
    shows(api, more)
    api.delete(f"{ARTIFACTS}/a.20260131t120000z-00000005")
    shows(api, more)
    server.stop()
    projecting.kill()
    projecting.start()
    assert shown(api) == sorted(more), "a registry that is away takes nothing away"


def test_the_newest_of_each_namespace_are_shown(
    api: Api, server: Server, projecting: Controller
) -> None:
    recorder = Recorder(server)
    made = [recorder.record(number) for number in range(9)]
    recorder.record(50, namespace="nowhere")
    shows(api, made[-5:])
    made.append(recorder.record(10))
    shows(api, made[-5:])


def test_nobody_else_writes_one(
    api: Api, users: Callable[[str, list[dict[str, Any]]], Api], server: Server, projecting: object
) -> None:
    owner = users("of-all", [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
    Recorder(server).record(1)
    until(lambda: len(shown(api)) == 1, "not shown", LIMIT_S)
    (item,) = api.get(ARTIFACTS)["items"]
    path = f"{ARTIFACTS}/{item['metadata']['name']}"
    body = {key: item[key] for key in ("apiVersion", "kind", "status")}
    until(lambda: _sees(owner), "no right yet")
    for user in (owner, api):
        with pytest.raises(RefusedError, match="nobody but Kybernate's controller writes"):
            user.post(ARTIFACTS, {**body, "metadata": {"name": "mine"}})
        with pytest.raises(RefusedError, match="nobody but Kybernate's controller writes"):
            user.patch(path, {"metadata": {"labels": {keys.OF_POD_LABEL: "b"}}})


def _sees(user: Api) -> bool:
    with contextlib.suppress(RefusedError):
        user.get(ARTIFACTS)
        return True
    return False
