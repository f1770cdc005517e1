"""TierPlacements and pins: whom the API server lets write them, and from an artifact to copies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kybernate import keys
from kybernate.cli import main
from kybernate.errors import (
    ConfigError,
    ConflictError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from tests.integration.controller.conftest import (
    LIMIT_S,
    NAMESPACE,
    NODE,
    REQUESTS,
    complete,
    request,
)
from tests.integration.hooks import until
from tests.kit.servers.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller
    from tests.kit.servers.agentdoor import Door
    from tests.kit.servers.registryserver import Server

    Json = dict[str, Any]

pytestmark = pytest.mark.integration

PLACEMENTS = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/tierplacements"
ARTIFACTS = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/artifacts"
POOL = {"matchLabels": {"pool": "h100"}}


def placement(**spec: Any) -> Json:
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.TIER_PLACEMENT_KIND}
    wanted = {"selector": {"matchLabels": {keys.OF_POD_LABEL: "a"}}, "copies": {}, **spec}
    return {**kind, "metadata": {"name": "p"}, "spec": wanted}


@pytest.fixture
def api(control_plane: Cluster, namespace: str, door: Door) -> Iterator[Api]:
    """The administrator; n1 is of the pool, and nothing of a test is left."""
    found = control_plane.api()
    node = {"metadata": {"name": NODE, "labels": {"pool": "h100"}}}
    with contextlib.suppress(ConflictError):
        found.post("/api/v1/nodes", node)
    yield found
    for path in (PLACEMENTS, ARTIFACTS):
        for one in found.get(path)["items"]:
            with contextlib.suppress(NotFoundError):
                found.delete(f"{path}/{one['metadata']['name']}")


def status(api: Api) -> Json:
    found: Json = api.get(f"{PLACEMENTS}/p").get("status") or {}
    return found


def state(api: Api) -> tuple[str, str]:
    found = status(api).get("conditions") or [{"status": "", "reason": ""}]
    return found[0]["status"], found[0]["reason"]


def is_in(api: Api, *wanted: str) -> None:
    until(lambda: state(api) == wanted, f"not {wanted}: {status(api)}", LIMIT_S)


def placed(door: Door) -> list[tuple[str, str]]:
    return [(artifact, tier) for _, kind, artifact, tier in door.begun if kind == "place"]


def test_an_artifact_is_pinned_and_copied_to_a_node_of_the_labels(
    api: Api, server: Server, projecting: Controller, door: Door
) -> None:
    artifact = Recorder(server).record(1)
    api.post(PLACEMENTS, placement(copies={"nvme": {"nodes": POOL}}))
    is_in(api, "True", "Placed")
    assert placed(door) == [(artifact, "nvme")]
    found = status(api)
    assert found["artifacts"] == [artifact]
    assert (found["matched"], found["pinned"], found["placed"]) == (1, 1, 1)
    assert (found["copiesWanted"], found["copiesThere"]) == (2, 2)
    assert found["observedGeneration"] == 1


def test_nothing_is_copied_twice_though_the_controller_is_killed(
    api: Api, server: Server, projecting: Controller, door: Door
) -> None:
    recorder, door.takes = Recorder(server), 1.0
    made = [recorder.record(number) for number in (1, 2)]
    api.post(PLACEMENTS, placement(copies={"nvme": {"nodes": POOL}}))
    for copies in (1, 2):
        until(lambda n=copies: len(placed(door)) >= n, "not begun", LIMIT_S)  # type: ignore[misc]
        projecting.kill()
        projecting.start()
    is_in(api, "True", "Placed")
    assert sorted(placed(door)) == [(one, "nvme") for one in sorted(made)]


def test_what_is_deleted_is_cancelled_on_its_agent(
    api: Api, server: Server, projecting: Controller, door: Door
) -> None:
    door.takes = 600.0
    Recorder(server).record(1)
    api.post(PLACEMENTS, placement(copies={"nvme": {"nodes": POOL}}))
    until(lambda: bool(placed(door)), "not begun", LIMIT_S)
    is_in(api, "False", "Copying")
    api.delete(f"{PLACEMENTS}/p")
    until(lambda: bool(door.cancelled), "not cancelled", LIMIT_S)


def test_its_time_ends_by_itself(
    api: Api, server: Server, projecting: Controller, door: Door
) -> None:
    Recorder(server).record(1)
    api.post(PLACEMENTS, placement(pinnedUntil="2020-01-01T00:00:00Z"))
    is_in(api, "False", "PinEnded")
    assert status(api).get("artifacts", []) == []
    api.patch(f"{PLACEMENTS}/p", {"spec": {"pinnedUntil": "2200-01-01T00:00:00Z"}})
    is_in(api, "True", "Placed")
    assert len(status(api)["artifacts"]) == 1


def test_labels_that_none_has_are_told(api: Api, projecting: Controller) -> None:
    api.post(PLACEMENTS, placement())
    is_in(api, "False", "NoArtifacts")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"copies": {"object": 2}}, "copies.object"),
        ({"newest": 0}, "newest"),
        ({"newest": 101}, "newest"),
        ({"pinnedUntil": "next year"}, "pinnedUntil"),
        ({"copies": {"nvme": {"nodes": POOL, "number": 0}}}, "number"),
        ({"copies": {"nvme": {}}}, "nodes"),
        (
            {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "In and NotIn take values",
        ),
    ],
)
def test_what_can_not_be_is_refused(api: Api, spec: Json, words: str) -> None:
    with pytest.raises((RefusedError, ConfigError), match=words):
        api.post(PLACEMENTS, placement(**spec))


def test_defaults_are_written(api: Api) -> None:
    made = api.post(PLACEMENTS, placement())
    assert made["spec"]["newest"] == 10
    assert made["spec"]["copies"] == {"object": 1}


def test_who_may_not_restore_says_not_what_is_kept(
    api: Api, users: Callable[[str, list[Json]], Api]
) -> None:
    def may(*verbs: str) -> list[Json]:
        objects = {"apiGroups": [keys.GROUP], "resources": ["tierplacements"], "verbs": ["*"]}
        artifacts = {"apiGroups": [keys.GROUP], "resources": ["artifacts"], "verbs": [*verbs]}
        return [objects, artifacts] if verbs else [objects]

    reader, restorer = users("tpl-reads", may("get")), users("tpl-restores", may("restore"))

    def tried() -> bool:
        with contextlib.suppress(RefusedError):
            restorer.post(PLACEMENTS, placement())
            return True
        return False

    until(tried, "no right yet")
    with pytest.raises(RefusedError, match="takes the verb restore"):
        reader.patch(f"{PLACEMENTS}/p", {"spec": {"newest": 5}})
    reader.patch(f"{PLACEMENTS}/p", {"metadata": {"labels": {"x": "y"}}})
    restorer.patch(f"{PLACEMENTS}/p", {"spec": {"newest": 5}})


def test_nobody_else_says_what_is_pinned(api: Api, users: Callable[[str, list[Json]], Api]) -> None:
    """By the status agents drop nothing, and nodes may read."""
    owner = users("tpl-all", [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
    api.post(PLACEMENTS, placement())
    body = {"status": {"observedGeneration": 1, "artifacts": [f"{NAMESPACE}/x@1"]}}
    for user in (owner, api):
        with pytest.raises(RefusedError, match="nobody but Kybernate's controller"):
            user.patch(f"{PLACEMENTS}/p/status", body)


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/tierplacements.{keys.GROUP}"


def serves(api: Api) -> bool:
    with contextlib.suppress(NotFoundError, RetryableError):
        return bool(api.get(keys.TIER_PLACEMENTS_PATH))
    return False


@pytest.fixture
def bring(api: Api) -> Iterator[Callable[[], None]]:
    """TierPlacements are not served until it is called, or the test is over."""
    found = api.get(CRD)
    made: Json = {name: found[name] for name in ("apiVersion", "kind", "spec")}
    made["metadata"] = {"name": found["metadata"]["name"]}
    api.delete(CRD)
    until(lambda: not serves(api), "TierPlacements are still served", LIMIT_S)

    def again() -> None:
        api.post(CRDS, made)
        until(lambda: serves(api), "it is not served", LIMIT_S)

    yield again
    if not serves(api):
        again()


def test_a_controller_newer_than_the_crds_does_what_there_are_kinds_for(
    api: Api, bring: Callable[[], None], controller: Controller
) -> None:
    """And tells how many lack."""
    api.post(REQUESTS, request("once", of="nobody"))
    until(lambda: complete(api.get(f"{REQUESTS}/once"))[1] == "PodNotFound", "not done", LIMIT_S)
    assert "kyb_controller_kinds_missing 1.0" in controller.metrics()
    assert "tierplacements is not served: apply config/crd" in controller.log.read_text()
    bring()
    until(lambda: "kyb_controller_kinds_missing 0.0" in controller.metrics(), "not heard", LIMIT_S)
    api.post(PLACEMENTS, placement())
    is_in(api, "False", "NoRegistry")
    assert controller.ready()


def test_a_pod_is_pinned_and_unpinned_from_a_laptop(
    control_plane: Cluster,
    api: Api,
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
