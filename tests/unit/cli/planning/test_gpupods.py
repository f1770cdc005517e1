"""Which pods have GPUs, how many, and the workload that each is of."""

from __future__ import annotations

import pytest

from kybernate import keys
from kybernate.api.pods import read_pod
from kybernate.cli.planning.gpupods import gpu_pods, gpus_of
from kybernate.core.simulate.history import GpuPod, History, Unseen, by_owner


def pod(name, *containers, owner=None, **spec):
    meta = {"name": name, "namespace": "team", "ownerReferences": [owner] if owner else []}
    return {"metadata": meta, "spec": {"containers": list(containers), **spec}}


def vendor(amount, field="limits"):
    return {"name": "c", "resources": {field: {keys.VENDOR_RESOURCE: amount}}}


def ref(kind, name):
    return {"kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def made(name, owner=None):
    return {"metadata": {"uid": f"uid-{name}", "ownerReferences": [owner] if owner else []}}


@pytest.mark.parametrize(
    ("found", "gpus"),
    [
        (pod("a", vendor("2"), vendor("1")), 3),
        (pod("a", vendor(2, "requests")), 2),
        (pod("a", {"resources": {"limits": {keys.seat_resource(4): "1"}}}), 4),
        (pod("a", vendor("1"), initContainers=[vendor("4")]), 4),
        (pod("a", {"name": "c"}), 0),
        (pod("a", {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}), 0),
        (pod("a", vendor("many"), vendor("-1"), vendor("²")), 0),
        (pod("a", {"resources": 3}), 0),
    ],
)
def test_whole_gpus_count_however_they_are_asked_for(found, gpus):
    assert gpus_of(read_pod(found)) == gpus


def test_a_pod_is_of_the_topmost_object_that_made_it():
    there = [
        pod("chat-1-x", vendor("1"), owner=ref("ReplicaSet", "chat-1")),
        pod("db-0", vendor("1"), owner=ref("StatefulSet", "db")),
        pod("nightly-7-y", vendor("1"), owner=ref("Job", "nightly-7")),
        pod("once-z", vendor("1"), owner=ref("Job", "once")),
        pod("bare", vendor("1")),
        pod("web", {"name": "c"}, owner=ref("ReplicaSet", "chat-1")),
        {**pod("over", vendor("1")), "status": {"phase": "Succeeded"}},
    ]
    between = [
        made("chat-1", ref("Deployment", "chat")),
        made("nightly-7", ref("CronJob", "nightly")),
        made("once"),
    ]
    assert [(one.name, one.kind, one.owner) for one in gpu_pods(there, between)] == [
        ("chat-1-x", "Deployment", "chat"),
        ("db-0", "StatefulSet", "db"),
        ("nightly-7-y", "CronJob", "nightly"),
        ("once-z", "Job", "once"),
        ("bare", "Pod", "bare"),
    ]


def test_owners_in_a_circle_end():
    there = [pod("a", vendor("1"), owner=ref("X", "x"))]
    between = [made("x", ref("Y", "y")), made("y", ref("X", "x"))]
    assert [one.name for one in gpu_pods(there, between)] == ["a"]


def seen(name):
    return History(name, "team", 1, 1024.0, {60.0: 0.5})


def test_histories_are_named_by_their_workload_and_those_without_are_told():
    pods = [
        GpuPod("team", "chat-b", "Deployment", "chat", 1),
        GpuPod("team", "chat-a", "Deployment", "chat", 1),
        GpuPod("team", "chat-c", "Deployment", "chat", 1),
        GpuPod("team", "one-x", "Deployment", "one", 1),
        GpuPod("team", "one-0", "StatefulSet", "one", 2),
        GpuPod("other", "chat-a", "Job", "chat", 4),
    ]
    day = [seen("chat-a"), seen("chat-c"), seen("one-x"), seen("gone"), seen("one-0")]
    found, unseen = by_owner(day, pods)
    assert {(one.name, one.owner) for one in found} == {
        ("chat (1 of 3)", "Deployment/chat"),
        ("chat (3 of 3)", "Deployment/chat"),
        ("Deployment one", "Deployment/one"),
        ("StatefulSet one", "StatefulSet/one"),
        ("gone", ""),
    }
    assert unseen == [
        Unseen("other", "Job/chat", 1, 4),
        Unseen("team", "Deployment/chat", 1, 1),
    ]
