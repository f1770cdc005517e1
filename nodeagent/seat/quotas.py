"""What Shares say of the namespaces of this node's seats, and what these have used of the node.

A namespace's use is what its total has grown by since its window began. What it was then is
journalled, so a restarted agent continues counting; one that was away when a window began counts
from its return on.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kybernate.api.events import stamp
from kybernate.api.gpunodes import MOST_USES, UseRow
from kybernate.api.shares import dump_use
from kybernate.core.policy.shares import NOTHING, Used
from kybernate.dataclass import dataclass
from kybernate.types import of_record
from nodeagent.seat.node import IN_RAM
from nodeagent.seat.usage import Total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kybernate.core.policy.shares import Share
    from nodeagent.seat.node import Node
    from nodeagent.seat.usage import Usage

BEGUN = "usage-since/"
_LOOK = 5.0
"""Seconds between two looks: so much later it is seen that a quota is used up, or a window over."""
_GIB_HOUR = float((1 << 30) * 3600)


@dataclass(slots=True)
class Begun:
    """What a namespace had used when its window began, at `at` (s since 1970)."""

    at: float
    parked: float = 0.0
    gpu: float = 0.0
    wakes: int = 0


class Quotas:
    """`kick` has the node decide again."""

    def __init__(self, node: Node, usage: Usage, kick: Callable[[], None]) -> None:
        self._node = node
        self._usage = usage
        self._kick = kick
        self._shares: dict[str, Share] = {}
        self._begun: dict[str, Begun] = {}
        self._told_at = 0.0

    def resume(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue where the last agent was."""
        for key, record in records.items():
            if key.startswith(BEGUN):
                self._begun[key.removeprefix(BEGUN)] = of_record(Begun, record)

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(_LOOK)
            self.look()

    def set_shares(self, shares: Iterable[Share], *, listed: bool) -> None:
        """All that there are, as they are now; `listed`: whether none is missing."""
        self._shares = {one.namespace: one for one in shares}
        for namespace in self._begun.keys() - self._shares.keys() if listed else ():
            del self._begun[namespace]
            self._node.world.journal.delete(BEGUN + namespace)
        self.look()

    def look(self) -> None:
        """Count up to now, and have the node go by it."""
        now, node, totals = self._node.world.wall(), self._node, self._usage.totals()
        used = {name: self._used(one, totals.get(name), now) for name, one in self._shares.items()}
        last = frozenset(n for n, one in self._shares.items() if one.spent(used[n], now))
        ram = {
            name: one.parked_bytes
            for name, one in self._shares.items()
            if one.parked_bytes is not None
        }
        weights = {name: one.weight for name, one in self._shares.items()}
        new = last - node.last
        if node.set_shares(weights, last, ram):
            self._kick()
        self._tell(new, now)
        if self._node.world.now() >= self._told_at:
            self._told_at = self._node.world.now() + self._node.settings.usage_interval_s
            rows = sorted((name, one) for name, one in used.items() if _counts(one))
            node.use_of_namespaces(
                tuple(UseRow(name, dump_use(one)) for name, one in rows[:MOST_USES])
            )

    def _used(self, share: Share, total: Total | None, now: float) -> Used:
        total, begins = total or Total(), share.begins(now)
        begun = self._begun.get(share.namespace)
        if begun is None or begun.at != begins:
            begun = Begun(begins, total.parked, total.gpu, total.wakes)
            self._begun[share.namespace] = begun
            journal = self._node.world.journal
            journal.put(BEGUN + share.namespace, asdict(begun), synced=False)
        return Used(
            begins,
            max(0.0, total.gpu - begun.gpu),
            max(0.0, total.parked - begun.parked) / _GIB_HOUR,
            max(0, total.wakes - begun.wakes),
            self._parked_bytes(share.namespace),
        )

    def _parked_bytes(self, namespace: str) -> int:
        seats = self._node.seats.values()
        there = (s for s in seats if s.state in IN_RAM and s.identity.pod.namespace == namespace)
        return sum(sum(seat.tree.held.values()) for seat in there)

    def _tell(self, namespaces: frozenset[str], now: float) -> None:
        for seat in self._node.seats.values() if namespaces else ():
            namespace = seat.identity.pod.namespace
            if namespace in namespaces:
                share = self._shares[namespace]
                until = stamp(share.begins(now) + share.window)
                why = f"namespace {namespace} has used up its {share.gpu_seconds:.0f} GPU-seconds"
                then = f"until {until} seats of others come first; requests still wake it"
                self._node.tell(seat, "Warning", "GpuSecondsUsedUp", f"{why}: {then}")


def _counts(one: Used) -> bool:
    return one._replace(begins=0.0) != NOTHING
