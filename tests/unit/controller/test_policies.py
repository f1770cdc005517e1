"""Policies and pods as the controller remembers them, and which of them are looked at."""

from __future__ import annotations

import math

from controller.known import Requests, slim_request
from controller.policies import Policies, slim_pod
from kybernate import keys


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
    policies.on_policy("ADDED", policy(turn={"mode": "always"}))
    assert due == [("shop", "p")]
    policies.on_policy("MODIFIED", policy(turn={"mode": "always"}))
    assert len(due) == 1, "its status was written"
    policies.on_pod("ADDED", slim_pod(pod()))
    policies.on_pod("MODIFIED", slim_pod(pod()))
    assert len(due) == 2
    policies.on_pod("MODIFIED", slim_pod(pod(labels={"app": "llm"})))
    assert len(due) == 3
    policies.on_policy("ADDED", policy("q", turn={"mode": "auto"}))
    assert due[3:] == [("shop", "p"), ("shop", "q")]
    policies.on_policy("DELETED", policy("q"))
    assert due[5:] == [("shop", "p")]
    assert [one.name for one in policies.counting("shop")] == ["p"]


def test_one_that_can_not_be_read_counts_for_nothing_and_says_why():
    policies, _ = known()
    policies.on_policy("ADDED", policy(idle={"vram": "1ms"}))
    seen = policies.get(("shop", "p"))
    assert seen.policy is None
    assert "not between 1s" in seen.wrong
    assert policies.counting("shop") == ()


def test_requests_of_policies_are_those_that_the_controller_has_made():
    requests = Requests(lambda _: None)
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
