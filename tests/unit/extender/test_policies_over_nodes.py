"""What each named policy does with seats over nodes, as the scheduler asks: over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from extender.http.app import Verbs, create_app
from extender.state.snapshot import Snapshot
from kybernate.core.placement import Table
from kybernate.types import NodeName, PodUid
from tests.unit.extender.objects import GIB, ONE, pod, read_pod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from extender.bind.binder import Binder
    from tests.unit.extender.conftest import Clock

SEATS = 4
Used = tuple[int, ...]
"""Seats that are taken, by GPU; each has SEATS."""


def seats_node(name: str, gpus: int, memory: int = 80 * GIB) -> dict[str, Any]:
    uuids = [f"GPU-{name}-{at}" for at in range(gpus)]
    return {
        "metadata": {"name": name, "resourceVersion": "3"},
        "status": {
            "gpus": [
                {"index": at, "uuid": u, "product": "X", "memoryBytes": memory, "healthy": True}
                for at, u in enumerate(uuids)
            ],
            "links": [],
            "groups": [
                {"name": f"G{at}", "resource": ONE, "gpus": [u], "seats": SEATS, "activeSlots": 1}
                for at, u in enumerate(uuids)
            ],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


class Cluster:
    """Nodes as said, and what the extender answers about them."""

    def __init__(self, clock: Clock, binder: Binder, policy: str, used: Mapping[str, Used]) -> None:
        self.clock = clock
        self.snapshot = Snapshot(clock, table=Table(policy))
        for name, gpus in used.items():
            self.add(name, gpus)
        verbs = Verbs(self.snapshot, binder, most=1)
        app = create_app(verbs, lambda: None, lambda _environ: None, 100_000)
        self.client = app.test_client()
        self.names = sorted(used, reverse=True)

    def add(self, name: str, used: Used, memory: int = 80 * GIB) -> None:
        self.snapshot.node_event("ADDED", seats_node(name, len(used), memory))
        for at, taken in enumerate(used):
            for number in range(taken):
                self.bound(f"{name}-{at}-{number}", name, f"G{at}")

    def bound(self, name: str, node: str, group: str) -> None:
        item = pod(name, node=node, notes={"kyb.ai/group": group})
        self.snapshot.pod_event("ADDED", item)

    def ask(self, verb: str, item: dict[str, Any]) -> Any:
        body = {"Pod": item, "NodeNames": self.names}
        answer = self.client.post(verb, json=body)
        assert answer.status_code == 200, answer.text
        # What was offered is held for seconds only.
        self.clock.now += 60
        return answer.get_json()

    def offered(self, item: dict[str, Any]) -> str:
        """The one node that filter offers."""
        (node,) = self.ask("/filter", item)["NodeNames"]
        return str(node)

    def group(self, item: dict[str, Any], node: str) -> str:
        """The group that the pod would get there."""
        demand = read_pod(item).demand
        assert demand is not None
        found = self.snapshot.best(PodUid(item["metadata"]["uid"]), demand, NodeName(node))
        assert found is not None
        assert found[1] is not None
        return found[1]

    def preferred(self, item: dict[str, Any]) -> Sequence[str]:
        """The nodes that prioritize gives the most points."""
        points = {one["Host"]: one["Score"] for one in self.ask("/prioritize", item)}
        assert all(0 <= one <= 10 for one in points.values())
        return [name for name, one in points.items() if one == max(points.values())]


FULL, HALF, EMPTY = (4, 4, 4, 4), (4, 4, 0, 0), (0, 0, 0, 0)
TWELVE = (4, 4, 4, 0)


@pytest.mark.parametrize(
    ("policy", "used", "node"),
    [
        ("first-fit", {"a": HALF, "b": EMPTY, "c": (1, 0, 0, 0)}, "a"),
        ("first-fit", {"a": (4, 4, 4, 3), "b": EMPTY}, "a"),
        ("first-fit", {"a": FULL, "b": HALF, "c": EMPTY}, "b"),
        ("best-fit", {"a": EMPTY, "b": HALF, "c": TWELVE, "d": FULL}, "c"),
        ("best-fit", {"a": EMPTY, "b": (1, 1, 1, 1)}, "b"),
        # The least left over, in seats: also where the node that has it is empty.
        ("best-fit", {"a": (3,) * 8, "b": (0,)}, "b"),
        ("worst-fit", {"a": TWELVE, "b": EMPTY, "c": HALF}, "b"),
        ("worst-fit", {"a": (2,) * 8, "b": (0,) * 2}, "a"),
        ("bin-pack", {"a": EMPTY, "b": HALF}, "b"),
        ("bin-pack", {"a": (3, 0, 0, 0), "b": (2, 2, 2, 2)}, "b"),
        # An empty node is opened last, however small it is.
        ("bin-pack", {"a": (0,), "b": (1,) * 8}, "b"),
        ("spread", {"a": TWELVE, "b": EMPTY}, "b"),
        ("spread", {"a": TWELVE, "b": (1, 1, 1, 1)}, "b"),
        # By the part that is taken, not by the number.
        ("spread", {"a": (2,), "b": (1,) * 8}, "b"),
    ],
)
def test_a_seat_is_on_the_node_that_the_policys_name_says(
    clock: Clock, binder: Binder, policy: str, used: dict[str, Used], node: str
) -> None:
    cluster = Cluster(clock, binder, policy, used)
    assert cluster.offered(pod()) == node
    assert cluster.preferred(pod()) == [node]


@pytest.mark.parametrize(
    ("policy", "filled"),
    [
        ("first-fit", [16, 4, 0]),
        ("best-fit", [16, 4, 0]),
        ("bin-pack", [16, 4, 0]),
        ("spread", [7, 7, 6]),
        ("worst-fit", [7, 7, 6]),
    ],
)
def test_twenty_pods_one_after_the_other(
    clock: Clock, binder: Binder, policy: str, filled: list[int]
) -> None:
    cluster = Cluster(clock, binder, policy, dict.fromkeys("abc", EMPTY))
    taken = dict.fromkeys("abc", 0)
    for number in range(20):
        item = pod(f"new{number}", notes={"kyb.ai/policy": policy})
        cluster.names.reverse()
        node = cluster.offered(item)
        cluster.bound(f"new{number}", node, cluster.group(item, node))
        taken[node] += 1
    assert sorted(taken.values(), reverse=True) == filled
    if policy == "first-fit":
        assert list(taken.values()) == filled


def test_best_fit_spares_large_gpus_before_it_looks_at_how_full_nodes_are(
    clock: Clock, binder: Binder
) -> None:
    cluster = Cluster(clock, binder, "best-fit", {"a": TWELVE, "b": HALF})
    cluster.add("c", EMPTY, memory=24 * GIB)
    cluster.names.append("c")
    small, large = (pod(notes={"kyb.ai/vram": size}) for size in ("20Gi", "30Gi"))
    assert (cluster.offered(small), cluster.preferred(small)) == ("c", ["c"])
    assert (cluster.offered(large), cluster.preferred(large)) == ("a", ["a"])


def test_no_node_gets_a_point_if_none_can_take_the_pod(clock: Clock, binder: Binder) -> None:
    cluster = Cluster(clock, binder, "bin-pack", {"a": FULL, "b": FULL})
    assert cluster.ask("/filter", pod())["NodeNames"] == []
    assert {one["Score"] for one in cluster.ask("/prioritize", pod())} == {0}


def test_a_wish_of_the_pod_counts_before_the_policy(clock: Clock, binder: Binder) -> None:
    cluster = Cluster(clock, binder, "bin-pack", {"a": TWELVE, "b": (0, 0, 0, 4)})
    wish = pod(notes={"kyb.ai/prefer-group": "G1"})
    assert (cluster.offered(wish), cluster.preferred(wish)) == ("b", ["b"])
