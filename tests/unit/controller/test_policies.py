"""Policies and pods as the controller remembers them, and which of them are looked at."""

from __future__ import annotations

import math

import pytest

from controller.balances import Balances
from controller.base.kinds import CHECKPOINT, REBALANCE
from controller.base.known import Nodes, Requests
from controller.base.queue import Queue
from controller.policies import Policies, PolicyWorker
from kybernate import keys
from kybernate.api.watched.slim import slim_pod, slim_request
from kybernate.core.policy.effective import PutAway
from kybernate.core.requests import rebalance
from kybernate.core.requests.checkpoint import Mode, Request, Status, Target
from kybernate.errors import RefusedError
from kybernate.runtime.lead import Open
from kybernate.types import Tier


def policy(name="p", generation=1, **spec):
    meta = {
        "namespace": "shop",
        "name": name,
        "uid": f"u-{name}",
        "generation": generation,
        "resourceVersion": str(generation),
    }
    return {"metadata": meta, "spec": {"selector": {}, **spec}}


def pod(phase="Running", labels=None, limits=None, **more):
    meta = {"namespace": "shop", "name": "a", "uid": "u1", "labels": labels or {}, **more}
    asked = {keys.seat_resource(1): "1"} if limits is None else limits
    container = {"name": "main", "resources": {"limits": asked}, "env": [{"value": "secret"}]}
    return {
        "metadata": meta,
        "spec": {"containers": [container]},
        "status": {"phase": phase, "startTime": "1970-01-01T00:10:00Z"},
    }


def known():
    due = []
    return Policies(lambda key, _: due.append(key)), due


def test_what_a_pod_does_not_need_to_say_is_not_remembered():
    slim = slim_pod(pod(annotations={"long": "x" * 10_000}))
    assert "secret" not in str(slim)
    assert len(str(slim)) < 500


def test_pods_with_seats_are_known_until_they_have_ended():
    policies, _ = known()
    policies.on_pod("ADDED", slim_pod(pod("Pending")))
    (one,) = policies.pods("shop")
    assert (one.labelled.name, one.since) == ("a", math.inf)
    policies.on_pod("MODIFIED", slim_pod(pod()))
    assert [one.since for one in policies.pods("shop")] == [600.0]
    policies.on_pod("MODIFIED", slim_pod(pod(deletionTimestamp="2026-01-01T00:00:00Z")))
    assert [one.since for one in policies.pods("shop")] == [math.inf]
    policies.on_pod("MODIFIED", slim_pod(pod("Succeeded")))
    assert policies.pods("shop") == ()
    policies.on_pod("ADDED", slim_pod(pod(limits={})))
    assert policies.pods("shop") == ()


def test_policies_are_due_when_anything_changes_that_they_look_at_and_not_else():
    policies, due = known()
    policies.on_event("ADDED", policy(turn={"mode": "always"}))
    assert due == [("shop", "p")]
    policies.on_event("MODIFIED", policy(turn={"mode": "always"}))
    assert len(due) == 1, "its status was written"
    policies.on_pod("ADDED", slim_pod(pod()))
    policies.on_pod("MODIFIED", slim_pod(pod()))
    assert len(due) == 2
    policies.on_pod("MODIFIED", slim_pod(pod(labels={"app": "llm"})))
    assert len(due) == 3
    policies.on_event("ADDED", policy("q", turn={"mode": "auto"}))
    assert due[3:] == [("shop", "p"), ("shop", "q")]
    policies.on_event("DELETED", policy("q"))
    assert due[5:] == [("shop", "p")]
    assert [one.name for one in policies.counting("shop")] == ["p"]


def test_one_that_can_not_be_read_counts_for_nothing_and_says_why():
    policies, _ = known()
    policies.on_event("ADDED", policy(idle={"vram": "1ms"}))
    seen = policies.get(("shop", "p"))
    assert seen.says is None
    assert "not between 1s" in seen.wrong
    assert policies.counting("shop") == ()


