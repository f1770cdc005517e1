"""ExtenderArgs with something wrong in them: each gets an answer in JSON, and no fault is logged.

2,000 by default, 50,000 by `make fuzz` (a minute or two on one core).
"""

from __future__ import annotations

import json
import logging
import os
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from extender.http.app import Verbs, create_app
from kybernate import keys
from tests.kit.breaks.spoil import Spoiler
from tests.kit.clients.wsgi import post
from tests.unit.extender.objects import ONE, TWO, gpu_node, pod

if TYPE_CHECKING:
    from extender.bind.binder import Binder
    from extender.state.snapshot import Snapshot
    from tests.unit.extender.conftest import FakeCluster

COUNT = int(os.environ.get("KYB_FUZZ", "2000"))
MAX_BODY = 1 << 20
WORDS = (
    *("Pod", "NodeNames", "Nodes", "items", "metadata", "annotations", "spec", "containers"),
    *("initContainers", "resources", "limits", "name", "namespace", "uid", "nodeName", "status"),
    *("phase", "PodUID", "PodName", "PodNamespace", "Node", "NodeNameToVictims", "Pods", "UID"),
    *("NodeNameToMetaVictims", "NumPDBViolations", "p1", "n1", "n2", "u1", "default", "1", "2"),
    *(ONE, TWO, keys.RESOURCE_PREFIX + "9" * 5000 + keys.RESOURCE_SUFFIX, keys.seat_resource(9999)),
    *(keys.VRAM, keys.GPU_PRODUCT, keys.GPU_TOPOLOGY, keys.PREFER_GROUP, keys.REQUIRE_GROUP),
    *(keys.ASSIGNED_GROUP, keys.ON_PREEMPT, keys.POLICY, "24Gi", "8Ei", "1e999", "nvlink", "G0"),
    *("NVIDIA H100 80GB HBM3", "kill", "Failed", "Succeeded"),
)


def good() -> dict[str, list[bytes]]:
    """Good bodies by verb."""
    notes = {keys.VRAM: "24Gi", keys.GPU_TOPOLOGY: "nvlink", keys.PREFER_GROUP: "G0"}
    asking = pod("p1", notes=notes)
    names = {"Pod": asking, "NodeNames": ["n1", "n2"], "Nodes": None}
    nodes = [{"metadata": {"name": name}, "spec": {}, "status": {}} for name in ("n1", "n2")]
    whole = {"Pod": asking, "NodeNames": None, "Nodes": {"items": nodes}}
    bind = {"PodName": "p1", "PodNamespace": "default", "PodUID": "u1", "Node": "n1"}
    meta = {"n1": {"Pods": [{"UID": "u1"}], "NumPDBViolations": 0}}
    victims = {"n1": {"Pods": [asking], "NumPDBViolations": 1}}
    bodies = {
        "filter": [names, whole],
        "prioritize": [names, whole],
        "bind": [bind],
        "preempt": [
            {"Pod": asking, "NodeNameToMetaVictims": meta},
            {"Pod": asking, "NodeNameToVictims": victims},
        ],
    }
    return {verb: [json.dumps(body).encode() for body in of] for verb, of in bodies.items()}


@pytest.fixture
def app(snapshot: Snapshot, binder: Binder, cluster: FakeCluster) -> Any:
    """The application over two nodes and a pod."""
    snapshot.node_event("ADDED", gpu_node("n2"))
    snapshot.pod_event("ADDED", cluster.add(pod("p1")))
    verbs = Verbs(snapshot, binder)
    return create_app(verbs, lambda: None, lambda _environ: None, MAX_BODY).wsgi_app


def test_every_call_gets_an_answer_in_json(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    bodies, told = good(), dict.fromkeys(("answered", "refused"), 0)
    with caplog.at_level(logging.ERROR):
        for seed in range(COUNT):
            told[_one(app, bodies, seed)] += 1
    print(told)
    assert not caplog.records
    # The bodies are no good if they all end at the same check.
    assert min(told.values()) > COUNT / 20


def _one(app: Any, bodies: dict[str, list[bytes]], seed: int) -> str:
    random = Random(seed)
    verb = random.choice(sorted(bodies))
    body = Spoiler(random, WORDS).body(random.choice(bodies[verb]), "Pod")
    status, form, answer = post(app, f"/v1/{verb}", body)
    said = orjson.loads(answer)
    where = f"seed {seed}, {verb}: {status} {answer[:300]!r}"
    assert form == "application/json", where
    if status != 200:
        assert status in (400, 413), where
        assert said["Error"], where
        return "refused"
    if verb == "filter":
        listed = said["NodeNames"] if said["NodeNames"] is not None else said["Nodes"]["items"]
        assert isinstance(listed, list), where
    elif verb == "prioritize":
        assert all(0 <= one["Score"] <= 10 for one in said), where
    return "answered"


@pytest.mark.parametrize(
    ("where", "depth"), [("Pod", 1000), ("Pod", 100_000), ("Nodes", 300), ("Nodes", 100_000)]
)
def test_nesting_is_refused_in_words(app: Any, depth: int, where: str) -> None:
    deep = b'{"metadata":{"name":' + b"[" * depth + b"]" * depth + b',"uid":"u"}}'
    if where == "Pod":
        body = b'{"NodeNames":["n1"],"Pod":' + deep + b"}"
    else:
        node = b'{"metadata":{"name":"n1"},"spec":' + b"[" * depth + b"]" * depth + b"}"
        body = b'{"Pod":' + json.dumps(pod(limits={})).encode() + b',"Nodes":{"items":[' + node
        body += b"]}}"
    status, form, answer = post(app, "/filter", body)
    assert (status, form) == (400, "application/json")
    assert "nested" in orjson.loads(answer)["Error"] or "depth" in orjson.loads(answer)["Error"]
