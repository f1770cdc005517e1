"""What the controller does to scale Deployments to zero, and whom it believes."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from controller.base.cluster import Replicas
from controller.base.kinds import CHECKPOINT
from controller.base.known import Nodes, Requests
from controller.base.queue import Queue
from controller.policies import Policies
from controller.zero import ZeroWorker
from kybernate import keys
from kybernate.api.watched.nodefacts import slim_node
from kybernate.api.watched.slim import slim_pod, slim_request
from kybernate.errors import RefusedError
from kybernate.runtime.lead import Open
from tests.unit.controller.test_policies import pod, policy

NOW = 1_767_225_600.0
LONG_AGO = "2025-12-31T00:00:00Z"


def seated(owner):
    made_by = {"kind": "ReplicaSet", "name": f"{owner}-1", "uid": f"rs-{owner}", "controller": True}
    notes = {keys.MODEL: owner}
    found = pod(name=f"{owner}-1-a", uid=f"u-{owner}", ownerReferences=[made_by], annotations=notes)
    found["spec"]["nodeName"] = "n1"
    return found


def node(name, *uids):
    row = {"namespace": "shop", "state": "parked", "tier": "object", "since": LONG_AGO}
    seats = [{**row, "uid": uid} for uid in uids]
    return {"metadata": {"name": name, "uid": name}, "status": {"seats": seats}}


def put(owner, **notes):
    """A request of a Deployment that is scaled to zero."""
    meta = {
        "namespace": "shop",
        "name": f"zero-gone-{owner}",
        "uid": f"r-{owner}",
        "resourceVersion": "1",
        "annotations": notes,
        "ownerReferences": [{"kind": "Deployment", "name": owner, "uid": f"d-{owner}"}],
    }
    status = {
        "operation": f"ckpt-r-{owner}",
        "podUID": f"gone-{owner}",
        "owner": f"rs-{owner}",
        "conditions": [{"type": "Complete", "status": "True", "reason": "Evicted"}],
        "artifact": {"name": "", "tier": "object", "bytes": 7},
    }
    spec = {"pod": "x", "mode": "Evict", "tier": "object", "requestedBy": keys.CONTROLLER_USER}
    return {"metadata": meta, "spec": spec, "status": status}


class World:
    """An API server with Deployments of one pod each."""

    def __init__(self):
        self.asked, self.scaled, self.said, self.full = [], [], [], False
        self.policies = Policies(lambda _key, _after: None)
        self.policies.on_event("ADDED", policy(idle={"object": "1s"}))
        self.requests = Requests(CHECKPOINT, lambda _key: None)
        self.nodes, self.zeros = Nodes(), set()
        queue = Queue(lambda: NOW)
        parts = queue, self.policies, self.requests, self.nodes, self, Open(), lambda: NOW
        self.worker = ZeroWorker(*parts)

    def look(self):
        self.worker.look(("shop", ""))

    # --- Cluster
    def deployment(self, _namespace, replica_set):
        name = replica_set.removesuffix("-1")
        return name, f"d-{name}"

    def replicas(self, _namespace, name):
        return Replicas(0 if name in self.zeros else 1, "1")

    def scaler(self, _namespace, _name):
        return ""

    def ask(self, _namespace, body):
        if self.full:
            raise RefusedError("exceeded quota: requests")
        self.asked.append(body["metadata"]["name"])

    def scale(self, _namespace, name, _seen, number):
        self.scaled.append((name, number))

    def write(self, seen, _status, _now):
        return put(seen.request.deployment)

    def say(self, _about, reason, message, *, warning):
        self.said.append((reason, message))


@pytest.fixture
def world():
    return World()


def test_a_pod_rests_only_if_its_own_node_says_so(world):
    world.policies.on_pod("ADDED", slim_pod(seated("oak")))
    world.nodes.on_event("ADDED", slim_node(node("n2", "u-oak")))
    world.look()
    assert world.asked == [], "another node has nothing to say of it"
    world.nodes.on_event("ADDED", slim_node(node("n1", "u-oak")))
    world.look()
    assert world.asked == ["zero-u-oak"]


def test_a_deployment_whose_pods_a_queue_starts_is_left_alone(world):
    pod = seated("oak")
    pod["metadata"].setdefault("labels", {})["kueue.x-k8s.io/queue-name"] = "team"
    world.policies.on_pod("ADDED", slim_pod(pod))
    world.nodes.on_event("ADDED", slim_node(node("n1", "u-oak")))
    world.look()
    assert (world.asked, world.scaled) == ([], [])
    (told,) = [said for reason, said in world.said if reason == "NotScaledToZero"]
    assert "Kueue says when its pods run" in told


def test_a_request_that_may_not_be_made_keeps_no_other_deployment_asleep(world):
    world.full = True
    world.zeros = {"wood"}
    world.policies.on_pod("ADDED", slim_pod(seated("oak")))
    world.nodes.on_event("ADDED", slim_node(node("n1", "u-oak")))
    world.requests.on_event("ADDED", slim_request(put("wood", **{keys.WANTED: "now"})))
    before = REGISTRY.get_sample_value("kyb_controller_scales_total", {"to": "back"}) or 0
    world.look()
    assert world.scaled == [("wood", 1)]
    after = REGISTRY.get_sample_value("kyb_controller_scales_total", {"to": "back"})
    assert after == before + 1
    (told,) = [said for reason, said in world.said if reason == "NotScaledToZero"]
    assert "exceeded quota: requests" in told


def test_what_hinders_is_told_once_while_its_pods_are_there(world):
    world.full = True
    world.nodes.on_event("ADDED", slim_node(node("n1", "u-oak")))
    for _ in range(2):
        world.policies.on_pod("ADDED", slim_pod(seated("oak")))
        world.look()
        world.look()
        world.policies.on_pod("DELETED", slim_pod(seated("oak")))
        world.look()
    assert [reason for reason, _ in world.said] == ["NotScaledToZero"] * 2
