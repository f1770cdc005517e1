"""The ledger's promises, one by one and in any order of events."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from kybernate.core.ledger.ledger import Claim, Ledger, NodeSeats
from kybernate.errors import ConflictError, NotFoundError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, PodRef, PodUid

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"
G0 = Group(GroupName("G0"), ONE, (GpuUuid("a"),), seats=2)
G1 = Group(GroupName("G1"), ONE, (GpuUuid("b"),), seats=1)
G01 = Group(GroupName("G01"), TWO, (GpuUuid("a"), GpuUuid("b")), seats=2)
GROUPS = (G0, G1, G01)
NODES = (NodeName("n1"), NodeName("n2"))
DEMAND = "what an offer was chosen for"


def node(name: str = "n1") -> NodeSeats:
    gpus = (Gpu(GpuUuid("a"), 0, "H100", 80), Gpu(GpuUuid("b"), 1, "H100", 80))
    return NodeSeats(NodeName(name), gpus, {}, GROUPS)


def claim(number: int, group: Group | None = G0, on: str = "n1") -> Claim:
    pod = PodRef("default", f"p{number}", PodUid(f"u{number}"))
    return Claim(pod, NodeName(on), group.name if group else None, group.resource if group else ONE)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.upsert_node(node())
    return ledger


def held(ledger: Ledger, group: Group = G0, on: str = "n1") -> list[str]:
    return [c.pod.uid for c in ledger.claims_of(NodeName(on), group.name)]


def test_a_reservation_counts_until_its_time_is_over(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=10)
    ledger.expire(9.9)
    assert held(ledger) == ["u1"]
    ledger.expire(10)
    assert held(ledger) == []
    assert ledger.claim(PodUid("u1")) is None


def test_a_full_group_takes_no_reservation(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=10)
    ledger.upsert_claim(claim(2))
    with pytest.raises(ConflictError, match="all 2 seats of G0 are taken"):
        ledger.reserve(claim(3), now=1, ttl=10)
    ledger.reserve(claim(3), now=10, ttl=10)
    assert held(ledger) == ["u2", "u3"]


def test_reserving_again_renews(ledger: Ledger) -> None:
    for now in (0, 5):
        ledger.reserve(claim(1, G1), now=now, ttl=10)
    ledger.expire(12)
    assert held(ledger, G1) == ["u1"]


def test_an_offer_leaves_a_firm_reservation_as_it_was(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=1, offer=DEMAND)
    ledger.reserve(claim(1, G1), now=0, ttl=10)
    ledger.reserve(claim(1), now=1, ttl=1, offer=DEMAND)
    ledger.expire(9.9)
    assert (held(ledger), held(ledger, G1)) == ([], ["u1"])


def test_an_offer_is_accepted_while_its_node_is_as_it_was(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=1, offer=DEMAND)
    assert ledger.accept(PodUid("u2"), claim(1).node, DEMAND, 10) is None
    assert ledger.accept(PodUid("u1"), NodeName("n9"), DEMAND, 10) is None
    assert ledger.accept(PodUid("u1"), claim(1).node, "another", 10) is None
    assert ledger.accept(PodUid("u1"), claim(1).node, DEMAND, 10) == claim(1)
    ledger.expire(9.9)
    assert held(ledger) == ["u1"]
    ledger.reserve(claim(1), now=9, ttl=1, offer=DEMAND)
    ledger.expire(10)
    assert held(ledger) == []


def test_an_offer_on_a_node_that_has_changed_since_is_not_accepted(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=1, offer=DEMAND)
    ledger.reserve(claim(2), now=0, ttl=10)
    assert ledger.accept(PodUid("u1"), claim(1).node, DEMAND, 10) is None
    ledger.expire(1)
    assert held(ledger) == ["u2"]


def test_a_reservation_that_is_no_offer_is_not_accepted(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=10)
    assert ledger.accept(PodUid("u1"), claim(1).node, DEMAND, 20) is None


def test_a_node_on_which_an_offer_comes_true_has_not_changed(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=1, offer=DEMAND)
    changed = ledger.follow()
    changed.clear()
    ledger.reserve(claim(1), now=0, ttl=10)
    ledger.upsert_claim(claim(1))
    ledger.expire(10)
    assert (held(ledger), ledger.bound(PodUid("u1")), changed) == (["u1"], True, set())


def test_reserving_elsewhere_moves(ledger: Ledger) -> None:
    ledger.upsert_node(node("n2"))
    ledger.reserve(claim(1), now=0, ttl=10)
    ledger.reserve(claim(1, G1, "n2"), now=1, ttl=10)
    assert held(ledger) == []
    assert held(ledger, G1, "n2") == ["u1"]


def test_a_refused_move_keeps_what_was_held(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=10)
    ledger.upsert_claim(claim(2, G1))
    with pytest.raises(ConflictError):
        ledger.reserve(claim(1, G1), now=1, ttl=10)
    assert held(ledger) == ["u1"]


@pytest.mark.parametrize(
    "wanted",
    [claim(1, on="n9"), claim(1, Group(GroupName("G9"), ONE, (), 1))],
    ids=["unknown node", "unknown group"],
)
def test_nothing_is_reserved_that_does_not_exist(ledger: Ledger, wanted: Claim) -> None:
    with pytest.raises(NotFoundError, match="has no group"):
        ledger.reserve(wanted, now=0, ttl=10)


def test_a_bound_pod_is_not_reserved_anew(ledger: Ledger) -> None:
    ledger.upsert_claim(claim(1))
    with pytest.raises(ConflictError, match="bound to n1"):
        ledger.reserve(claim(1, G1), now=0, ttl=10)


def test_truth_takes_the_place_of_the_reservation(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=10)
    ledger.upsert_claim(claim(1, G1))
    assert (held(ledger), held(ledger, G1)) == ([], ["u1"])
    assert ledger.bound(PodUid("u1"))
    ledger.release(PodUid("u1"))
    ledger.expire(99)
    assert held(ledger, G1) == ["u1"]


def test_truth_may_overfill_a_group(ledger: Ledger) -> None:
    for number in range(3):
        ledger.upsert_claim(claim(number, G1))
    assert len(held(ledger, G1)) == 3


def test_a_pod_without_a_group_takes_no_seat_of_any(ledger: Ledger) -> None:
    ledger.upsert_claim(claim(1, None))
    view = ledger.node(NodeName("n1"))
    assert view is not None
    assert [view.taken(g.name) for g in GROUPS] == [0, 0, 0]
    assert view.taken(None) == ledger.unplaced() == 1


def test_claims_outlive_the_nodes_description(ledger: Ledger) -> None:
    ledger.upsert_claim(claim(1))
    ledger.remove_node(NodeName("n1"))
    assert ledger.node(NodeName("n1")) is None
    ledger.upsert_node(node())
    assert held(ledger) == ["u1"]
    assert list(ledger.nodes()) == ["n1"]


def test_a_view_leaves_out_the_pod_that_asks(ledger: Ledger) -> None:
    ledger.reserve(claim(1), now=0, ttl=10)
    ledger.upsert_claim(claim(2))
    view = ledger.node(NodeName("n1"), without=PodUid("u1"))
    assert view is not None
    assert [c.pod.uid for c in view.claims] == ["u2"]


def test_a_view_does_not_change_afterwards(ledger: Ledger) -> None:
    before = ledger.node(NodeName("n1"))
    ledger.upsert_claim(claim(1))
    assert before is not None
    assert before.claims == ()


@given(st.permutations(range(7)), st.data())
def test_rebuilt_in_any_order_it_is_the_same(order: list[int], data: st.DataObject) -> None:
    """Events of different objects reach us in any order; the state does not depend on it."""
    claims = [
        claim(i, data.draw(st.sampled_from((*GROUPS, None))), data.draw(st.sampled_from(NODES)))
        for i in range(5)
    ]
    steps = [
        *((lambda ledger, c=c: ledger.upsert_claim(c)) for c in claims),
        *((lambda ledger, n=n: ledger.upsert_node(node(n))) for n in NODES),
    ]
    straight, shuffled = Ledger(), Ledger()
    for step in steps:
        step(straight)
    for at in order:
        steps[at](shuffled)
    for name in NODES:
        assert shuffled.node(name) == straight.node(name)


class LedgerMachine(RuleBasedStateMachine):
    """Against a model that keeps only a set of pods per group and when reservations end."""

    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.now = 0.0
        self.numbers = itertools.count()
        self.bound: dict[int, Claim] = {}
        self.reserved: dict[int, tuple[Claim, float]] = {}
        for name in NODES:
            self.ledger.upsert_node(node(name))

    def taken(self, wanted: Claim, without: int) -> int:
        alive = {n: c for n, (c, until) in self.reserved.items() if until > self.now}
        claims = {**alive, **self.bound}
        where = (wanted.node, wanted.group)
        return sum(n != without and (c.node, c.group) == where for n, c in claims.items())

    @rule(target=pods)
    def arrive(self) -> int:
        return next(self.numbers)

    @rule(pod=pods, group=st.sampled_from(GROUPS), on=st.sampled_from(NODES))
    def reserve(self, pod: int, group: Group, on: str) -> None:
        wanted = claim(pod, group, on)
        full = self.taken(wanted, pod) >= group.seats
        try:
            self.ledger.reserve(wanted, self.now, 10)
        except ConflictError:
            assert full or pod in self.bound
            return
        assert not full
        assert pod not in self.bound
        self.reserved[pod] = (wanted, self.now + 10)

    @rule(pod=pods)
    def confirm(self, pod: int) -> None:
        kept = self.reserved.pop(pod, None)
        if kept and kept[1] > self.now:
            self.ledger.upsert_claim(kept[0])
            self.bound[pod] = kept[0]

    @rule(pod=pods)
    def release(self, pod: int) -> None:
        self.ledger.release(PodUid(f"u{pod}"))
        self.reserved.pop(pod, None)

    @rule(pod=pods)
    def end(self, pod: int) -> None:
        self.ledger.remove_claim(PodUid(f"u{pod}"))
        self.bound.pop(pod, None)
        self.reserved.pop(pod, None)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.expire(self.now)
        self.reserved = {n: r for n, r in self.reserved.items() if r[1] > self.now}

    @invariant()
    def no_group_is_overfilled(self) -> None:
        for name, group in itertools.product(NODES, GROUPS):
            view = self.ledger.node(name)
            assert view is not None
            assert view.taken(group.name) == len(self.ledger.claims_of(name, group.name))
            assert view.taken(group.name) <= group.seats

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        expected = {**{n: c for n, (c, _) in self.reserved.items()}, **self.bound}
        claims = {c.pod.uid: c for n in NODES for c in self._claims(n)}
        assert claims == {c.pod.uid: c for c in expected.values()}

    def _claims(self, name: NodeName) -> tuple[Claim, ...]:
        view = self.ledger.node(name)
        assert view is not None
        return view.claims


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase


def test_groups_of_gpus_that_a_node_does_not_have_give_it_a_shape_of_its_own(
    ledger: Ledger,
) -> None:
    """No UUID can be written that counts as another node's GPU."""
    strangers = tuple(replace(one, gpus=tuple(map(GpuUuid, "01"))) for one in GROUPS)
    places = tuple(
        replace(one, gpus=tuple(GpuUuid(str("ab".index(uuid))) for uuid in one.gpus))
        for one in GROUPS
    )
    shapes = {view_shape(ledger, node())}
    for number, groups in enumerate((strangers, places)):
        told = replace(node("n2"), groups=groups)
        shapes.add(view_shape(ledger, told))
        assert len(shapes) == number + 2
    same = tuple(replace(gpu, uuid=GpuUuid(f"x{gpu.uuid}")) for gpu in node().gpus)
    named = tuple(
        replace(one, gpus=tuple(GpuUuid(f"x{uuid}") for uuid in one.gpus)) for one in GROUPS
    )
    assert view_shape(ledger, replace(node("n2"), gpus=same, groups=named)) in shapes


def view_shape(ledger: Ledger, seats: NodeSeats) -> object:
    ledger.upsert_node(seats)
    view = ledger.node(seats.name)
    assert view is not None
    return view.shape
