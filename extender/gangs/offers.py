"""Which nodes the kube-scheduler offers the pods of gangs, learned from what it asks `filter`.

It asks only about nodes that pass all rules of its own at that moment: CPU, memory, taints,
affinity, volumes. So a planned node that isn't among them was refused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.types import NodeName, PodUid


class Offers:
    """What was offered last, and how the plan under way fared. Methods may be called anywhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[PodUid, frozenset[NodeName]] = {}
        self._taken: dict[PodUid, NodeName] = {}
        self._refused: set[PodUid] = set()
        self._last: frozenset[NodeName] = frozenset()

    def note(
        self,
        uid: PodUid,
        names: Iterable[NodeName],
        planned: NodeName | None = None,
        fellows: Iterable[PodUid] = (),
    ) -> bool:
        """The scheduler asks about these nodes; whether that is news to who plans.

        `planned` is where the pod's planned seat is, `fellows` are its gang's other members: where
        they take room now, it isn't known what the pod would be offered without them.
        """
        with self._lock:
            offered, before = self._shared(names), self._nodes.get(uid)
            if planned is not None:
                self._judge(uid, planned, taken=planned in offered)
                held = {self._taken[one] for one in fellows if one in self._taken} - offered
                held = held if before is None else held & before
                offered = offered | held if held else offered
            self._nodes[uid] = offered
            return uid in self._refused or offered != before

    def of(self, uid: PodUid) -> frozenset[NodeName] | None:
        """The nodes that the pod may have; None as long as the scheduler asks about none."""
        with self._lock:
            return self._nodes.get(uid)

    def refused(self, uid: PodUid) -> bool:
        """Whether the scheduler doesn't have the pod on its planned node."""
        with self._lock:
            return uid in self._refused

    def taken(self, uid: PodUid) -> bool:
        """Whether the scheduler has the pod on its planned node."""
        with self._lock:
            return uid in self._taken

    def begin(self, uids: Iterable[PodUid]) -> None:
        """These pods are planned again."""
        with self._lock:
            for uid in uids:
                self._taken.pop(uid, None)
                self._refused.discard(uid)

    def forget(self, uids: Iterable[PodUid]) -> None:
        """These pods are gone, or what they were offered counts no more."""
        with self._lock:
            for uid in uids:
                self._nodes.pop(uid, None)
                self._taken.pop(uid, None)
                self._refused.discard(uid)

    def _judge(self, uid: PodUid, planned: NodeName, *, taken: bool) -> None:
        if taken:
            self._taken[uid] = planned
            self._refused.discard(uid)
        else:
            self._taken.pop(uid, None)
            self._refused.add(uid)

    def _shared(self, names: Iterable[NodeName]) -> frozenset[NodeName]:
        """Pods of one gang are mostly offered the same thousands of nodes."""
        found = frozenset(names)
        if found != self._last:
            self._last = found
        return self._last
