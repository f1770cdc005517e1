"""TierPlacements as the controller has seen them, which are looked at when, and what is written."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

from controller.base.queue import Queue
from controller.placements import Placements, PlacementWorker
from kybernate.core.requests.placement import CopyState, PlacementReason

KEY = "shop", "birch"
NOW = 1_767_225_600.0


def placement(name="birch", namespace="shop", uid="u-1", version="1", **status):
    meta = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": version}
    spec = {"selector": {"matchLabels": {"kyb.ai/model": name}}}
    found = {"metadata": {**meta, "generation": 1}, "spec": spec}
    return found | ({"status": status} if status else {})


def copied(*states):
    rows = [
        {"artifact": f"shop/birch@{at}", "tier": "nvme", "node": "n1", "operation": f"o-{at}"}
        | {"state": state}
        for at, state in enumerate(states)
    ]
    return {"copies": rows, "conditions": [{"type": "Ready", "reason": "Copying"}]}


def node(name, **labels):
    return {"metadata": {"name": name, "labels": labels}}


@pytest.fixture
def due():
    return []


@pytest.fixture
def placements(due):
    return Placements(lambda key, after: due.append((key, after)))


def test_each_change_is_looked_at_and_one_that_is_deleted_is_gone(placements, due):
    placements.on_event("ADDED", placement())
    assert placements.get(KEY).says.name == "birch"
    leaving = placement()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    placements.on_event("MODIFIED", leaving)
    assert placements.get(KEY) is None
    placements.on_event("DELETED", leaving)
    assert due == [(KEY, 0.0)] * 3


def test_artifacts_have_those_of_their_namespace_looked_at_together(placements, due):
    for namespace in ("shop", "lab"):
        placements.on_event("ADDED", placement(namespace=namespace))
    del due[:]
    placements.on_artifact("MODIFIED", {"metadata": {"namespace": "shop"}})
    (found,) = due
    assert found[0] == KEY
    assert found[1] > 0


def test_a_node_whose_labels_change_has_all_looked_at(placements, due):
    for namespace in ("shop", "lab"):
        placements.on_event("ADDED", placement(namespace=namespace))
    for kind, found, looks in (
        ("ADDED", node("n1", pool="h100"), 2),
        ("MODIFIED", node("n1", pool="h100"), 0),
        ("MODIFIED", node("n1", pool="l4"), 2),
        ("DELETED", node("n1", pool="l4"), 2),
        ("DELETED", node("n1"), 0),
    ):
        del due[:]
        placements.on_node(kind, found)
        assert len(due) == looks
        there = {} if kind == "DELETED" else {"n1": found["metadata"]["labels"]}
        assert placements.labels() == there


def test_what_a_write_was_answered_with_counts_unless_it_is_about_another_one(placements, due):
    placements.on_event("ADDED", placement())
    del due[:]
    placements.wrote(placement(uid="u-2", version="9"))
    assert placements.get(KEY).version == "1"
    placements.wrote(placement(version="2"))
    assert placements.get(KEY).version == "2"
    placements.wrote(placement("oak"))
    assert placements.get(("shop", "oak")) is None
    assert not due


def test_copies_and_reasons_are_counted_of_what_can_be_read(placements):
    placements.on_event("ADDED", placement(**copied("There", "Copying")))
    spoilt = placement("oak", **copied("There"))
    spoilt["spec"]["newest"] = 0
    placements.on_event("ADDED", spoilt)
    assert placements.wanted() == {"o-0", "o-1"}
    assert placements.copies(CopyState.THERE) == placements.copies(CopyState.COPYING) == 1
    assert placements.number(PlacementReason.COPYING) == 2
    assert placements.number(PlacementReason.PLACED) == 0


class Cluster(SimpleNamespace):
    """An API server with one TierPlacement."""

    def write_status(self, path, version, status):
        self.paths.append(path)
        assert version == self.item["metadata"]["resourceVersion"]
        self.item = copy.deepcopy(self.item) | {"status": status}
        self.item["metadata"]["resourceVersion"] = str(int(version) + 1)
        return self.item

    def say(self, about, reason, _message, *, warning):
        self.events.append((about, reason, warning))


def test_a_reason_is_written_and_told_once():
    cluster = Cluster(item=placement(), paths=[], events=[])
    cluster.item["spec"]["newest"] = 0
    queue, known = Queue(), Placements(lambda *_: None)
    known.on_event("ADDED", cluster.item)
    fence = SimpleNamespace(check=lambda: None)
    worker = PlacementWorker(queue, known, None, None, None, cluster, None, fence, lambda: NOW)
    worker.look(KEY)
    worker.look(KEY)
    assert cluster.paths == ["/apis/kyb.ai/v1alpha1/namespaces/shop/tierplacements/birch"]
    ((about, reason, warning),) = cluster.events
    assert about == {
        "apiVersion": "kyb.ai/v1alpha1",
        "kind": "TierPlacement",
        "namespace": "shop",
        "name": "birch",
        "uid": "u-1",
    }
    assert (reason, warning) == (PlacementReason.INVALID.value, True)
    cluster.item["spec"]["newest"] = 1
    known.on_event("MODIFIED", cluster.item)
    worker.look(KEY)
    assert [one[1:] for one in cluster.events[1:]] == [(PlacementReason.NO_REGISTRY.value, False)]