def test_requests_of_policies_are_those_that_the_controller_has_made():
    requests = Requests(CHECKPOINT, lambda _: None)
    owner = {"kind": keys.CHECKPOINT_POLICY_KIND, "uid": "u-p"}
    for name, by in (("ours", keys.CONTROLLER_USER), ("forged", "mallory")):
        meta = {
            "namespace": "shop",
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [owner],
        }
        spec = {"pod": "a", "mode": "Snapshot", "requestedBy": by}
        requests.on_event("ADDED", slim_request({"metadata": meta, "spec": spec}))
    found = {one.name: one.policy for one in requests.of("shop")}
    assert found == {"ours": "u-p", "forged": ""}
    assert requests.of("other") == []


HOUR = 3600.0


class World:
    """A namespace with pod `a`, policy `p` and snapshots of it, the newest first; `full`: it may
    have no more requests."""

    def __init__(self, snapshots=3, **wanted):
        self.now, self.full = 1_767_225_600.0 + 24 * HOUR, False
        self.dropped, self.removed, self.made, self.written = [], [], [], []
        self.policies = Policies(lambda *_: None)
        self.requests = Requests(CHECKPOINT, lambda _: None)
        self.policies.on_pod("ADDED", slim_pod(pod()))
        self.say(**wanted)
        for number in range(snapshots):
            self.requests.on_event("ADDED", sealed(f"s{number}", number))
        moves = Requests(REBALANCE, lambda _: None)
        balances = Balances(moves, Nodes(), self, Open(), lambda: self.now)
        parts = Queue(), self.policies, self.requests, balances, self, self, Open()
        self.worker = PolicyWorker(*parts, lambda: self.now)

    def say(self, generation=1, **wanted):
        spec = {"every": "15m", **wanted}
        self.policies.on_event("MODIFIED", policy(generation=generation, snapshots=spec))

    def look(self):
        self.worker.look(("shop", "p"))

    @property
    def message(self):
        return self.written[-1]["conditions"][0]["message"]

    # --- Cluster
    def make(self, _policy, order, _tier):
        if self.full:
            raise RefusedError("exceeded quota: requests")
        self.made.append(order.name)

    def remove(self, request):
        self.removed.append(request.uid)

    def write_status(self, _path, _version, status):
        self.written.append(status)

    # --- Agents
    def drop(self, _node, name, _why):
        self.dropped.append(name)


def sealed(name, hours):
    """A snapshot of this many hours before the end of the day."""
    meta = {
        "namespace": "shop",
        "name": name,
        "uid": name,
        "resourceVersion": "1",
        "creationTimestamp": f"2026-01-01T{23 - hours:02}:00:00Z",
        "ownerReferences": [{"kind": keys.CHECKPOINT_POLICY_KIND, "uid": "u-p"}],
    }
    status = {
        "podUID": "u1",
        "node": "n1",
        "operation": f"ckpt-{name}",
        "startTime": f"2026-01-01T{23 - hours:02}:00:00Z",
        "completionTime": f"2026-01-01T{23 - hours:02}:01:00Z",
        "conditions": [{"type": "Complete", "status": "True", "reason": "Sealed"}],
    }
    spec = {"pod": "a", "mode": "Snapshot", "requestedBy": keys.CONTROLLER_USER}
    return slim_request({"metadata": meta, "spec": spec, "status": status})


def test_what_is_kept_no_longer_goes_and_the_next_one_is_made():
    world = World(keep={"last": 2})
    world.look()
    assert (world.dropped, world.removed) == (["ckpt-s2"], ["s2"])
    assert len(world.made) == 1
    assert world.written[-1]["governed"] == 1


def test_a_change_in_the_middle_of_a_look_drops_nothing_that_either_keeps():
    world = World(keep={"last": 3})
    policies, counting = world.policies, world.policies.counting
    policies.counting = lambda of: (world.say(2, keep={"last": 4}), counting(of))[1]
    world.look()
    assert world.dropped == []


def test_a_policy_that_does_not_count_drops_nothing():
    world = World(keep={"last": 3})
    for number in range(64):
        other = policy(f"first-{number}", precedence=1, turn={"mode": "always"})
        world.policies.on_event("ADDED", other)
    world.look()
    assert (world.dropped, world.made) == ([], [])
    assert world.written[-1]["conditions"][0]["reason"] == "TooMany"


