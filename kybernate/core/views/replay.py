"""What would be decided for the pods of a dump, by the functions that decide. Pure.

The kube-scheduler has a say in the choice of the node that nobody has here: its own filters and
scores are left out, and of nodes with equal points the first by name is taken.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kybernate.core.ledger.ledger import Claim, Ledger
from kybernate.core.placement import Demand
from kybernate.core.placement.verdicts import Verdicts
from kybernate.core.views.dump import Pending
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kybernate.core.placement import Policy
    from kybernate.core.views.dump import Dump
    from kybernate.types import GroupName, NodeName, PodRef


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a pod.

    Without a `node` it waits, and `reasons` say why, each with the number of nodes that it holds
    for. `fitting` nodes can take it, `points` (0 to 10) are those of the one taken. `was` is where
    it is, for a pod that is placed already.
    """

    pod: PodRef
    fitting: int
    node: NodeName | None = None
    group: GroupName | None = None
    points: int = 0
    reasons: Mapping[str, int] | None = None
    was: tuple[NodeName, GroupName | None] | None = None


class Replay:
    """A ledger that was dumped, and pods placed on it in turn."""

    def __init__(self, dump: Dump, policies: Callable[[Demand], Policy]) -> None:
        """`policies` says by which a demand is placed."""
        self._dump = dump
        self._policies = policies
        self._ledger = Ledger()
        for seats in dump.nodes:
            self._ledger.upsert_node(seats)
        for claim in dump.claims:
            self._ledger.upsert_claim(claim)
        self._verdicts = Verdicts(self._ledger, self._ledger.node)
        self._names = list(self._ledger.nodes())
        self._wanted = {one.pod.uid: one.demand for one in dump.movable}

    def pending(self) -> Iterator[Decision]:
        """Place the pods that wait, one after the other; each finds the ones before it there."""
        for one in self._dump.pending:
            yield self._place(one)

    def bound(self) -> Iterator[Decision]:
        """Decide again about each pod that is placed, all others being where they are."""
        for claim in self._dump.claims:
            self._ledger.remove_claim(claim.pod.uid)
            demand = self._wanted.get(claim.pod.uid) or Demand(
                claim.resource, claim.vram, party=claim.party
            )
            yield self._decide(Pending(claim.pod, demand), (claim.node, claim.group))
            self._ledger.upsert_claim(claim)

    def _place(self, one: Pending) -> Decision:
        found = self._decide(one, None)
        if found.node is not None and one.demand is not None:
            demand = one.demand
            seat = (one.pod, found.node, found.group, demand.resource, demand.vram, demand.party)
            self._ledger.upsert_claim(Claim(*seat, demand.traffic))
        return found

    def _decide(self, one: Pending, was: tuple[NodeName, GroupName | None] | None) -> Decision:
        if one.demand is None:
            return Decision(one.pod, 0, reasons={one.problem: len(self._names)}, was=was)
        known = self._verdicts.of(one.demand, self._policies(one.demand))
        fits = known.fits(self._names, {})
        if not fits.passed:
            why = Counter([*fits.hopeless.values(), *fits.failed.values()])
            return Decision(one.pod, 0, reasons=dict(why.most_common()), was=was)
        scores = known.points(fits.passed, {})
        points, node = max(zip(scores, fits.passed, strict=True), key=lambda pair: pair[0])
        view = self._ledger.node(node)
        group = known.best(view) if view else None
        return Decision(one.pod, len(fits.passed), node, group, points, was=was)
