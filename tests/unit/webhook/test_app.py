from __future__ import annotations

import base64
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kybernate import keys
from kybernate.core.artifacts.grants import Grant, no_grants
from kybernate.errors import RetryableError
from kybernate.settings.webhook import WebhookSettings
from tests.unit.webhook.pods import CLUSTER, apply, pod, seat
from tests.unit.webhook.reviews import anyone, review
from webhook.app import Known, make_app

if TYPE_CHECKING:
    from flask.testing import FlaskClient


@pytest.fixture
def client() -> FlaskClient:
    return make_app(WebhookSettings(), lambda: CLUSTER, no_grants, anyone).test_client()


VRAM = {keys.VRAM: "24Gi"}


@pytest.mark.parametrize("dry_run", [False, True])
def test_mutate_answers_with_a_patch(client: FlaskClient, dry_run: bool) -> None:
    given_pod = pod(seat(), notes=VRAM)
    answer = client.post("/mutate?timeout=5s", json=review(given_pod, dryRun=dry_run))
    assert (answer.status_code, answer.mimetype) == (200, "application/json")
    body = answer.get_json()
    assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = body["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", True)
    assert response["patchType"] == "JSONPatch"
    after = apply(given_pod, json.loads(base64.b64decode(response["patch"])))
    assert client.post("/validate", json=review(after)).get_json()["response"]["allowed"]
    again = client.post("/mutate", json=review(after)).get_json()["response"]
    assert again == {"uid": "u-1", "allowed": True}


def test_a_review_of_ephemeral_containers_changes_those_alone(client: FlaskClient) -> None:
    before = pod(seat(), notes=VRAM)
    after = pod(seat(), notes=VRAM, spec={"ephemeralContainers": [{"name": "e"}]})
    question = {"operation": "UPDATE", "subResource": "ephemeralcontainers"}
    answer = client.post("/mutate", json=review(after, oldObject=before, **question)).get_json()
    steps = json.loads(base64.b64decode(answer["response"]["patch"]))
    assert [step["path"] for step in steps] == ["/spec/ephemeralContainers/0/env"]
    for wrong in ({}, {"oldObject": {}}, {"oldObject": {"spec": {"ephemeralContainers": [1]}}}):
        body = review(after, **question, **wrong)
        assert client.post("/mutate", json=body).status_code == 400


def test_refusals_carry_the_sentences(client: FlaskClient) -> None:
    wrong = pod(seat(), notes=VRAM, spec={"hostPID": True})
    for path in ("/mutate", "/validate"):
        response = client.post(path, json=review(wrong)).get_json()["response"]
        assert response["allowed"] is False
        assert response["status"]["code"] == 422
        assert "spec.hostPID" in response["status"]["message"]


def test_a_pod_that_passed_the_mutating_webhook_by_is_refused(client: FlaskClient) -> None:
    response = client.post("/validate", json=review(pod(seat(), notes=VRAM))).get_json()["response"]
    assert response["allowed"] is False
    assert "MutatingWebhookConfiguration" in response["status"]["message"]


def copy_of_team_a(client: FlaskClient) -> dict[str, Any]:
    """What is answered to a pod of another namespace that wants its state."""
    wish = {keys.RESTORE_FROM: "team-a/llama-0@20260131T120000Z-00c0ffee"}
    wanted = pod(seat(), notes={**VRAM, **wish, keys.RESTORE_AS: "template"})
    wanted["metadata"]["namespace"] = "team-b"
    patch = client.post("/mutate", json=review(wanted)).get_json()["response"]["patch"]
    after = apply(wanted, json.loads(base64.b64decode(patch)))
    found: dict[str, Any] = client.post("/validate", json=review(after)).get_json()["response"]
    return found


def test_another_namespaces_state_needs_a_grant() -> None:
    granted: list[Grant] = []
    app = make_app(WebhookSettings(), lambda: CLUSTER, lambda: tuple(granted), anyone)
    refused = copy_of_team_a(app.test_client())
    assert (refused["allowed"], refused["status"]["code"]) == (False, 422)
    assert "an ArtifactGrant there must let team-b" in refused["status"]["message"]
    granted.append(Grant("team-a", ("team-b",), ("*",)))
    assert copy_of_team_a(app.test_client())["allowed"]


