"""One replay: pods arrive one by one, never leave, and are tried once."""

from __future__ import annotations

from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from bench.placement.moves import Tenants
from bench.placement.openb.bound import pooled, relaxed
from bench.placement.openb.trace import arrivals, capacity
from bench.placement.policies import policies
from bench.placement.prospect import expect
from kybernate.core.placement.fragments import Fragments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.core.placement import Ask, Outlook, Supply


class Terms(NamedTuple):
    """`tune`: how much demand comes, in capacities; `moves`: percent of the pods that may move."""

    tune: float = 1.3
    moves: float = 0.0


class Moment(NamedTuple):
    """A replay under way, in percent of all GPUs: demand so far, placed, free but fragmented."""

    arrived: float
    placed: float
    fragmented: float


class Replayed(NamedTuple):
    """How a replay ended. `allocation` and the two limits (see `bound`) in percent of the GPUs."""

    allocation: float
    bound: float
    pooled: float
    failed: list[Ask]
    moved: int
    arrived: int
    course: list[Moment]


class _Run:
    """The sums of a replay. `whole` are the thousandths of all GPUs."""

    def __init__(self, tenants: Tenants, outlook: Outlook, whole: int, budget: int) -> None:
        self.tenants = tenants
        self.failed: list[Ask] = []
        self.moved = self._arrived = self._placed = 0
        self.course: list[Moment] = []
        self._fragments = Fragments(outlook)
        self._whole = whole
        self._budget = budget

    def arrive(self, ask: Ask) -> None:
        """Place the pod, if need be by moving others as far as the budget allows."""
        self._arrived += ask.total
        choice = self.tenants.fleet.choose(ask)
        if choice is not None:
            self.tenants.take(choice, ask)
        elif not self._make_room(ask):
            self.failed.append(ask)
            return
        self._placed += ask.total

    def _make_room(self, ask: Ask) -> bool:
        left = self._budget - self.moved
        plan = self.tenants.make_room(ask, left) if left > 0 else None
        self.moved += len(plan.moves) if plan else 0
        return plan is not None

    @property
    def arrived(self) -> float:
        """Demand so far, in percent."""
        return 100 * self._arrived / self._whole

    @property
    def placed(self) -> float:
        """GPUs given away, in percent."""
        return 100 * self._placed / self._whole

    def note(self) -> None:
        """Add a moment to the course, once for each percent of demand."""
        if not self.course or self.arrived >= self.course[-1].arrived + 1:
            lost = sum(map(self._fragments.of, self.tenants.fleet.nodes))
            self.course.append(Moment(self.arrived, self.placed, 100 * lost / self._whole))


def replay(
    nodes: Sequence[Supply], pods: Sequence[Ask], policy: str, seed: int, terms: Terms
) -> Replayed:
    """Replay a workload. The target is learned from the list, as the published evaluation does."""
    random = Random(seed)
    whole = capacity(nodes)
    coming = arrivals(pods, terms.tune * whole, random)
    ordered = list(nodes)
    random.shuffle(ordered)
    prospect = expect(pods, nodes)
    tenants = Tenants(ordered, policies(prospect)[policy])
    run = _Run(tenants, prospect.outlook, whole, int(terms.moves * len(coming) / 100))
    late: list[float] = []
    for ask in coming:
        run.arrive(ask)
        run.note()
        if round(run.arrived) == round(100 * terms.tune):
            late.append(run.placed)
    return Replayed(
        fmean(late or [run.placed]),
        relaxed(nodes, coming),
        pooled(nodes, coming),
        run.failed,
        run.moved,
        len(coming),
        run.course,
    )
