"""The pod that a RestoreRequest has made is like the artifact's, as the webhook takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.api.pods import read_pod
from kybernate.api.restoring.copies import is_made_for, pod_to_make, request_of, why_not_asked
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.errors import RefusedError
from kybernate.settings.webhook import WebhookSettings
from tests.unit.core.requests.test_restore import CHOSEN, request
from webhook.pods.cluster import Cluster
from webhook.pods.mutate import mutate
from webhook.pods.validate import refusals, unprepared

if TYPE_CHECKING:
    from kybernate.core.requests.restore import RestoreRequest

Json = dict[str, Any]
SETTINGS = WebhookSettings()
ASKED = request(status=CHOSEN)


def written(**spec: Any) -> Json:
    """As a user writes it."""
    container = {
        "name": "server",
        "image": "llama",
        "command": ["serve"],
        "args": ["--port", "8000"],
        "env": [{"name": "MODE", "value": "fast"}],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {keys.seat_resource(1): "1", "memory": "4Gi"}},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    notes = {keys.VRAM: "24Gi", keys.MODEL: "llama", keys.REQUIRE_GROUP: "G07", "team": "a"}
    labels = {keys.MANAGED_LABEL: "true", "app": "llama", "pod-template-hash": "7f"}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    return {
        "metadata": {"name": "a", "namespace": "shop", "annotations": notes, "labels": labels},
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "serviceAccountName": "server",
            "nodeSelector": {"kubernetes.io/hostname": "n1", "pool": "h100"},
            **spec,
        },
    }


def admitted(pod: Json) -> Json:
    """As the webhook and Kubernetes leave it."""
    done = apply(pod, mutate(pod, Cluster(), SETTINGS))
    meta, spec = done["metadata"], done["spec"]
    token = {"name": "kube-api-access-x", "mountPath": "/var/run/secrets/k", "readOnly": True}
    spec["containers"][0]["volumeMounts"].append(token)
    spec["volumes"].append({"name": "kube-api-access-x", "projected": {}})
    spec |= {"nodeName": "n1", "priority": 0, "preemptionPolicy": "Never", "hostname": "a"}
    meta |= {"uid": "u1", "resourceVersion": "7"}
    return done


def apply(pod: Json, steps: list[Json]) -> Json:
    found = {**pod}
    for step in steps:
        *path, last = step["path"].strip("/").split("/")
        at: Any = found
        for part in map(unescaped, path):
            at = at[int(part)] if isinstance(at, list) else at[part]
        last = unescaped(last)
        if last == "-":
            at.append(step["value"])
        elif isinstance(at, list):
            at[int(last)] = step["value"]
        elif step["op"] == "remove":
            del at[last]
        else:
            at[last] = step["value"]
    return found


def unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def made(source: Json | None, asked: RestoreRequest = ASKED) -> Json:
    found = pod_to_make(asked, source)
    assert found is not None
    return found


def test_the_webhook_makes_of_it_what_it_made_of_the_source() -> None:
    source = admitted(written())
    asked = replace(ASKED, kind=RestoreAs.TEMPLATE)
    pod = made(source, asked)
    assert refusals(pod, Cluster(), SETTINGS.scheduler_name) == []
    again = apply(pod, mutate(pod, Cluster(), SETTINGS))
    assert unprepared(again, SETTINGS.scheduler_name) == []
    (ask,), (like,) = read_pod(source).asks, read_pod(again).asks
    assert like.template_hash() == ask.template_hash()
    for name in ("resources", "livenessProbe"):
        assert like.container[name] == ask.container[name]
    assert again["spec"]["containers"][0]["command"] == source["spec"]["containers"][0]["command"]
    assert again["spec"]["nodeSelector"] == {"pool": "h100"}
    assert "nodeName" not in again["spec"]
    assert again["metadata"]["labels"] == {keys.MANAGED_LABEL: "true", "app": "llama"}
    assert keys.REQUIRE_GROUP not in again["metadata"]["annotations"]
    assert again["metadata"]["annotations"][keys.VRAM] == "24Gi"


def test_a_clone_is_found_by_no_service_and_goes_with_its_request() -> None:
    pod = made(admitted(written()))
    assert pod["metadata"]["labels"] == {keys.MANAGED_LABEL: "true"}
    assert pod["metadata"]["ownerReferences"][0]["uid"] == ASKED.uid
    assert "livenessProbe" not in pod["spec"]["containers"][0]
    notes = pod["metadata"]["annotations"]
    assert notes[keys.RESTORE_FROM] == CHOSEN.artifact
    assert notes[keys.RESTORE_ELSE] == "fail"
    assert refusals(pod, Cluster(), SETTINGS.scheduler_name) == []
    template = replace(ASKED, kind=RestoreAs.TEMPLATE)
    assert "ownerReferences" not in made(admitted(written()), template)["metadata"]


def test_of_another_namespace_nothing_is_taken_that_names_something_of_this_one() -> None:
    helper = {"name": "helper", "image": "evil", "command": ["steal"]}
    source = admitted(
        written(
            initContainers=[helper],
            imagePullSecrets=[{"name": "pull"}],
            volumes=[
                {"name": "data", "secret": {"secretName": "db"}},
                {"name": "host", "hostPath": {"path": "/"}},
                {"name": "tmp", "emptyDir": {"medium": "Memory"}},
            ],
        )
    )
    source["spec"]["containers"].append({**helper, "name": "beside"})
    spec = made(source, replace(ASKED, namespace="dev"))["spec"]
    assert [one["name"] for one in spec["containers"]] == ["server"]
    assert not {"serviceAccountName", "imagePullSecrets", "initContainers"} & set(spec)
    assert spec["volumes"] == [
        {"name": "data", "emptyDir": {}},
        {"name": "host", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {"medium": "Memory"}},
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"envFrom": [{"secretRef": {"name": "db"}}]},
        {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "db", "key": "x"}}}]},
    ],
)
def test_variables_of_another_namespaces_objects_take_a_template(more: Json) -> None:
    source = admitted(written())
    source["spec"]["containers"][0] |= more
    made(source)
    with pytest.raises(RefusedError, match=r"say spec\.template"):
        made(source, replace(ASKED, namespace="dev"))


@pytest.mark.parametrize("note", [None, "{", "[]", '{"container": "other", "resources": {}}'])
def test_a_source_that_does_not_say_how_it_was_written_takes_a_template(note: str | None) -> None:
    source = admitted(written())
    source["metadata"]["annotations"][keys.ORIGINAL_RESOURCES] = note
    with pytest.raises(RefusedError, match=r"say spec\.template"):
        made(source)


def test_a_template_is_taken_as_it_is() -> None:
    template = {
        "metadata": {"labels": {"app": "mine"}, "annotations": {"team": "b"}, "name": "x"},
        "spec": {"containers": [{"name": "c", "image": "mine"}], "nodeSelector": {"a": "b"}},
    }
    asked = replace(ASKED, template=template, node_selector={"zone": "z"}, stopped=True)
    pod = made(None, asked)
    assert pod["metadata"]["name"] == "copy"
    assert pod["metadata"]["labels"] == {"app": "mine", keys.MANAGED_LABEL: "true"}
    assert pod["metadata"]["annotations"][keys.CLONE_STOPPED] == "true"
    assert pod["spec"]["nodeSelector"] == {"zone": "z"}
    assert template["spec"]["nodeSelector"] == {"a": "b"}
    assert pod_to_make(ASKED, None) is None


def test_whose_pod_it_is() -> None:
    pod = made(admitted(written()))
    assert request_of(pod) == "once"
    assert is_made_for(ASKED, pod)
    assert why_not_asked(ASKED, pod) == ""
    assert not is_made_for(replace(ASKED, uid="r2"), pod)
    for other in (
        replace(ASKED, uid="r2"),
        replace(ASKED, kind=RestoreAs.TEMPLATE),
        replace(ASKED, status=replace(CHOSEN, pod="another")),
        replace(ASKED, status=replace(CHOSEN, artifact="shop/b@20260131T120000Z-00c0ffee")),
        replace(ASKED, status=replace(CHOSEN, artifact="")),
        replace(ASKED, status=replace(CHOSEN, ended_at=1.0)),
    ):
        assert "asks for another pod" in why_not_asked(other, pod)
    template = {"spec": {"containers": [{"name": "c", "image": "mine"}]}}
    assert "another template" in why_not_asked(replace(ASKED, template=template), pod)
    plain: Json = {"metadata": {"name": "x"}}
    assert request_of(plain) == ""