def test_until_it_is_known_what_is_granted_only_that_waits() -> None:
    def unknown() -> tuple[Grant, ...]:
        raise RetryableError("these are not listed yet")

    client = make_app(WebhookSettings(), lambda: CLUSTER, unknown, anyone).test_client()
    refused = copy_of_team_a(client)
    assert (refused["allowed"], refused["status"]["code"]) == (False, 503)
    assert refused["status"]["message"] == "these are not listed yet; try again."
    other = client.post("/validate", json=review(pod(seat(), notes=VRAM))).get_json()["response"]
    assert other["status"]["code"] == 422


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "the body is not an object"),
        (b"{}", "not an AdmissionReview"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "request is not"),
        (json.dumps(review(None)).encode(), "request.object is not an object"),
        (json.dumps(review({})).encode(), "object.metadata is not an object"),
        (json.dumps(review({"metadata": {}, "spec": {}})).encode(), "containers is not a list"),
        (json.dumps(review(pod(), uid=1)).encode(), "request.uid is not a text"),
        (json.dumps(review(pod(), kind={"kind": "Node"})).encode(), "not Pod"),
        (json.dumps(review(pod(notes={"a": 1}))).encode(), "annotations[a] is not a text"),
        (json.dumps(review(pod(spec={"tolerations": [1]}))).encode(), "tolerations is not"),
    ],
)
def test_what_is_no_review_is_named(client: FlaskClient, body: bytes, says: str) -> None:
    answer = client.post("/mutate", data=body, content_type="application/json")
    assert answer.status_code == 400
    assert says in answer.get_json()["error"]


def test_other_paths_and_methods_get_json(client: FlaskClient) -> None:
    assert client.get("/mutate").status_code == 405
    assert "error" in client.get("/nowhere").get_json()
    assert client.post("/mutate", data=b"x" * (17 * 1024 * 1024)).status_code == 413


def many(field: str, items: list[Any]) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [], field: items}}


@pytest.mark.parametrize(
    ("given_pod", "says"),
    [
        (many("x", [0] * 20_001), "of more than 20000 values"),
        (many("x", [[]] * 200_001), "more than 200000 lists and objects"),
        (many("x", json.loads("[" * 70 + "]" * 70)), "deeper than 64 levels"),
        (pod(notes={"a": "x" * 262_145}), "256 KiB"),
    ],
)
def test_what_would_take_long_is_refused_at_once(
    client: FlaskClient, given_pod: dict[str, Any], says: str
) -> None:
    answer = client.post("/mutate", json=review(given_pod))
    assert answer.status_code == 400
    assert says in answer.get_json()["error"]


def test_a_long_command_is_not_recorded(client: FlaskClient) -> None:
    given_pod = pod(seat(), notes=VRAM, container={"args": ["x" * 200_000]})
    response = client.post("/mutate", json=review(given_pod)).get_json()["response"]
    after = apply(given_pod, json.loads(base64.b64decode(response["patch"])))
    assert len(after["metadata"]["annotations"][keys.ORIGINAL_RESOURCES]) < 1000
    again = client.post("/mutate", json=review(after)).get_json()["response"]
    assert again == {"uid": "u-1", "allowed": True}


def test_a_fault_of_ours_is_json_too(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise ZeroDivisionError

    client = make_app(WebhookSettings(), broken, no_grants, anyone).test_client()
    with caplog.at_level(logging.CRITICAL):
        answer = client.post("/mutate", json=review(pod(seat())))
    assert answer.status_code == 500
    assert "its log" in answer.get_json()["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "c", "1", "x" * 70]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        "metadata",
        "labels",
        "annotations",
        "spec",
        "containers",
        "initContainers",
        "resources",
        "limits",
        "requests",
        "env",
        "command",
        "args",
        "volumes",
        "volumeMounts",
        "tolerations",
        "readinessGates",
        "terminationGracePeriodSeconds",
        "name",
        "memory",
        "schedulerName",
    ]
)


