"""Pods in whose place others are made: they are being deleted, or their kubelet has failed them."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from kybernate.api.pods import is_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from extender.state.objects import SeatPod
    from kybernate.types import PodUid

    Key = tuple[str, str]
    """A namespace, and a succession in it."""

_MOST_GONE = 5000


class _Goes(NamedTuple):
    """A pod that goes, since `since` (s of the clock)."""

    pod: SeatPod
    since: float


class Replaced:
    """Those that are there, and, of those that their kubelet has failed and that are gone, the last
    `most`. Beyond that the namespace with the most of them loses its oldest one: no tenant's
    failures push out another's. One owner, who has the lock."""

    def __init__(self, clock: Callable[[], float], most: int = _MOST_GONE) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._most = most
        self._there: dict[Key, dict[PodUid, _Goes]] = {}
        self._gone: defaultdict[Key, deque[_Goes]] = defaultdict(deque)
        # Of each namespace the keys of those that are gone, the oldest first.
        self._shares: defaultdict[str, deque[Key]] = defaultdict(deque)
        self._number = 0

    def take(self, kind: str, pod: SeatPod) -> None:
        """Take in an event of the watch on pods."""
        if kind == "DELETED" and pod.node is None:
            # Of one that vanished while nobody watched, it carries no more than names.
            there = (each[pod.ref.uid] for each in self._there.values() if pod.ref.uid in each)
            pod = next((one.pod for one in there), pod)
        if not pod.succession or pod.resource is None or pod.node is None:
            return
        key, uid = (pod.ref.namespace, pod.succession), pod.ref.uid
        if kind != "DELETED" and (pod.failed or (pod.leaving and not pod.finished)):
            those = self._there.setdefault(key, {})
            known = those.get(uid)
            those[uid] = _Goes(pod, known.since if known else self._clock())
            return
        known = self._there.get(key, {}).pop(uid, None)
        if not self._there.get(key, True):
            del self._there[key]
        if pod.failed:
            # A StatefulSet deletes it at once, before anybody has said whether it is lost.
            self._remember(key, _Goes(pod, known.since if known else self._clock()))
        elif kind == "DELETED" and is_alone(pod.succession):
            self._pass(key)

    def of(self, namespace: str, succession: str, within: float) -> tuple[SeatPod, ...]:
        """Those of a succession that are being deleted, or that failed in the last `within`
        seconds."""
        key = namespace, succession
        found = [*self._there.get(key, {}).values(), *self._gone.get(key, ())]
        least = self._clock() - within
        return tuple(one.pod for one in found if not one.pod.failed or one.since > least)

    def gone(self, namespace: str, succession: str, within: float) -> tuple[PodUid, ...]:
        """Those of a succession that failed in the last `within` seconds, and that are gone; the
        last one last."""
        least = self._clock() - within
        found = self._gone.get((namespace, succession), ())
        return tuple(one.pod.ref.uid for one in found if one.since > least)

    def _remember(self, key: Key, gone: _Goes) -> None:
        self._gone[key].append(gone)
        self._shares[key[0]].append(key)
        self._number += 1
        if self._number > self._most:
            self._forget(max(self._shares, key=lambda one: len(self._shares[one])))

    def _pass(self, key: Key) -> None:
        """A pod that came after those that are gone has ended in another way: whoever comes after
        it continues from none of them."""
        passed = self._gone.pop(key, None)
        if passed:
            self._number -= len(passed)
            left = deque(one for one in self._shares.pop(key[0]) if one != key)
            if left:
                self._shares[key[0]] = left

    def _forget(self, namespace: str) -> None:
        key = self._shares[namespace].popleft()
        self._gone[key].popleft()
        self._number -= 1
        if not self._gone[key]:
            del self._gone[key]
        if not self._shares[namespace]:
            del self._shares[namespace]
