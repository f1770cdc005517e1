"""Pods that go on from a saved state are placed near it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.http import decode
from extender.state.snapshot import Snapshot
from extender.state.states import States
from kybernate import keys
from kybernate.api.nodeseats import read_gpu_node
from kybernate.core.placement import Demand
from kybernate.core.tiers.tiers import StoredArtifact
from kybernate.core.views.explain import explain
from kybernate.types import ArtifactId, NodeName, PodUid, Tier
from tests.unit.extender.objects import GIB, ONE, gpu_node, pod

if TYPE_CHECKING:
    from kybernate.core.tiers.tiers import Artifact

OLD, NEW = (ArtifactId(f"default/a@2026010{day}T000000Z-00000001") for day in (1, 2))
NODES = [NodeName(f"n{at}") for at in range(8)]


def row(artifact: str = NEW, tier: str = "nvme", size: Any = 40 * GIB) -> dict[str, Any]:
    return {"artifact": artifact, "uid": "uid-a", "tier": tier, "bytes": size}


def cluster(source: str | None, *rows: dict[str, Any], at: int = 5) -> tuple[Snapshot, Demand]:
    """Eight nodes alike but for what the one at `at` has saved, and a pod that waits."""
    snapshot = Snapshot(lambda: 0.0)
    for number, name in enumerate(NODES):
        snapshot.node_event("ADDED", gpu_node(name, saved=list(rows) if number == at else []))
    notes = {keys.VRAM: "40Gi", **({keys.RESTORE_FROM: source} if source else {})}
    snapshot.pod_event("ADDED", pod("w", notes=notes))
    known = snapshot.pod(PodUid("uid-w"))
    assert known is not None
    assert known.demand is not None
    return snapshot, known.demand


def offered(snapshot: Snapshot, demand: Demand) -> NodeName:
    known = snapshot.pod(PodUid("uid-w"))
    assert known is not None
    return snapshot.offer(known.ref, demand, NODES, 1).passed[0]


@pytest.mark.parametrize("source", [NEW, "pod/uid-a"])
def test_the_node_that_holds_the_state_is_offered_first(source: str) -> None:
    snapshot, demand = cluster(source, row())
    points = snapshot.points(PodUid("uid-w"), demand, NODES)
    assert max(points) == points[5] > points[4]
    assert offered(snapshot, demand) == NODES[5]
    assert snapshot.best(PodUid("uid-w"), demand, NODES[5]) is not None


def test_it_is_so_among_nodes_of_many_shapes_at_the_first_call() -> None:
    """Of those only a few are ranked per call."""
    snapshot, demand = cluster(NEW, row())
    for number, name in enumerate(NODES):
        notes = {keys.ASSIGNED_GROUP: "G01", keys.VRAM: f"{number + 1}Gi"}
        limits = {"kyb.ai/gpu-2x-seat": "1"}
        item = pod(f"x{number}", node=name, notes=notes, limits=limits)
        snapshot.pod_event("ADDED", item)
    assert offered(snapshot, demand) == NODES[5]


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (None, [row()]),
        (NEW, []),
        ("pod/uid-b", [row()]),
        (OLD, [row()]),
        ("no artifact", [row()]),
        (NEW, [row(tier="object")]),
        (NEW, [row(tier="ram"), row(size="x"), row(size=0), row(tier="")]),
    ],
)
def test_without_a_state_there_all_nodes_are_alike(
    source: str | None, rows: list[dict[str, Any]]
) -> None:
    snapshot, demand = cluster(source, *rows)
    assert len(set(snapshot.points(PodUid("uid-w"), demand, NODES))) == 1
    assert offered(snapshot, demand) == NODES[0]


def test_a_pod_that_names_no_state_is_placed_as_if_there_were_none() -> None:
    (with_states, demand), (without, same) = cluster(None, row()), cluster(None)
    assert demand == same
    views = [one.views([NODES[5]])[NODES[5]] for one in (with_states, without)]
    assert views[0] is not None
    assert views[1] is not None
    assert views[0].shape[1:] == views[1].shape[1:]  # the first is a number of the ledger's own
    other = with_states.views([NODES[4]])[NODES[4]]
    assert other is not None
    assert other.shape == views[0].shape
    assert not views[0].holds


def test_a_node_that_has_gone_or_dropped_it_is_none_to_go_to() -> None:
    snapshot, demand = cluster(NEW, row())
    snapshot.node_event("MODIFIED", gpu_node(NODES[5]))
    assert offered(snapshot, demand) == NODES[0]
    snapshot, demand = cluster(NEW, row())
    snapshot.node_event("DELETED", gpu_node(NODES[5]))
    snapshot.node_event("ADDED", gpu_node(NODES[5]))
    assert offered(snapshot, demand) == NODES[0]


def test_a_full_node_is_not_offered_for_all_that_lies_on_it() -> None:
    snapshot, demand = cluster(NEW, row())
    for group in ("G0", "G0", "G1", "G1"):
        notes = {keys.ASSIGNED_GROUP: group, keys.VRAM: "1Gi"}
        name = f"y{len(snapshot.pods())}"
        snapshot.pod_event("ADDED", pod(name, node=NODES[5], notes=notes))
    found = snapshot.offer(pod_ref(snapshot), demand, NODES)
    assert NODES[5] not in found.passed
    assert snapshot.offer(pod_ref(snapshot), demand, found.passed, 1).passed == [NODES[0]]


def pod_ref(snapshot: Snapshot) -> Any:
    known = snapshot.pod(PodUid("uid-w"))
    assert known is not None
    return known.ref


def test_the_explanation_says_where_the_state_lies_and_what_it_takes() -> None:
    snapshot, demand = cluster(NEW, row())
    uid = PodUid("uid-w")
    views = snapshot.views(NODES, without=uid)
    found = explain(snapshot.expecting(uid, demand), views)
    said = {line.examples: line.sentence for line in found.lines if line.group == "G0"}
    assert len(said) == 2
    for nodes, sentence in said.items():
        there = nodes == (NODES[5],)
        assert ("its artifact lies there, and takes about" in sentence) is there
        assert "s into the GPUs" in sentence
    plain = explain(Demand(ONE, 40 * GIB), snapshot.views(NODES))
    assert not any("artifact" in line.sentence for line in plain.lines)


def test_what_is_saved_is_read_the_same_from_a_watch() -> None:
    item = gpu_node(saved=[row(), row(OLD, "object"), "none", {"tier": "nvme", "bytes": 1 << 63}])
    read = read_gpu_node(item, 0)
    event = decode.gpu_nodes(orjson.dumps({"type": "ADDED", "object": item}))
    assert event is not None
    assert read.saved == read_gpu_node(event["object"], 0).saved
    assert [one.artifact for one in read.saved] == [NEW, OLD]
    assert read.not_ready is None


def test_of_a_pod_the_newest_state_counts() -> None:
    states = States()
    a = (StoredArtifact(OLD, PodUid("u"), Tier.NVME, GIB),)
    b = (
        StoredArtifact(NEW, PodUid("u"), Tier.NVME, GIB),
        StoredArtifact(NEW, PodUid("u"), Tier.OBJECT, 9),
    )
    states.take(NODES[0], a)
    states.take(NODES[1], b)
    assert states.on_nodes("pod/u").keys() == {NODES[1]}
    assert [(one.tier, one.node) for one in states.of("pod/u")] == [
        (Tier.NVME, NODES[1]),
        (Tier.OBJECT, None),
    ]
    assert states.on_nodes(OLD).keys() == {NODES[0]}


SAVED = st.builds(
    StoredArtifact,
    st.sampled_from([OLD, NEW]),
    st.sampled_from([PodUid("u"), PodUid("v")]),
    st.sampled_from([Tier.NVME, Tier.OBJECT]),
    st.integers(1, 1 << 40),
)
TOLD = st.lists(
    st.tuples(st.sampled_from(NODES[:3]), st.lists(SAVED, max_size=3).map(tuple)), max_size=12
)


@given(TOLD)
def test_only_what_was_told_last_counts(
    told: list[tuple[NodeName, tuple[StoredArtifact, ...]]],
) -> None:
    states, fresh = States(), States()
    for node, saved in told:
        states.take(node, saved)
    for node, saved in dict(told).items():
        fresh.take(node, saved)

    def known(one: States) -> list[tuple[Artifact, ...]]:
        return [one.of(source) for source in (OLD, NEW, "pod/u", "pod/v")]

    assert known(states) == known(fresh)
    for node in NODES[:3]:
        states.take(node, ())
    assert known(states) == [()] * 4
