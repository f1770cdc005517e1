"""Reviews with something wrong in them: each gets an answer in JSON, and no fault is logged.

2,000 by default, 50,000 by `make fuzz` (a minute or two on one core).
"""

from __future__ import annotations

import base64
import json
import logging
import os
from random import Random
from typing import TYPE_CHECKING, Any

import orjson

from kybernate import keys
from kybernate.core.artifacts.grants import no_grants
from kybernate.settings.webhook import WebhookSettings
from tests.kit.breaks.spoil import Spoiler
from tests.kit.clients.wsgi import post
from tests.unit.webhook.pods import CLUSTER, apply, pod, seat
from tests.unit.webhook.reviews import anyone, review
from webhook.app import make_app

if TYPE_CHECKING:
    import pytest

COUNT = int(os.environ.get("KYB_FUZZ", "2000"))
WORDS = (
    *("metadata", "labels", "annotations", "spec", "containers", "initContainers", "resources"),
    *("limits", "requests", "memory", "env", "name", "command", "args", "volumes", "volumeMounts"),
    *(
        "mountPath",
        "ports",
        "containerPort",
        "httpGet",
        "exec",
        "grpc",
        "tcpSocket",
        "port",
        "host",
    ),
    *("livenessProbe", "startupProbe", "lifecycle", "postStart", "schedulerName", "hostNetwork"),
    *("hostUsers", "hostIPC", "securityContext", "capabilities", "add", "privileged", "SYS_ADMIN"),
    *("subResource", "ephemeralcontainers", "ephemeralContainers", "oldObject", "prefer-group"),
    *("Pod", "request", "object", "true", "false", "1", "2", "24Gi", "8Ei", "1e18", "0", "-1"),
    *(
        "kyb-sidecar",
        "kyb-pod",
        "kyb-shm",
        "/dev/shm",
        "/kyb-pod/",
        "/kyb/kyb-init",
        "probe",
        "web",
    ),
    *("NVIDIA L4", "NVIDIA L4|x", "G0", "G01", "vllm", "30s", "kill", "15480", "15481", "15483"),
    *(keys.VENDOR_RESOURCE, keys.seat_resource(1), keys.seat_resource(2), f"{keys.GROUP}/gpu-x"),
    *(keys.RESOURCE_PREFIX + "9" * 5000 + keys.RESOURCE_SUFFIX, keys.seat_resource(9999)),
    *(keys.MANAGED_LABEL, keys.VRAM, keys.GPUS_ANNOTATION, keys.GPU_PRODUCT, keys.REQUIRE_GROUP),
    *(keys.ORIGINAL_RESOURCES, keys.COOPERATE, keys.READY_WITHIN, keys.GPU_TOPOLOGY, keys.SCRAPE),
    *(keys.GANG, keys.GANG_SIZE, "schedulingGates", "readinessGates", "tolerations", "os"),
    *(keys.SCRAPE_PORT, keys.ASSIGNED_GROUP, keys.ENV_CUDA_VISIBLE, keys.SCHEDULER_NAME),
    '{"container":"c","resources":{},"vram":0,"probes":{"livenessProbe":{"x":{"port":1}}}}',
    '{"container":"c","resources":{"limits":{"memory":"1Gi"}},"vram":85899345920}',
    '{"container":"c","resources":' + "[" * 400 + "]" * 400 + "}",
)


