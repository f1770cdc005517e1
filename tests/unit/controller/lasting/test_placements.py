"""TierPlacements as the controller has seen them, which are looked at when, and what is written."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

from controller.base.known import Nodes
from controller.base.queue import Queue
from controller.placements import Placements, PlacementWorker
from kybernate.api.watched.nodefacts import slim_node
from kybernate.core.artifacts.listed import HeldCopy, Listed
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


def test_what_a_write_was_answered_with_counts_unless_more_was_told_since(placements, due):
    placements.on_event("ADDED", placement())
    del due[:]
    first = placements.get(KEY)
    placements.wrote(first, placement(version="2"))
    assert placements.get(KEY).version == "2"
    placements.on_event("MODIFIED", placement(version="4"))
    placements.wrote(first, placement(version="3"))
    assert placements.get(KEY).version == "4", "nobody would tell of that again"
    placements.on_event("ADDED", placement(uid="u-2", version="9"))
    placements.wrote(first, placement(version="5"))
    assert placements.get(KEY).uid == "u-2"
    placements.wrote(first, placement("oak"))
    assert placements.get(("shop", "oak")) is None


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


class Site:
    """A controller with two TierPlacements, and one artifact of each on the NVMe of n1."""

    def __init__(self):
        self.items = {name: placement(name) for name in ("birch", "oak")}
        for item in self.items.values():
            item["spec"]["copies"] = {"object": 0}
        self.begin()

    def begin(self):
        """The controller starts."""
        self.known, self.nodes = Placements(lambda *_: None), Nodes()
        for item in self.items.values():
            self.known.on_event("ADDED", item)
        tiers = [{"name": "nvme", "budgetBytes": 100}]
        gpunode = {"metadata": {"name": "n1"}, "status": {"tiers": tiers}}
        self.nodes.on_event("ADDED", slim_node(gpunode))
        shown = {}
        for name in self.items:
            held = (HeldCopy("nvme", "n1", "verified", 40),)
            one = Listed(f"shop/{name}@1", name, "u", name, 40, 1, held)
            shown["shop", name] = one
        artifacts, agents = SimpleNamespace(all=lambda: shown), SimpleNamespace()
        fence = SimpleNamespace(check=lambda: None)
        self.worker = PlacementWorker(
            Queue(), self.known, artifacts, self.nodes, object, self, agents, fence, lambda: NOW
        )

    def write_status(self, path, version, status):
        name = path.rpartition("/")[2]
        item = self.items[name] = copy.deepcopy(self.items[name]) | {"status": status}
        item["metadata"]["resourceVersion"] = str(int(version) + 1)
        return item

    def say(self, *_, **__):
        """See `Cluster.say`."""

    def look(self, name):
        self.worker.look(("shop", name))
        status = self.items[name]["status"]
        return status["conditions"][0]["reason"], status["artifacts"]


def test_pins_of_all_tierplacements_share_half_of_a_nodes_nvme():
    site = Site()
    assert site.look("oak") == ("Placed", ["shop/oak@1"])
    assert site.look("birch") == ("NoRoomToPin", [])
    site.known.on_event("DELETED", site.items.pop("oak"))
    site.worker.look(("shop", "oak"))
    assert site.look("birch") == ("Placed", ["shop/birch@1"])


def test_a_controller_that_has_started_pins_nothing_before_it_knows_what_others_pin():
    site = Site()
    site.look("oak")
    site.begin()
    assert site.look("birch") == ("NoRoomToPin", [])
    assert site.look("oak") == ("Placed", ["shop/oak@1"]), "what is pinned stays so"
    assert site.look("birch") == ("NoRoomToPin", [])
