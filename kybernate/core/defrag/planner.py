"""From the cheapest solution to steps in an order in which no state on the way is invalid.

A step moves one pod: it leaves its place, then takes the other, which has to be free by then.
Since whatever fits beside others also fits beside fewer, such an order always exists if a pod may
be suspended for a while where pods wait for each other's places in a ring.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from kybernate.core.defrag.model import Cluster, NoPlan, Plan
from kybernate.core.defrag.search import Search, claim_of
from kybernate.core.defrag.ways import without
from kybernate.core.placement import candidates
from kybernate.core.plans.steps import WAITS, Kind, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.core.defrag.model import Budget, Pending
    from kybernate.core.defrag.search import Found, Item, Placed
    from kybernate.core.ledger.ledger import NodeView
    from kybernate.types import GroupName, NodeName, PodUid


def plan(cluster: Cluster, pending: Sequence[Pending], budget: Budget) -> Plan | NoPlan:
    """The cheapest moves within the budget that make room for all pending pods, or that there are
    none."""
    # Who is about to arrive will have arrived: the rule for it says nothing about a plan.
    views = {
        name: replace(view, under_way=frozenset()) if view.under_way else view
        for name, view in cluster.views.items()
    }
    settled = Cluster(views, cluster.seated)
    search = Search(settled, budget)
    found = search.run(pending)
    if found.solution is None:
        return _none(settled, search, found, pending)
    steps = _Order(settled, found.solution.placed).run()
    cost = found.solution.cost
    proven = found.exact or found.bound >= cost
    return Plan(steps, cost, found.solution.moves, proven, cost if proven else found.bound)


def _none(cluster: Cluster, search: Search, found: Found, pending: Sequence[Pending]) -> NoPlan:
    for one in pending:
        reasons = _reasons(cluster, one)
        if reasons:
            why = f"no node can take {one.pod}, even if every pod moved that may: {reasons}"
            return NoPlan(why, True, inf, found.looked_at)
    who = str(pending[0].pod) if len(pending) == 1 else f"all {len(pending)} pods"
    limits = _limits(search.budget)
    if not found.exact:
        why = (
            f"no moves that make room for {who}{limits} were found in {found.looked_at} states of "
            "the search; there may be some: allow more effort"
        )
        return NoPlan(why, False, found.bound, found.looked_at)
    at_least = inf
    why = f"no moves make room for {who}"
    if search.pruned:
        at_least = (
            found.bound
            if found.bound < inf
            else max(search.at_least(one.demand) for one in pending)
        )
        why += limits
    why += f": all that could were looked at ({found.looked_at} states)"
    return NoPlan(why, True, at_least, found.looked_at)


def _limits(budget: Budget) -> str:
    seconds = f" and {budget.seconds:g} s" if budget.seconds < inf else ""
    return f" within {budget.moves} moves{seconds}"


def _reasons(cluster: Cluster, one: Pending) -> str:
    """Why no node can take it when all have left that may, most frequent first; empty if one
    can."""
    found: Counter[str] = Counter()
    for view in cluster.views.values():
        verdict = candidates(without(view, _may_move(cluster, view)), one.demand)
        if verdict.groups:
            return ""
        found[verdict.reason] += 1
    if not found:
        return "there is no node with GPUs"
    first = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
    told = [f"{number} node{'s' * (number > 1)}: {reason}" for reason, number in first[:3]]
    return "; ".join(told) + ("; …" if len(first) > 3 else "")


def _may_move(cluster: Cluster, view: NodeView) -> frozenset[PodUid]:
    seated = cluster.seated
    return frozenset(
        claim.pod.uid
        for claim in view.claims
        if claim.pod.uid in seated and seated[claim.pod.uid].seconds is not None
    )


_WHY = {
    Kind.MOVE: "others need its place",
    Kind.SUSPEND: "pods wait for each other's places",
    Kind.RESUME: "its place is free",
    Kind.PLACE: WAITS,
}


class _Order:
    """Finds the order of the steps; `views` are the cluster as it is after those found so far."""

    def __init__(self, cluster: Cluster, placed: Sequence[Placed]) -> None:
        self._views = dict(cluster.views)
        self._cluster = cluster
        self._open = sorted(placed, key=lambda one: (one.item.home is None, one.item.pod.uid))
        self._suspended: set[str] = set()
        self._steps: list[Step] = []

    def run(self) -> tuple[Step, ...]:
        while self._open:
            one = next((one for one in self._open if self._fits(one)), None)
            if one is None:
                self._suspend(min(self._homes(), key=lambda at: at.item.seconds).item)
            else:
                self._open.remove(one)
                self._carry_out(one)
        return tuple(self._steps)

    def _homes(self) -> list[Placed]:
        """Those that still hold the place that they leave."""
        found = [
            one
            for one in self._open
            if one.item.home is not None and one.item.pod.uid not in self._suspended
        ]
        if not found:
            raise RuntimeError("a solution whose pods don't fit side by side is no solution")
        return found

    def _fits(self, one: Placed) -> bool:
        view = without(self._views[one.node], frozenset({one.item.pod.uid}))
        wanted = replace(one.item.demand, require_group=one.group)
        return bool(candidates(view, wanted).groups)

    def _carry_out(self, one: Placed) -> None:
        item, kind, source = one.item, Kind.PLACE, None
        if item.home is not None:
            suspended = item.pod.uid in self._suspended
            kind = Kind.RESUME if suspended else Kind.MOVE
            source = None if suspended else self._leave(item)
        view = self._views[one.node]
        claim = claim_of(item, one.node, one.group)
        self._views[one.node] = replace(view, claims=(*view.claims, claim))
        seconds = item.seconds if kind is Kind.MOVE else 0.0
        size = self._size(item) if item.home else view.state_size(claim)
        target = (one.node, one.group)
        why = item.why or _WHY[kind]
        self._steps.append(Step(kind, item.pod, source, target, seconds, size, why))

    def _suspend(self, item: Item) -> None:
        source, size = self._leave(item), self._size(item)
        self._suspended.add(item.pod.uid)
        step = Step(Kind.SUSPEND, item.pod, source, None, item.seconds, size, _WHY[Kind.SUSPEND])
        self._steps.append(step)

    def _size(self, item: Item) -> int:
        claim = self._cluster.seated[item.pod.uid].claim
        return self._cluster.views[claim.node].state_size(claim)

    def _leave(self, item: Item) -> tuple[NodeName, GroupName] | None:
        claim = self._cluster.seated[item.pod.uid].claim
        view = self._views[claim.node]
        self._views[claim.node] = without(view, frozenset({item.pod.uid}))
        return None if claim.group is None else (claim.node, claim.group)