def full_pod(way: str) -> dict[str, Any]:
    """A pod that has something of all that is read."""
    limits = {"seat": seat(), "vendor": {keys.VENDOR_RESOURCE: "2"}}.get(way, {})
    notes = {keys.VRAM: "24Gi", keys.COOPERATE: "vllm", keys.SCRAPE: "true", keys.SCRAPE_PORT: "80"}
    notes |= {
        keys.READY_WITHIN: "30s",
        keys.GPU_TOPOLOGY: "nvlink",
        keys.GPU_PRODUCT: "NVIDIA L4|x",
    }
    notes |= {keys.GANG: "g", keys.GANG_SIZE: "2"}
    notes |= {keys.GPUS_ANNOTATION: "2"} if way == "annotation" else {}
    made = pod(
        {**limits, "memory": "1Gi", "cpu": 1},
        {"memory": "1Gi"},
        notes=notes,
        container={
            "command": ["a"],
            "args": ["b"],
            "env": [{"name": "A", "value": "1"}],
            "ports": [{"name": "web", "containerPort": 8000}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "securityContext": {"privileged": False, "capabilities": {"add": ["IPC_LOCK"]}},
            "livenessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 5},
            "readinessProbe": {"grpc": {"port": 81}, "timeoutSeconds": 3},
            "startupProbe": {"exec": {"command": ["x"]}, "failureThreshold": 3},
            "lifecycle": {"postStart": {"exec": {"command": ["x"]}}},
        },
        spec={
            "initContainers": [{"name": "i", "env": [{"name": "B"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "readinessGates": [{"conditionType": "a"}],
            "nodeSelector": {"kubernetes.io/hostname": "n1"},
            "os": {"name": "linux"},
            "terminationGracePeriodSeconds": 1,
            "schedulerName": "default-scheduler",
        },
    )
    made["spec"]["containers"].append({"name": "other", "resources": {"limits": {"cpu": "1"}}})
    made["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "c"
    return made


def debugged() -> dict[str, Any]:
    """The review of `kubectl debug`."""
    before, after = full_pod("seat"), full_pod("seat")
    before["spec"]["ephemeralContainers"] = [{"name": "old"}]
    after["spec"]["ephemeralContainers"] = [{"name": "old"}, {"name": "e", "env": [{"name": "A"}]}]
    question = {"operation": "UPDATE", "subResource": "ephemeralcontainers"}
    return review(after, oldObject=before, **question)


GOOD = [
    *(json.dumps(review(full_pod(way))).encode() for way in ("seat", "vendor", "annotation")),
    json.dumps(debugged()).encode(),
]


def test_every_review_gets_an_answer_in_json(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(WebhookSettings(log_level="ERROR"), lambda: CLUSTER, no_grants, anyone).wsgi_app
    statuses: dict[str, int] = {}
    with caplog.at_level(logging.ERROR):
        for seed in range(COUNT):
            outcome = _one(app, seed)
            statuses[outcome] = statuses.get(outcome, 0) + 1
    print(statuses)
    assert not caplog.records
    # The bodies are no good if they all end at the same check.
    assert min(statuses.get(name, 0) for name in ("400", "refused", "allowed")) > COUNT / 50


def test_every_request_is_signed_or_refused_in_json(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(WebhookSettings(log_level="ERROR"), lambda: CLUSTER, no_grants, anyone).wsgi_app
    kind = {"group": keys.GROUP, "version": keys.VERSION, "kind": keys.CHECKPOINT_REQUEST_KIND}
    asked = {"metadata": {"name": "r"}, "spec": {"pod": "a", "mode": "Park", "requestedBy": "eve"}}
    good = json.dumps(review(asked, kind=kind, userInfo={"username": "ann"})).encode()
    signed = 0
    with caplog.at_level(logging.ERROR):
        for seed in range(COUNT // 4):
            body = Spoiler(Random(seed), WORDS).body(good, "request", "object")
            status, form, answer = post(app, "/sign", body)
            said = orjson.loads(answer)
            told = f"seed {seed}: {status} {answer[:300]!r}"
            assert (form, status in (200, 400)) == ("application/json", True), told
            if status == 400:
                assert said["error"], told
                continue
            given = orjson.loads(body)["request"]
            (step,) = json.loads(base64.b64decode(said["response"]["patch"]))
            assert step["value"] == given["userInfo"]["username"], told
            signed += 1
    assert not caplog.records
    assert COUNT / 40 < signed < COUNT / 4


def _one(app: Any, seed: int) -> str:
    random = Random(seed)
    body = Spoiler(random, WORDS).body(random.choice(GOOD), "request", "object")
    path = random.choice(("/mutate", "/mutate", "/validate"))
    status, form, answer = post(app, path, body)
    told = f"seed {seed}, {path}: {status} {answer[:300]!r}"
    assert form == "application/json", told
    said = orjson.loads(answer)
    if status == 400:
        assert said["error"], told
        return "400"
    assert status == 200, told
    response = said["response"]
    if not response["allowed"]:
        assert response["status"]["message"], told
        return "refused"
    if "patch" in response:
        _check_twice(app, orjson.loads(body), response, told)
    return "allowed"


def _check_twice(app: Any, given: Any, response: Any, told: str) -> None:
    """What was mutated isn't mutated again, and passes the validating webhook."""
    after = apply(given["request"]["object"], json.loads(base64.b64decode(response["patch"])))
    of_debuggers = given["request"].get("subResource") == "ephemeralcontainers"
    whole = {**given, "request": {**given["request"], "object": after}}
    again = json.dumps(whole if of_debuggers else review(after)).encode()
    # What kubectl debug adds is judged by a policy.
    for path in ("/mutate",) if of_debuggers else ("/mutate", "/validate"):
        status, _, answer = post(app, path, again)
        assert status == 200, (told, answer)
        second = orjson.loads(answer)["response"]
        assert second["allowed"], (told, second)
        assert "patch" not in second, (told, base64.b64decode(second["patch"]))
