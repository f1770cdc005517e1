"""What watches have told: requests as they were last seen, and where agents are."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from controller.base.kinds import R
from kybernate.api import pods
from kybernate.api.watched.nodefacts import NO_FACTS, read_facts
from kybernate.core.requests.rebalance import PodSeen
from kybernate.errors import ConfigError
from kybernate.lib.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.base.kinds import Kind
    from controller.base.queue import Key
    from kybernate.api.watched.nodefacts import NodeFacts
    from kybernate.core.policy.balance import Load
    from kybernate.core.policy.shares import Used

    Json = dict[str, Any]

log = logging.getLogger(__name__)


class Seen(NamedTuple, Generic[R]):
    """A request, and what a write of its status needs."""

    request: R
    version: str
    generation: int
    status: object


class Requests(Generic[R]):
    """The objects of one kind. Fed by the watch's thread and by what is written; any thread may
    ask. `due` is told of each that others have changed, `told` of each that anybody has, as it was
    or is now."""

    def __init__(
        self,
        kind: Kind[R],
        due: Callable[[Key], None],
        told: Callable[[R], None] = lambda _: None,
    ) -> None:
        self._kind = kind
        self._due = due
        self._told = told
        self._lock = threading.Lock()
        self._seen: Keyed[Seen[R]] = Keyed()
        self._gone: dict[Key, list[R]] = {}
        self._unread: dict[Key, str] = {}

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        key = key_of(item)
        deleted = kind == "DELETED" or "deletionTimestamp" in item["metadata"]
        seen = None if deleted else self._read(item)
        uid = "" if deleted else str(item["metadata"]["uid"])
        with self._lock:
            before = self._seen.put(*key, seen)
            self._unread.pop(key, None)
            if before and before.request.uid != uid and before.request.under_way:
                self._gone.setdefault(key, []).append(before.request)
            if seen is None and not deleted:
                self._unread[key] = uid
        if before is None or seen is None or seen.version != before.version:
            self._due(key)
            if (last := seen or before) is not None:
                self._told(last.request)

    def wrote(self, known: Seen[R], item: Json) -> None:
        """What a write of ours to `known` was answered with, unless the watch has told more since:
        nobody would tell that again."""
        seen = self._read(item)
        if seen is not None:
            self._seen.replace(*key_of(item), known, seen)
            self._told(seen.request)

    def get(self, key: Key) -> Seen[R] | None:
        """The request as it was last seen; None if it is gone."""
        return self._seen.get(*key)

    def gone(self, key: Key) -> list[R]:
        """Those of this name that went since the last call, and had not ended."""
        with self._lock:
            return self._gone.pop(key, [])

    def of(self, namespace: str) -> list[R]:
        """Those of a namespace, as they were last seen."""
        return [one.request for one in self._seen.of(namespace)]

    def all(self) -> list[R]:
        """Those of all namespaces, as they were last seen."""
        return [one.request for one in self._seen.all()]

    def wanted(self) -> frozenset[str]:
        """The UIDs of those that have not ended, as far as this version can tell."""
        with self._lock:
            unread = [*self._unread.values()]
        return frozenset([*(one.uid for one in self.all() if not one.ended), *unread])

    def _read(self, item: Json) -> Seen[R] | None:
        meta = item["metadata"]
        try:
            request = self._kind.read(item)
        except ConfigError as error:
            log.warning("it is left alone: %s", error)
            return None
        version, generation = str(meta["resourceVersion"]), int(meta.get("generation") or 1)
        return Seen(request, version, generation, item.get("status"))


class PodsSeen:
    """Where pods with seats are, by UID. Fed by the watch's thread; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, PodSeen] = {}
        self._priorities: Counter[int] = Counter()

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        pod = pods.read_pod(item)
        found, uid = _pod_seen(pod), str(pod.ref.uid)
        with self._lock:
            before = self._seen.pop(uid, None)
            if before is not None and before.node:
                self._priorities[before.priority] -= 1
                self._priorities = +self._priorities
            if kind != "DELETED" and pod.asks and not pod.over:
                self._seen[uid] = found
                if found.node:
                    self._priorities[found.priority] += 1

    def all(self) -> dict[str, PodSeen]:
        """All as they were last seen."""
        with self._lock:
            return dict(self._seen)

    def outranks_one(self, priority: int) -> bool:
        """Whether somebody of a lower priority has a seat."""
        with self._lock:
            return min(self._priorities, default=priority) < priority


def _pod_seen(pod: pods.Pod) -> PodSeen:
    return PodSeen(
        pod.node or "",
        pod.group or "",
        ready=pod.ready,
        leaving=pod.leaving,
        priority=pod.priority,
    )


class Nodes:
    """The agents' addresses and the nodes' GPUs, as GPUNodes tell them, and which seats rest in the
    object store. `told` is told of namespaces in which the latter changes; `changed`: a node has
    other GPUs or another driver."""

    def __init__(
        self,
        told: Callable[[str], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._told = told
        self._changed = changed
        self._seen: dict[str, NodeFacts] = {}

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        name = str(item["metadata"]["name"])
        before = self._seen.get(name, NO_FACTS)
        now = NO_FACTS if kind == "DELETED" else read_facts(item)
        if now == NO_FACTS:
            self._seen.pop(name, None)
        else:
            self._seen[name] = now
        rests = before.resting.items() ^ now.resting.items()
        for namespace in {rest.namespace for _, rest in rests}:
            self._told(namespace)
        if before.gpus != now.gpus:
            self._changed()

    def gpus(self) -> dict[str, tuple[str, str]]:
        """By node the product of its GPUs, and their driver's version."""
        return {node: facts.gpus for node, facts in self._all() if facts.gpus}

    def address(self, node: str) -> str:
        """host:port of the node's agent; empty if nobody knows."""
        return self._seen.get(node, NO_FACTS).address

    def names(self) -> list[str]:
        """Nodes whose agents' addresses are known."""
        return [node for node, facts in self._all() if facts.address]

    def nvme(self) -> dict[str, int]:
        """Bytes that artifacts may take of each node's NVMe, where a node tells them."""
        return {node: facts.nvme for node, facts in self._all() if facts.nvme}

    def resting(self) -> dict[tuple[str, str], float]:
        """Since when each seat rests in the object store that does, by the node that says so and
        its pod's UID, in seconds since 1970."""
        return {
            (node, uid): rest.since
            for node, facts in self._all()
            for uid, rest in facts.resting.items()
        }

    def used(self, namespace: str) -> dict[str, Used]:
        """By node what it has counted of a namespace's use."""
        return {
            node: facts.used[namespace] for node, facts in self._all() if namespace in facts.used
        }

    def load(self, node: str) -> Load:
        """How busy the node's groups are."""
        return self._seen.get(node, NO_FACTS).load

    def _all(self) -> tuple[tuple[str, NodeFacts], ...]:
        """As they are now: the watch's thread changes them meanwhile."""
        return tuple(self._seen.items())


def key_of(item: Json) -> Key:
    """Its namespace and name."""
    return str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
