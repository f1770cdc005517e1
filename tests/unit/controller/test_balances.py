"""A policy has a pod moved by the load that GPUNodes tell: asked for once, told, and kept within
its budget."""

from __future__ import annotations

from controller.balances import Balances
from controller.base.kinds import CHECKPOINT, REBALANCE
from controller.base.known import Nodes, Requests
from controller.base.queue import Queue
from controller.policies import Policies, PolicyWorker
from kybernate import keys
from kybernate.api.watched.nodefacts import slim_node
from kybernate.api.watched.slim import slim_pod, slim_request
from kybernate.errors import RefusedError
from kybernate.runtime.lead import Open

PAIR = keys.seat_resource(2)
OWNER = {"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}


def policy(name="p", app="a", **rebalance):
    meta = {"namespace": "shop", "name": name, "uid": f"u-{name}", "generation": 1}
    spec = {"selector": {"matchLabels": {"app": app}}, "rebalance": rebalance}
    return {"metadata": {**meta, "resourceVersion": "1"}, "spec": spec}


def pod(name, owner=OWNER, app="a"):
    container = {"name": "main", "resources": {"limits": {PAIR: "1"}}}
    meta = {"namespace": "shop", "name": name, "uid": f"u-{name}", "labels": {"app": app}}
    return slim_pod(
        {
            "metadata": {**meta, "ownerReferences": [owner] if owner else []},
            "spec": {"containers": [container], "nodeName": "n1"},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
        }
    )


def node(**busy):
    groups = [
        {"name": name, "resource": PAIR, "gpus": gpus, "seats": 3, "activeSlots": 1}
        for name, gpus in (("G01", ["0", "1"]), ("G23", ["2", "3"]))
    ]
    seats = [
        {"uid": f"u-{name}", "group": "G01", "state": "Active", "heldBytes": 7}
        | {"activity": {"recentBusy": share, "busy": [0] * 24}}
        for name, share in busy.items()
    ]
    meta = {"name": "n1", "uid": "n1", "resourceVersion": "1"}
    return slim_node({"metadata": meta, "status": {"groups": groups, "seats": seats}})


class World:
    """A node of two groups, and pods a, b and c of which c is nobody's."""

    def __init__(self):
        self.now, self.refuses, self.posted, self.said, self.written = (
            1_767_312_000.0,
            "",
            [],
            [],
            [],
        )
        self.policies, self.nodes = Policies(lambda *_: None), Nodes()
        self.moves = Requests(REBALANCE, lambda _: None)
        self.queue = Queue(lambda: self.now)
        for one in (pod("a"), pod("b"), pod("c", owner=None), pod("d", app="d")):
            self.policies.on_pod("ADDED", one)
        self.policies.on_event("ADDED", policy(above=50, every="30m", seconds=60))
        self.meanwhile = lambda: None
        balances = Balances(self.moves, self.nodes, self, Open(), lambda: self.now)
        parts = self.queue, self.policies, Requests(CHECKPOINT, lambda _: None), balances
        self.worker = PolicyWorker(*parts, self, self, Open(), lambda: self.now)

    def look(self, name="p", **busy):
        self.nodes.on_event("MODIFIED", node(**busy))
        self.worker.look(("shop", name))
        found = {one["type"]: one for one in self.written[-1]["conditions"]}
        return found["Balanced"]

    def asked(self, **status):
        """The watch tells of what was posted."""
        body = self.posted[-1][1]
        meta = {**body["metadata"], "namespace": "shop", "uid": "r1", "resourceVersion": "2"}
        meta["creationTimestamp"] = "2026-01-02T00:00:00Z"
        spec = {**body["spec"], "requestedBy": keys.CONTROLLER_USER}
        item = {"metadata": meta, "spec": spec, "status": status}
        self.moves.on_event("ADDED", slim_request(item))
        (found,) = self.moves.all()
        return found

    # --- Cluster
    def create(self, path, body):
        if self.refuses:
            raise RefusedError(self.refuses)
        known = [one["metadata"]["name"] for _, one in self.posted]
        if body["metadata"]["name"] in known:
            return False
        self.posted.append((path, body))
        self.meanwhile()
        return True

    def say(self, about, reason, message, *, warning):
        self.said.append((about["kind"], about["name"], reason, message))

    def write_status(self, _path, _version, status):
        self.written.append(status)


def test_a_busy_group_has_one_pod_moved_within_the_policys_limits():
    world = World()
    found = world.look(a=400, b=300, c=100, d=0)
    assert (found["status"], found["reason"]) == ("False", "Moving")
    ((path, body),) = world.posted
    assert path.endswith("/namespaces/shop/rebalancerequests")
    place = {"node": "n1", "group": "G23"}
    assert body["spec"]["move"] == {"pod": "a", "to": place}
    assert body["spec"]["budget"] == {"moves": 1, "seconds": 60}
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u-p"
    (event,) = world.said
    assert event[:3] == ("CheckpointPolicy", "p", "Rebalancing")
    assert "group G01 of n1 is busy 80%" in event[3]
    assert world.asked().policy == "u-p"


def test_until_the_watch_tells_of_it_and_for_an_interval_no_other_is_asked_for():
    world = World()
    world.look(a=400, b=300)
    assert world.look(a=300, b=400)["reason"] == "Moving"
    assert len(world.posted) == len(world.said) == 1
    world.asked()
    assert world.look(a=300, b=400)["reason"] == "Moving"
    ends = {"completionTime": "2026-01-02T00:00:00Z"}
    ends["conditions"] = [{"type": "Complete", "status": "True", "reason": "Moved"}]
    world.asked(**ends)
    world.now += 1799
    assert world.look(a=300, b=400)["reason"] == "Settling"
    world.now += 1
    assert world.look(a=300, b=400)["reason"] == "Moving"
    assert len(world.posted) == 2


def test_who_has_no_owner_or_is_of_no_policy_stays():
    world = World()
    found = world.look(c=400, d=400, a=10)
    assert (found["status"], found["reason"], world.posted) == ("False", "NoBetterPlace", [])
    found = world.look(a=100)
    assert (found["status"], found["reason"]) == ("True", "Even")


def test_what_may_not_be_asked_for_is_told_and_holds_up_nothing():
    world = World()
    world.refuses = "exceeded quota"
    found = world.look(a=400, b=300)
    assert (found["status"], found["reason"], world.said) == ("False", "Refused", [])
    assert "exceeded quota" in found["message"]
    world.refuses = ""
    assert world.look(a=400, b=300)["reason"] == "Moving"


def test_of_two_policies_that_are_looked_at_at_once_one_moves_a_pod_of_the_node():
    world, told = World(), []
    world.policies.on_event("ADDED", policy("q", app="d", above=50, every="30m"))

    def meanwhile():
        world.meanwhile = lambda: None
        told.append(world.look("q", a=300, d=300)["reason"])

    world.meanwhile = meanwhile
    world.look(a=300, d=300)
    assert (told, len(world.posted)) == (["Settling"], 1), "another thread looks at it"
    assert world.look("q", a=300, d=300)["reason"] == "Settling", "no watch has told of it yet"
    world.now += 61
    assert world.look("q", a=300, d=300)["reason"] == "Moving", "it was gone at once"


def test_what_never_began_leaves_the_node_to_other_policies():
    world = World()
    world.policies.on_event("ADDED", policy("q", app="d", above=50, every="30m"))
    world.look(a=300, d=300)
    ends = {"completionTime": "2026-01-02T00:00:00Z"}
    ends["conditions"] = [{"type": "Complete", "status": "False", "reason": "NoPlan"}]
    world.asked(**ends)
    assert world.look(a=300, d=300)["reason"] == "Settling", "it asks once in its interval"
    assert world.look("q", a=300, d=300)["reason"] == "Moving"


def test_who_takes_a_moves_name_is_told_of():
    world = World()
    world.look(a=400, b=300)
    taken = {**world.posted[-1][1]["metadata"], "namespace": "shop", "ownerReferences": []}
    meta = {**taken, "uid": "r2", "resourceVersion": "2"}
    meta["creationTimestamp"] = "2026-01-02T00:00:00Z"
    spec = {**world.posted[-1][1]["spec"], "requestedBy": "mallory"}
    world.moves.on_event("ADDED", {"metadata": meta, "spec": spec})
    for _ in range(2):
        found = world.look(a=400, b=300)
        assert (found["status"], found["reason"]) == ("False", "Refused")
        assert f"RebalanceRequest {taken['name']} is there" in found["message"]


def test_a_request_that_claims_to_be_a_policys_is_not_believed():
    world = World()
    world.look(a=400, b=300)
    body = world.posted[-1][1]
    meta = {**body["metadata"], "namespace": "shop", "uid": "r2", "resourceVersion": "2"}
    item = {"metadata": {**meta, "creationTimestamp": "2026-01-02T00:00:00Z"}}
    world.moves.on_event("ADDED", {**item, "spec": {**body["spec"], "requestedBy": "mallory"}})
    (found,) = world.moves.all()
    assert found.policy == ""


def test_a_policy_without_the_field_says_nothing_of_it():
    world = World()
    plain = policy()
    plain["spec"] = {"selector": {}, "turn": {"mode": "always"}}
    world.policies.on_event(
        "MODIFIED", {**plain, "metadata": {**plain["metadata"], "generation": 2}}
    )
    world.nodes.on_event("MODIFIED", node(a=900, b=900))
    world.worker.look(("shop", "p"))
    assert [one["type"] for one in world.written[-1]["conditions"]] == ["Ready"]
    assert world.posted == []
