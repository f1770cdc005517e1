"""Why a pod has no seat: counted by reason, per group, and what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate import keys
from kybernate.core.ledger.ledger import Claim, Ledger, NodeSeats, NodeView
from kybernate.core.placement import Demand, candidates
from kybernate.core.swap.forecast import Traffic
from kybernate.core.views.explain import (
    EXAMPLES,
    FITS,
    NO_NODE,
    SHAPES,
    explain,
    kinds,
    short,
    tell,
)
from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link, NodeName, PodRef, PodUid

GIB = 1 << 30
ONE, TWO = keys.seat_resource(1), keys.seat_resource(2)
G01 = GroupName("G01")


def node(name: str = "n1", seats: int = 1, **changes: object) -> NodeSeats:
    """Two GPUs of 80 GiB: G0 and G1, and G01."""
    gpus = tuple(Gpu(GpuUuid(f"{name}-{i}"), i, "H100", 80 * GIB) for i in (0, 1))
    groups = (
        *(Group(GroupName(f"G{gpu.index}"), ONE, (gpu.uuid,), seats) for gpu in gpus),
        Group(G01, TWO, (gpus[0].uuid, gpus[1].uuid), seats),
    )
    return replace(NodeSeats(NodeName(name), gpus, {}, groups), **changes)  # type: ignore[arg-type]


def claim(
    pod: str, group: str = "G01", on: str = "n1", gib: int | None = 24, **more: object
) -> Claim:
    resource = TWO if group == "G01" else ONE
    ref = PodRef("default", pod, PodUid(f"uid-{pod}"))
    vram = None if gib is None else gib * GIB
    return Claim(ref, NodeName(on), GroupName(group), resource, vram, **more)  # type: ignore[arg-type]


def ledger(*nodes: NodeSeats, claims: tuple[Claim, ...] = ()) -> dict[NodeName, NodeView | None]:
    made = Ledger()
    for one in nodes:
        made.upsert_node(one)
    for one in claims:
        made.upsert_claim(one)
    return {one.name: made.node(one.name) for one in nodes}


def test_nodes_are_counted_by_reason_and_a_pod_is_named_that_would_make_room() -> None:
    nodes = [node(f"n{i:02}") for i in range(12)]
    odd = [node(f"x{i}", not_ready="it is being drained") for i in range(3)]
    taken = tuple(claim(f"llama-{one.name}", on=one.name, gib=40) for one in nodes)
    small = replace(taken[7], vram=24 * GIB)
    found = explain(Demand(TWO), ledger(*nodes, *odd, claims=(*taken[:7], small, *taken[8:])))
    assert found.summary == (
        "12 nodes: no free 2x seat; 3: no new seats are taken; suspending default/llama-n07 (48Gi) "
        "would fit it on n07, group G01"
    )
    assert (found.nodes, found.fits) == (15, 0)
    assert found.counts == (("seat", 12), ("ready", 3))
    line = found.lines[0]
    assert (line.kind, line.group, line.nodes) == ("seat", "G01", 12)
    assert line.sentence == "all 1 seats of G01 are taken"
    assert line.examples == ("n00", "n01", "n02", "n03", "n04")
    assert len(line.examples) == EXAMPLES


def test_of_very_many_different_nodes_some_are_told_group_by_group_and_all_are_counted() -> None:
    nodes = [node(f"n{i:03}", park_budget=i * GIB) for i in range(SHAPES + 50)]
    found = explain(Demand(TWO), ledger(*nodes))
    assert found.counts == ((FITS, SHAPES + 50),)
    assert sum(line.nodes for line in found.lines) == SHAPES


def test_each_group_has_its_own_sentence() -> None:
    views = ledger(node(), claims=(claim("a", "G0"),))
    found = explain(Demand(ONE), views)
    assert found.summary == "1 node: a 1x seat is free"
    assert [(line.group, line.kind, line.sentence) for line in found.lines] == [
        ("G0", "seat", "all 1 seats of G0 are taken"),
        ("G1", FITS, "1 of 1 seats are free"),
    ]
    wanted = explain(Demand(ONE, require_group=GroupName("G0")), views)
    assert [(line.group, line.kind) for line in wanted.lines] == [("G0", "seat"), ("G1", "group")]


def test_a_group_beside_a_busy_model_says_how_long_calls_wait() -> None:
    busy = Traffic((0.6,) * 24, (0.02,) * 24)
    views = ledger(node(seats=2), claims=(claim("a", "G0", gib=None, traffic=busy),))
    lines = {line.group: line.sentence for line in explain(Demand(ONE), views).lines}
    assert "each call would have pods wait" in lines["G0"]
    assert lines["G1"] == "2 of 2 seats are free"


def test_hot_models_that_must_stay_apart_are_told() -> None:
    busy = Traffic((0.6,) * 24, (0.02,) * 24)
    views = ledger(node(seats=2), claims=(claim("a", "G01", traffic=busy),))
    found = explain(Demand(TWO, traffic=busy, apart=True), views)
    assert found.counts == (("hot", 1),)
    assert found.summary.startswith("1 node: the groups with a free seat hold hot models; suspend")
    assert "G01 holds a hot model" in found.lines[0].sentence


def test_nobody_who_leaves_anyhow_is_named() -> None:
    views = ledger(node(), claims=(claim("a"),))
    found = explain(Demand(TWO), views, leaving=frozenset({"uid-a"}))
    assert found.remedy is None
    assert found.summary == "1 node: no free 2x seat"


def test_a_pod_that_would_not_make_room_is_not_named() -> None:
    views = ledger(node(), claims=(claim("a", "G0", gib=1), claim("b", "G1", gib=9), claim("c")))
    remedy = explain(Demand(TWO), views).remedy
    assert remedy is not None
    assert (remedy.pod.name, remedy.group, remedy.size) == ("c", "G01", 48 * GIB)
    assert explain(Demand(TWO, vram=200 * GIB), views).remedy is None


def test_nodes_without_a_gpu_node_and_no_nodes_at_all() -> None:
    found = explain(Demand(ONE), {NodeName("n1"): None})
    assert found.counts == ((NO_NODE, 1),)
    assert found.summary == "1 node: no GPUNode tells of their GPUs"
    assert "is the node agent running" in explain(Demand(ONE), {}).summary


@pytest.mark.parametrize("kind", kinds())
def test_every_reason_has_its_words(kind: str) -> None:
    assert short(kind, Demand(TWO, products=("A100",), vram=GIB, require_group=G01)) != kind


def test_reasons_that_never_pass_have_no_remedy() -> None:
    far = explain(Demand(TWO, topology=Link.NVLINK), ledger(node(), claims=(claim("a"),)))
    assert far.summary == "1 node: GPUs are not linked as asked for"


@given(
    st.lists(st.lists(st.sampled_from(["G0", "G1", "G01"]), max_size=3), max_size=5),
    st.sampled_from([ONE, TWO]),
)
def test_what_is_told_is_what_filter_decides(taken: list[list[str]], resource: str) -> None:
    nodes = [node(f"n{i}", park_budget=100 * GIB) for i in range(len(taken))]
    claims = tuple(
        claim(f"p{i}-{j}", group, f"n{i}")
        for i, groups in enumerate(taken)
        for j, group in enumerate(groups)
    )
    views, demand = ledger(*nodes, claims=claims), Demand(resource, 24 * GIB)
    found = explain(demand, views)
    fits = [name for name, view in views.items() if view and candidates(view, demand).groups]
    assert found.fits == len(fits)
    assert sum(count for _, count in found.counts) == found.nodes == len(nodes)
    if found.remedy is None:
        return
    assert not fits
    view = views[found.remedy.node]
    assert view is not None
    rest = tuple(c for c in view.claims if c.pod.uid != found.remedy.pod.uid)
    assert candidates(replace(view, claims=rest), demand).groups
    assert tell(found.remedy) in found.summary
