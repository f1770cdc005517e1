"""Learns now and then what to expect from what was asked for, so that placing leaves room for it.

What was learned holds until the mix has changed noticeably: ranks that are known stay known, and a
dump says from what they follow.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from kybernate.core.placement.mix import Mix, offered, wanted

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from extender.state.snapshot import Snapshot
    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.placement import Demand

T = TypeVar("T")
log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
NOTICEABLE = 0.1
"""The part of all pods, or of all nodes, that must be of another kind before it is learned
again."""

_AT_ONCE = 500
"""Nodes or pods that are looked at before others get a turn."""


class Learner:
    """One owner. Of what was learned, only the snapshot keeps anything."""

    def __init__(self, snapshot: Snapshot, rest: Callable[[float], None] = time.sleep) -> None:
        """`rest` waits for so many seconds."""
        self._snapshot = snapshot
        self._rest = rest
        self._known = Mix()

    def run(self, closed: Callable[[], str | None], stopping: threading.Event) -> None:
        """Look now and then, until told to stop. Nothing is looked at while `closed` says why."""
        wait = 0.0
        while not stopping.wait(wait):
            wait = LOOK_EVERY_S
            try:
                if closed() is not None:
                    wait = 1.0
                elif self.look():
                    log.info("learned what to expect from %s", told(self._known))
            except Exception:
                log.exception("what was asked for is looked at again in %.0f s", LOOK_EVERY_S)

    def look(self) -> bool:
        """Learn again if the mix has changed noticeably; whether it has."""
        mix = self._mix()
        if not mix.differs(self._known, NOTICEABLE):
            return False
        self._snapshot.learn(mix)
        self._known = mix
        return True

    def _mix(self) -> Mix:
        found: Counter[Demand] = Counter()
        alike: Counter[int] = Counter()
        demands = self._snapshot.demands()
        for part in self._parts(demands):
            # Pods of one workload share one object, so that most are counted without a look.
            alike.update(map(id, part))
        for one in {id(demand): demand for demand in demands}.values():
            found[one] += alike[id(one)]
        return Mix(wanted(found), offered(self._offers()))

    def _offers(self) -> Iterator[tuple[NodeView, int]]:
        """What nodes offer, each once, and how many do."""
        first: dict[Hashable, NodeView] = {}
        count: Counter[Hashable] = Counter()
        for names in self._parts(self._snapshot.names()):
            for view in self._snapshot.views(names).values():
                if view is not None:
                    first.setdefault(view.layout, view)
                    count[view.layout] += 1
        return ((first[layout], number) for layout, number in count.items())

    def _parts(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        for at in range(0, len(items), _AT_ONCE):
            yield items[at : at + _AT_ONCE]
            self._rest(0.001)


def told(mix: Mix) -> str:
    """The size of it, in words."""
    pods, nodes = sum(one.pods for one in mix.wanted), sum(one.nodes for one in mix.offered)
    return f"{pods} pods of {len(mix.wanted)} kinds, {nodes} nodes of {len(mix.offered)} kinds"
