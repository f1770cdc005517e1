"""The ways to get one pod into one node: a group, and the fewest claims that must leave for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.placement import candidates
from kybernate.core.placement.colocation import neighbours, strange_parties
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.defrag.model import Seated
    from kybernate.core.ledger.ledger import Claim, NodeView
    from kybernate.core.placement import Demand
    from kybernate.types import Group, GroupName, PodUid

MOST_LOOKS = 4096
"""Sets of claims that are looked at per group; beyond that the search is no longer exact."""


class Way(NamedTuple):
    """A group, who leaves for it, and what moving those costs in seconds."""

    seconds: float
    group: GroupName
    leave: tuple[PodUid, ...]


@dataclass(slots=True)
class _Search:
    """One group, one demand. `cut` is set when not everything could be looked at."""

    view: NodeView
    group: Group
    demand: Demand
    movable: Mapping[PodUid, Seated]
    limit: float
    looks: int = 0
    cut: bool = False

    def run(self) -> list[Way]:
        found: list[frozenset[PodUid]] = []
        self._extend(frozenset(), frozenset(), found)
        costed = sorted((self._seconds(leave), sorted(leave)) for leave in found)
        kept: list[Way] = []
        for seconds, leave in costed:
            if not any(set(way.leave) <= set(leave) for way in kept):
                kept.append(Way(seconds, self.group.name, tuple(leave)))
        return kept

    def _extend(
        self,
        leave: frozenset[PodUid],
        stay: frozenset[PodUid],
        found: list[frozenset[PodUid]],
    ) -> None:
        """All sufficient sets that hold `leave` and nothing of `stay`, of limited cost."""
        if self.looks >= MOST_LOOKS:
            self.cut = True
            return
        self.looks += 1
        view = without(self.view, leave)
        verdict = candidates(view, replace(self.demand, require_group=self.group.name))
        if verdict.groups:
            found.append(leave)
            return
        forced, choice = self._relevant(view, verdict.kind)
        if forced:
            if all(claim.pod.uid in self.movable and claim.pod.uid not in stay for claim in forced):
                self._extend(leave | {claim.pod.uid for claim in forced}, stay, found)
            return
        alike: set[object] = set()
        for claim in choice:
            uid = claim.pod.uid
            if uid not in self.movable or uid in stay:
                continue
            kind = alikeness(self.movable[uid])
            if kind not in alike and self._seconds(leave | {uid}) <= self.limit:
                self._extend(leave | {uid}, stay, found)
            alike.add(kind)
            stay = stay | {uid}

    def _relevant(self, view: NodeView, kind: str) -> tuple[list[Claim], list[Claim]]:
        """The claims that must all leave, or else those of which one must, for the rule to pass."""
        near = neighbours(view, self.group)
        match kind:
            case "seat":
                return [], [claim for claim in view.claims if claim.group == self.group.name]
            case "room":
                return [], list(view.claims)
            case "party":
                strange = set(strange_parties(view, self.group, self.demand))
                return [claim for claim in near if claim.party in strange], []
            case "hot":
                return [], list(near)
            case _:
                return [], []

    def _seconds(self, leave: frozenset[PodUid]) -> float:
        return sum(self.movable[uid].seconds or 0.0 for uid in sorted(leave))


def ways(
    view: NodeView, demand: Demand, movable: Mapping[PodUid, Seated], limit: float
) -> tuple[list[Way], bool]:
    """The ways to get a pod into the node, cheapest first, and whether these are all.

    Only claims in `movable` leave, at most for `limit` seconds. No way has a needless move.
    """
    empty = without(view, movable)
    direct = {group.name for group in candidates(view, demand).groups}
    found: list[Way] = []
    complete = True
    for group in candidates(empty, demand).groups:
        if group.name in direct:
            found.append(Way(0.0, group.name, ()))
            continue
        search = _Search(view, group, demand, movable, limit)
        found += search.run()
        complete = complete and not search.cut
    return sorted(found), complete


def without(view: NodeView, leave: frozenset[PodUid] | Mapping[PodUid, object]) -> NodeView:
    """The node when these pods have left."""
    if not leave:
        return view
    return replace(view, claims=tuple(c for c in view.claims if c.pod.uid not in leave))


def alikeness(seated: Seated) -> object:
    """The same for pods between which a plan need not choose."""
    one = seated.claim
    return one.group, one.vram, one.party, one.traffic, seated.demand, seated.seconds
