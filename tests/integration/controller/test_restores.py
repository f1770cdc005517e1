"""RestoreRequests from their creation to their end: a real API server with our webhook, a real
registry, and the controller as a process that is killed in between."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.core.artifacts.listed import object_name
from kybernate.errors import ConflictError, NotFoundError, RefusedError
from tests.integration.controller.conftest import LIMIT_S, NAMESPACE, NODE, PODS, complete
from tests.integration.hooks import until
from tests.kit.servers.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller
    from tests.kit.servers.registryserver import Server

    Json = dict[str, Any]

pytestmark = pytest.mark.integration

DEV = "dev"
RESTORES = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/restorerequests"
GPU_NODE = f"{keys.GPU_NODES_PATH}/{NODE}"
ASKS = {"apiGroups": ["kyb.ai"], "resources": ["restorerequests"], "verbs": ["create", "patch"]}
MAKES = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
RESTORE = {"apiGroups": ["kyb.ai"], "resources": ["artifacts"], "verbs": ["restore"]}


def request(name: str = "once", kind: str = "clone", pod: str = "a", **spec: Any) -> Json:
    made = {"apiVersion": keys.API_VERSION, "kind": keys.RESTORE_REQUEST_KIND}
    return {
        **made,
        "metadata": {"name": name},
        "spec": {"source": {"pod": pod}, "as": kind, **spec},
    }


def path(namespace: str, kind: str = "restorerequests") -> str:
    return f"/apis/{keys.API_VERSION}/namespaces/{namespace}/{kind}"


@pytest.fixture
def api(control_plane: Cluster, namespace: str, webhook: object) -> Iterator[Api]:
    """The administrator; no request and no pod that one has made is left afterwards."""
    found = control_plane.api()
    for where, name in (("", DEV), (f"/{DEV}/serviceaccounts", "default")):
        with contextlib.suppress(ConflictError):
            found.post(f"/api/v1/namespaces{where}", {"metadata": {"name": name}})
    yield found
    for where in (NAMESPACE, DEV):
        _clear(found, path(where))
        _clear(found, path(where, "artifactgrants"))
        _clear(found, f"/api/v1/namespaces/{where}/pods")


def _clear(api: Api, where: str) -> None:
    for item in api.get(where)["items"]:
        with contextlib.suppress(NotFoundError):
            api.delete(f"{where}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})


@pytest.fixture
def source(
    server: Server, seated: Callable[..., str], projecting: Controller, api: Api
) -> tuple[str, str, Recorder]:
    """A pod with a seat, and an artifact of it: UID, ID."""
    uid, recorder = seated("a"), Recorder(server)
    return uid, recorder.record(1, uid=uid), recorder


def at(api: Api, name: str, reason: str, where: str = NAMESPACE) -> Json:
    item: Json = {}

    def there() -> bool:
        nonlocal item
        item = api.get(f"{path(where)}/{name}")
        return complete(item)[1] == reason

    until(there, f"{name} is not {reason}: {item}", LIMIT_S)
    return item


def bind(control_plane: Cluster, name: str, where: str = NAMESPACE) -> None:
    notes = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
    target = {"kind": "Node", "name": NODE}
    bound = {"metadata": {"name": name, "annotations": notes}, "target": target}
    pods = f"/api/v1/namespaces/{where}/pods"
    control_plane.api("extender").post(f"{pods}/{name}/binding", bound)


def awake(control_plane: Cluster, pod: Json, state: str = "active") -> None:
    """Its node tells what its seat does."""
    meta = pod["metadata"]
    seat = {"uid": meta["uid"], "name": "G0-seat-1", "group": "G0", "state": state}
    seat |= {"namespace": meta["namespace"], "pod": meta["name"], "reason": "waits for a turn"}
    control_plane.api("agent").patch(f"{GPU_NODE}/status", {"status": {"seats": [seat]}})


def test_a_clone_from_the_request_to_its_seat(
    api: Api, control_plane: Cluster, source: tuple[str, str, Recorder]
) -> None:
    uid, artifact, _ = source
    made = api.post(RESTORES, request(stopped=True, podName="looked-at"))
    assert made["spec"]["requestedBy"] == "admin"
    item = at(api, "once", "PodNotBound")
    assert item["status"]["artifact"] == artifact
    assert item["status"]["sourceUID"] == uid
    pod = api.get(f"{PODS}/looked-at")
    notes = pod["metadata"]["annotations"]
    said = {keys.RESTORE_FROM: artifact, keys.RESTORE_AS: "clone", keys.RESTORE_ELSE: "fail"}
    assert notes.items() >= {**said, keys.CLONE_STOPPED: "true", keys.VRAM: "1Gi"}.items()
    assert pod["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    original = api.get(f"{PODS}/a")
    (container,), (like,) = pod["spec"]["containers"], original["spec"]["containers"]
    assert {name: container[name] for name in ("image", "command", "resources")} == {
        name: like[name] for name in ("image", "command", "resources")
    }
    bind(control_plane, "looked-at")
    awake(control_plane, pod, "waiting")
    assert "waits for a turn" in at(api, "once", "Restoring")["status"]["conditions"][0]["message"]
    awake(control_plane, pod)
    assert complete(at(api, "once", "Restored")) == ("True", "Restored")


def test_by_the_artifacts_name_and_a_template_of_the_request(
    api: Api, source: tuple[str, str, Recorder]
) -> None:
    _, artifact, recorder = source
    newer = recorder.record(2, uid=source[0])
    name = object_name(artifact)
    container = {
        "name": "c",
        "image": "mine",
        "resources": {"limits": {keys.seat_resource(1): "1", "memory": "1Gi"}},
        "args": ["serve"],
    }
    template = {
        "metadata": {"labels": {"app": "copy"}, "annotations": {keys.VRAM: "1Gi"}},
        "spec": {"containers": [container]},
    }
    until(lambda: _is_there(api, f"{path(NAMESPACE, 'artifacts')}/{name}"), "not shown", LIMIT_S)
    api.post(RESTORES, request(kind="template", source={"artifact": name}, template=template))
    assert at(api, "once", "PodNotBound")["status"]["artifact"] == artifact != newer
    pod = api.get(f"{PODS}/once")
    assert pod["spec"]["containers"][0]["image"] == "mine"
    assert pod["metadata"]["labels"]["app"] == "copy"
    assert "ownerReferences" not in pod["metadata"]
    with pytest.raises(RefusedError, match="done once, as it was written"):
        api.patch(f"{RESTORES}/once", {"spec": {"template": {"spec": {"hostNetwork": True}}}})


def _is_there(api: Api, where: str) -> bool:
    with contextlib.suppress(NotFoundError):
        api.get(where)
        return True
    return False


def test_what_can_not_be_done_ends_with_the_reason(
    api: Api, source: tuple[str, str, Recorder]
) -> None:
    cases: list[tuple[Json, str, str]] = [
        ({"source": {"pod": "nobody"}}, "NoArtifact", "no verified artifact of pod nobody"),
        ({"source": {"pod": "gone"}}, "TemplateNeeded", "say in spec.template"),
        ({"podName": "a"}, "NameTaken", "has another pod a"),
        ({"template": {"spec": {"containers": []}}}, "Refused", "needs a container with a limit"),
    ]
    source[2].record(7, "gone")
    for spec, reason, _ in cases:
        api.post(RESTORES, request(reason.lower(), **spec))
    for _, reason, said in cases:
        item = at(api, reason.lower(), reason)
        assert complete(item)[0] == "False"
        assert said in item["status"]["conditions"][0]["message"]
        assert item["status"]["completionTime"]


def test_a_successor_waits_for_proof_and_comes_once(
    api: Api, control_plane: Cluster, source: tuple[str, str, Recorder]
) -> None:
    uid, _, recorder = source
    api.post(RESTORES, request("next", "successor", podName="b"))
    assert "delete it" in at(api, "next", "SourceRuns")["status"]["conditions"][0]["message"]
    # Without the pod it can't be told what a next one looks like.
    template = like(api.get(f"{PODS}/a"))
    api.delete(f"{RESTORES}/next")
    api.post(RESTORES, request("next", "successor", podName="b", template=template))
    at(api, "next", "SourceRuns")
    api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    at(api, "next", "PodNotBound")
    assert api.get(f"{PODS}/b")["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{uid}"
    # Of n1 there is no Node here: what ran on it has stopped.
    assert recorder.registry.pod(NAMESPACE, uid).stopped == "out-of-service"


def like(pod: Json) -> Json:
    (container,) = pod["spec"]["containers"]
    same = {"name": "c", "image": container["image"], "args": ["serve"]}
    same["resources"] = {"limits": {keys.seat_resource(1): "1", "memory": "1Gi"}}
    return {"metadata": {"annotations": {keys.VRAM: "1Gi"}}, "spec": {"containers": [same]}}


def test_another_namespaces_artifact_takes_a_grant(
    api: Api, source: tuple[str, str, Recorder]
) -> None:
    there = path(DEV)
    wanted = {"source": {"pod": "a", "namespace": NAMESPACE}}
    for name, pod in (("first", "a"), ("nobody", "nobody")):
        asked = request(name)
        asked["spec"]["source"] = {"pod": pod, "namespace": NAMESPACE}
        api.post(there, asked)
        # Whether there is such a pod isn't told.
        said = at(api, name, "NotGranted", DEV)["status"]["conditions"][0]["message"]
        assert said == (
            f"no ArtifactGrant of namespace {NAMESPACE} lets {DEV} restore pod {pod}, or there is "
            "none"
        )
    grant = {"apiVersion": keys.API_VERSION, "kind": keys.ARTIFACT_GRANT_KIND}
    grant |= {
        "metadata": {"name": "g"},
        "spec": {"to": [DEV], "artifacts": ["a"], "until": "never"},
    }
    api.post(path(NAMESPACE, "artifactgrants"), grant)

    def taken() -> bool:
        with contextlib.suppress(NotFoundError):
            api.delete(f"{there}/again")
        api.post(there, request("again", **wanted))
        until(lambda: bool(complete(api.get(f"{there}/again"))[1]), "nothing is told", LIMIT_S)
        return _settled(api, f"{there}/again") == "PodNotBound"

    until(taken, "the grant isn't heard of", LIMIT_S)
    pod = api.get(f"/api/v1/namespaces/{DEV}/pods/again")
    assert pod["metadata"]["annotations"][keys.RESTORE_FROM] == source[1]


def _settled(api: Api, where: str) -> str:
    until(lambda: complete(api.get(where))[1] != "Pending", "still pending", LIMIT_S)
    return complete(api.get(where))[1]


def test_nobody_asks_for_what_they_may_not_do(
    api: Api, users: Callable[[str, list[Json]], Api], source: tuple[str, str, Recorder]
) -> None:
    name = object_name(source[1])
    named = request()
    named["spec"]["source"] = {"artifact": name}
    both = users("restorer", [ASKS, MAKES, RESTORE])
    until(lambda: _may(both, request()), "no right yet")
    no_pods = users("no-pods", [ASKS, RESTORE])
    until(lambda: _says(no_pods, request(), "may not ask for a pod"), "not refused")
    no_states = users("no-states", [ASKS, MAKES])
    until(lambda: _says(no_states, request(), "may not restore the newest"), "not refused")
    of_one = users("of-one", [ASKS, MAKES, {**RESTORE, "resourceNames": [name]}])
    until(lambda: _may(of_one, named), "no right yet")
    assert _says(of_one, request(), "takes the verb restore on artifacts.kyb.ai")
    made = both.post(RESTORES, request(requestedBy="eve"))
    assert made["spec"]["requestedBy"] == f"system:serviceaccount:{NAMESPACE}:restorer"
    with pytest.raises(RefusedError, match="nobody but Kybernate's controller writes"):
        api.patch(f"{RESTORES}/once/status", {"status": {"pod": "x"}})


def _may(user: Api, body: Json) -> bool:
    with contextlib.suppress(RefusedError):
        user.post(RESTORES, body, {"dryRun": "All"})
        return True
    return False


def _says(user: Api, body: Json, said: str) -> bool:
    try:
        user.post(RESTORES, body, {"dryRun": "All"})
    except RefusedError as error:
        return said in str(error)
    return False


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"as": "twin"}, "Unsupported value"),
        ({"source": {}}, "name one of artifact, pod and template"),
        ({"source": {"pod": "a", "artifact": "b"}}, "name one of artifact, pod and template"),
        ({"as": "template", "stopped": True}, "write as: clone"),
        ({"as": "successor", "source": {"pod": "a", "namespace": "x"}}, "only one of its own"),
        ({"source": {"pod": "../a"}}, "should match"),
    ],
)
def test_what_nobody_can_do_is_refused_in_words(api: Api, spec: Json, text: str) -> None:
    asked = request()
    asked["spec"] |= spec
    with pytest.raises(RefusedError, match=text):
        api.post(RESTORES, asked)


def test_the_controllers_account_makes_no_other_pods(
    api: Api, control_plane: Cluster, source: tuple[str, str, Recorder]
) -> None:
    account = control_plane.api("controller")
    plain = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    with pytest.raises(RefusedError, match="may only make and delete"):
        account.post(PODS, plain)
    template = like(api.get(f"{PODS}/a"))
    # It has no name to make a pod by until the admin's own pod is out of the way.
    api.post(RESTORES, request("held", "successor", template=template))
    item = at(api, "held", "SourceRuns")
    wanted = {"apiVersion": "v1", "kind": "Pod", **template}
    notes = {
        **template["metadata"]["annotations"],
        keys.RESTORE_FROM: f"pod/{source[0]}",
        keys.RESTORE_AS: "successor",
        keys.RESTORE_ELSE: "fail",
        keys.MADE_FOR: f"held/{item['metadata']['uid']}",
    }
    labels = {keys.MANAGED_LABEL: "true"}
    wanted["metadata"] = {"name": "held", "annotations": notes, "labels": labels}
    account.post(PODS, wanted, {"dryRun": "All"})

    def refused(said: str, /, where: str = PODS, **meta: Any) -> None:
        changed = {**wanted, "metadata": {**wanted["metadata"], **meta}}
        assert _refused(account, changed, said, where)

    refused("asks for another pod", name="other")
    refused("asks for another pod", annotations={**notes, keys.RESTORE_AS: "template"})
    refused("asks for another pod", annotations={**notes, keys.MADE_FOR: "held/1"})
    refused("not found", annotations={**notes, keys.MADE_FOR: "nobody/1"})
    refused("may only make and delete", annotations={**notes, keys.RESTORE_ELSE: "start"})
    refused("names no RestoreRequest", annotations={**notes, keys.MADE_FOR: ""})
    # With an account that is there, or Kubernetes' own admission refuses it before.
    there = {**wanted, "spec": {**wanted["spec"], "serviceAccountName": "kyb-webhook"}}
    where = "/api/v1/namespaces/kyb-system/pods"
    assert _refused(account, there, "makes no pods in kyb-system", where)
    (container,) = template["spec"]["containers"]
    spec = {"containers": [{**container, "image": "evil"}]}
    assert _refused(account, {**wanted, "spec": spec}, "has another template")
    secret = {"name": "s", "secret": {"secretName": "s"}}
    with_secret = {**template["spec"], "volumes": [secret]}
    assert _refused(account, {**wanted, "spec": with_secret}, "has another template")


def _refused(account: Api, body: Json, said: str, where: str = PODS) -> bool:
    try:
        account.post(where, body, {"dryRun": "All"})
    except RefusedError as error:
        return said in str(error)
    return False


def test_killed_at_any_time_each_makes_one_pod(
    api: Api, control_plane: Cluster, source: tuple[str, str, Recorder], projecting: Controller
) -> None:
    """Eight clones, and a controller that is killed eight times meanwhile; each pod is bound and
    awake as soon as it is there."""
    seen: dict[str, set[str]] = {}
    chance, names = random.Random(16), [f"c{number}" for number in range(8)]
    for round_, name in enumerate([*names, *[""] * 8]):
        if name:
            api.post(RESTORES, request(name))
        if round_ % 2:
            projecting.kill()
            projecting.start(wait=False)
        time.sleep(chance.uniform(0.1, 1.0))
        _note(api, seen)
    until(projecting.ready, "not ready", LIMIT_S)
    for name in names:
        at(api, name, "PodNotBound")
    _note(api, seen)
    assert {name: len(uids) for name, uids in seen.items()} == dict.fromkeys(names, 1)
    seats = []
    for name in names:
        bind(control_plane, name)
        seat = {"uid": next(iter(seen[name])), "name": "s", "group": "G0", "state": "active"}
        seats.append({**seat, "namespace": NAMESPACE, "pod": name})
    control_plane.api("agent").patch(f"{GPU_NODE}/status", {"status": {"seats": seats}})
    projecting.kill()
    projecting.start()
    for name in names:
        at(api, name, "Restored")


def _note(api: Api, seen: dict[str, set[str]]) -> None:
    for item in api.get(PODS)["items"]:
        if keys.MADE_FOR in (item["metadata"].get("annotations") or {}):
            seen.setdefault(item["metadata"]["name"], set()).add(item["metadata"]["uid"])


def test_a_request_goes_after_its_time(
    api: Api, control_plane: Cluster, source: tuple[str, str, Recorder]
) -> None:
    api.post(RESTORES, request(deadlineSeconds=3, ttlSecondsAfterFinished=2))
    said = at(api, "once", "DeadlineExceeded")["status"]["conditions"][0]["message"]
    # Of a scheduler that other tests have started there are other words for it.
    assert "not within 3 s: " in said
    until(lambda: not _is_there(api, f"{RESTORES}/once"), "its time is over, and it stays", LIMIT_S)