def _spoil(value: Any, field: str, by: Any) -> Any:
    """The document with every field of that name replaced."""
    if isinstance(value, dict):
        return {k: by if k == field else _spoil(v, field, by) for k, v in value.items()}
    if isinstance(value, list):
        return [_spoil(item, field, by) for item in value]
    return value


@given(field=FIELDS, by=JSON)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_shape_of_a_pod_is_a_fault(client: FlaskClient, field: str, by: Any) -> None:
    full = pod(
        seat(memory="1Gi"),
        {"memory": "1Gi"},
        notes=VRAM,
        container={
            "command": ["a"],
            "args": ["b"],
            "env": [{"name": "A", "value": "1"}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        },
        spec={
            "initContainers": [{"name": "i"}],
            "volumes": [{"name": "v"}],
            "tolerations": [{"key": "a"}],
            "readinessGates": [{"conditionType": "a"}],
            "terminationGracePeriodSeconds": 1,
            "schedulerName": "default-scheduler",
        },
    )
    for path in ("/mutate", "/validate"):
        answer = client.post(path, json=review(_spoil(full, field, by)))
        assert answer.status_code in (200, 400), answer.get_json()


def test_known_follows_the_watch() -> None:
    known = Known()
    group = {"name": "G0", "resource": "kyb.ai/gpu-1x-seat", "gpus": ["a"], "seats": 1}
    gpu = {"index": 0, "uuid": "a", "product": "P", "memoryBytes": 1, "healthy": True}
    node = {"metadata": {"name": "n1"}, "status": {"gpus": [gpu], "groups": [group]}}
    known.on_event("ADDED", node)
    assert known.cluster.names("kyb.ai/gpu-1x-seat") == {"G0"}
    known.on_event("MODIFIED", {"metadata": {"name": "n1"}})
    assert known.cluster.groups == ()
    known.on_event("MODIFIED", node)
    known.on_event("DELETED", node)
    assert known.cluster.groups == ()


def asked(spec: Any, **user: Any) -> dict[str, Any]:
    kind = {"group": keys.GROUP, "version": keys.VERSION, "kind": keys.CHECKPOINT_REQUEST_KIND}
    return review({"metadata": {"name": "once"}, "spec": spec}, kind=kind, userInfo=user)


@pytest.mark.parametrize("given", [None, "eve", 5])
def test_who_asks_is_written_into_a_request_whatever_it_says(
    client: FlaskClient, given: object
) -> None:
    spec = {"pod": "a"} if given is None else {"pod": "a", "requestedBy": given}
    response = client.post("/sign", json=asked(spec, username="ann")).get_json()["response"]
    steps = json.loads(base64.b64decode(response["patch"]))
    assert steps == [{"op": "add", "path": "/spec/requestedBy", "value": "ann"}]
    signed = asked({**spec, "requestedBy": "ann"}, username="ann")
    again = client.post("/sign", json=signed).get_json()["response"]
    assert again == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body", [asked(None, username="ann"), asked({}, username=5), asked({}), review({"spec": {}})]
)
def test_what_is_no_request_is_not_signed(client: FlaskClient, body: dict[str, Any]) -> None:
    assert client.post("/sign", json=body).status_code == 400
    assert client.post("/mutate", json=asked({}, username="ann")).status_code == 400


@pytest.mark.parametrize(
    ("user", "note", "allowed"),
    [
        (keys.CONTROLLER_USER, "once/r1", False),
        (keys.CONTROLLER_USER, "", False),
        (keys.CONTROLLER_USER, None, True),
        ("jane", "once/r1", True),
    ],
)
def test_pods_that_the_controller_makes_for_requests_are_looked_at(
    user: str, note: str | None, allowed: bool
) -> None:
    app = make_app(*(WebhookSettings(), lambda: CLUSTER, no_grants, anyone), lambda _: "not asked")
    client = app.test_client()
    wanted = pod(seat(), notes=VRAM if note is None else {**VRAM, keys.MADE_FOR: note})
    patch = client.post("/mutate", json=review(wanted)).get_json()["response"]["patch"]
    body = review(apply(wanted, json.loads(base64.b64decode(patch))))
    body["request"]["userInfo"] = {"username": user}
    answer = client.post("/validate", json=body).get_json()["response"]
    assert answer["allowed"] is allowed, answer