def test_where_no_more_requests_may_be_old_ones_go_and_people_are_told():
    world = World(keep={"last": 2})
    world.full = True
    world.look()
    assert world.dropped == ["ckpt-s2"]
    assert "can't be asked for: exceeded quota" in world.message


def test_a_pod_whose_snapshot_can_not_begin_holds_up_no_other():
    world = World(snapshots=0)
    world.policies.on_pod("ADDED", slim_pod(pod(name="b", uid="u2")))
    stuck = sealed("r", 0)
    wrong = {"type": "Complete", "status": "False", "reason": "SeatNotReady"}
    del stuck["status"]["completionTime"], stuck["status"]["startTime"]
    stuck["status"]["conditions"] = [wrong]
    stuck["status"]["operation"] = "ckpt-r"
    world.requests.on_event("ADDED", stuck)
    world.look()
    assert len(world.made) == 1


def test_who_takes_a_snapshots_name_holds_up_no_other():
    world = World(snapshots=0)
    world.look()
    (name,) = world.made
    world.policies.on_pod("ADDED", slim_pod(pod(name="b", uid="u2")))
    taken = sealed(name, 0)
    taken["spec"]["requestedBy"] = "mallory"
    world.requests.on_event("ADDED", taken)
    world.look()
    assert len(set(world.made)) == 2


def test_the_policy_whose_limits_count_for_an_eviction():
    policies, _ = known()
    policies.on_pod("ADDED", slim_pod(pod(labels={"app": "llm"})))
    evicted = eviction()
    policies.on_event("ADDED", policy(turn={"mode": "auto"}, limits={"parallel": 1}))
    assert policies.limiting(evicted).limits == PutAway(1)
    others = {"matchLabels": {"app": "web"}}
    policies.on_event("ADDED", policy("q", precedence=9, selector=others, prefetch="never"))
    assert policies.limiting(evicted).name == "p"
    policies.on_event("ADDED", policy("r", precedence=9, prefetch="never"))
    assert policies.limiting(evicted).limits == PutAway(), "one policy governs, and it has none"
    policies.on_pod("DELETED", slim_pod(pod()))
    assert policies.limiting(evicted) is None


def eviction(name="evict-u1-1", by=keys.WEBHOOK_USER):
    told = Status("u1", "n1", "ckpt-r1")
    asked = ("r1", "shop", name, "a", Mode.EVICT, Tier.OBJECT, by, 1.0, 300.0)
    return Request(*asked, keep_s=None, status=told)


@pytest.mark.parametrize("name", ["preempt-u9-u1", "rbal-r9-u1"])
def test_a_tenants_limits_slow_no_preemption_and_no_nodes_emptying(name):
    policies, _ = known()
    policies.on_pod("ADDED", slim_pod(pod(labels={"app": "llm"})))
    policies.on_event("ADDED", policy(turn={"mode": "auto"}, limits={"parallel": 1}))
    assert policies.limiting(eviction(name, keys.CONTROLLER_USER)) is None
    assert policies.limiting(eviction(name, "mallory")).limits == PutAway(1), "names are anybody's"
    assert policies.limiting(eviction("zero-u1", keys.CONTROLLER_USER)).limits == PutAway(1)


def move(policy_uid="u-p", name="a"):
    spot = Target("n1", "G23")
    asked = ("m1", "shop", "balance-1", name, spot, "", rebalance.Budget(), "", "c", 1.0, 900.0)
    return rebalance.Request(*asked, None, rebalance.Status(), policy=policy_uid)


def test_until_when_a_move_is_its_policys_wish():
    policies, _ = known()
    assert policies.moves(move("")) == "", "a person's"
    assert "is gone" in policies.moves(move())
    policies.on_pod("ADDED", slim_pod(pod(labels={"app": "llm"})))
    policies.on_event("ADDED", policy(rebalance={"above": 50}))
    assert policies.moves(move()) == ""
    assert policies.moves(move(name="unknown")) == "", "its pod is for the plan to find"
    policies.on_event("ADDED", policy("q", precedence=9, prefetch="never"))
    assert policies.moves(move()) == "CheckpointPolicy p governs pod a no more"
    policies.on_event("DELETED", policy("q"))
    policies.on_event("MODIFIED", policy(generation=2, prefetch="never"))
    assert "has pods moved no more" in policies.moves(move())
