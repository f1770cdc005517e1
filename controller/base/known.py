"""What watches have told: requests as they were last seen, and where agents are."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from controller.base.kinds import R
from kybernate import keys
from kybernate.api import pods
from kybernate.api.events import stamp
from kybernate.api.lenient import mapping, mappings, text, texts, whole
from kybernate.api.nodeseats import read_load
from kybernate.api.shares import read_use
from kybernate.core.policy.balance import Load
from kybernate.core.requests.rebalance import PodSeen
from kybernate.core.seat.seats import shown
from kybernate.errors import ConfigError
from kybernate.lib.keyed import Keyed
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from controller.base.kinds import Kind
    from controller.base.queue import Key
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
        ready=_is_ready(pod),
        leaving=pod.leaving,
        priority=pod.priority,
    )


def _is_ready(pod: pods.Pod) -> bool:
    conditions = mappings(pod.status.get("conditions"))
    return any((one.get("type"), one.get("status")) == ("Ready", "True") for one in conditions)


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
        self._addresses: dict[str, str] = {}
        self._gpus: dict[str, tuple[str, str]] = {}
        self._resting: dict[str, dict[str, tuple[str, float]]] = {}
        self._nvme: dict[str, int] = {}
        self._used: dict[str, dict[str, Used]] = {}
        self._loads: dict[str, Load] = {}

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        name = str(item["metadata"]["name"])
        before = self._gpus.pop(name, None)
        if kind == "DELETED":
            self._addresses.pop(name, None)
        else:
            self._addresses[name] = address_of(item)
            if all(gpus := _gpus_of(item)):
                self._gpus[name] = gpus
        self._loads[name] = Load() if kind == "DELETED" else read_load(item)
        if not self._loads[name].groups:
            del self._loads[name]
        self._nvme.pop(name, None)
        if kind != "DELETED" and (most := _nvme_of(item)):
            self._nvme[name] = most
        self._used[name] = {} if kind == "DELETED" else dict(_used(item))
        if not self._used[name]:
            del self._used[name]
        self._rest(name, {} if kind == "DELETED" else dict(_resting(item)))
        if self._gpus.get(name) != before:
            self._changed()

    def gpus(self) -> dict[str, tuple[str, str]]:
        """By node the product of its GPUs, and their driver's version."""
        return dict(self._gpus)

    def address(self, node: str) -> str:
        """host:port of the node's agent; empty if nobody knows."""
        return self._addresses.get(node, "")

    def names(self) -> list[str]:
        """Nodes whose agents' addresses are known."""
        return [name for name, address in tuple(self._addresses.items()) if address]

    def nvme(self) -> dict[str, int]:
        """Bytes that artifacts may take of each node's NVMe, where a node tells them."""
        return dict(self._nvme)

    def resting(self) -> dict[tuple[str, str], float]:
        """Since when each seat rests in the object store that does, by the node that says so and
        its pod's UID, in seconds since 1970."""
        every = [*self._resting.items()]
        return {(node, uid): at for node, those in every for uid, (_, at) in those.items()}

    def used(self, namespace: str) -> dict[str, Used]:
        """By node what it has counted of a namespace's use."""
        every = [*self._used.items()]
        return {node: those[namespace] for node, those in every if namespace in those}

    def load(self, node: str) -> Load:
        """How busy the node's groups are."""
        return self._loads.get(node, Load())

    def _rest(self, name: str, now: dict[str, tuple[str, float]]) -> None:
        before = self._resting.pop(name, {})
        if now:
            self._resting[name] = now
        for namespace in {namespace for _, (namespace, _) in before.items() ^ now.items()}:
            self._told(namespace)


def _used(node: Json) -> Iterator[tuple[str, Used]]:
    for row in mappings(mapping(node.get("status")).get("usage")):
        yield text(row.get("namespace")), read_use(row.get("used"))


def _nvme_of(node: Json) -> int:
    rows = mappings(mapping(node.get("status")).get("tiers"))
    return next((whole(r.get("budgetBytes")) for r in rows if r.get("name") == Tier.NVME.value), 0)


def _resting(node: Json) -> Iterator[tuple[str, tuple[str, float]]]:
    for row in mappings(mapping(node.get("status")).get("seats")):
        if (row.get("state"), row.get("tier")) == (_PARKED, Tier.OBJECT.value):
            since = pods.seconds(text(row.get("since")))
            if since is not None:
                yield text(row.get("uid")), (text(row.get("namespace")), since)


def address_of(node: Json) -> str:
    """Where a GPUNode says that its agent is."""
    return text(mapping(mapping(node.get("status")).get("agent")).get("address"))


def _gpus_of(node: Json) -> tuple[str, str]:
    status = mapping(node.get("status"))
    product = next((one.get("product") for one in mappings(status.get("gpus"))), "")
    return text(product), text(mapping(status.get("driver")).get("version"))


_PARKED = shown(SeatState.PARKED)
_NOTES = (keys.SUCCESSOR, keys.WANTED)
_OF_META = (
    *("namespace", "name", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)


def slim_request(item: Json) -> Json:
    """What matters of a request: spec and status are short by their definition, while labels and
    annotations may be as long as an object can be, and there may be thousands; two count."""
    meta = item["metadata"]
    notes = texts(meta.get("annotations"))
    found: Json = {"metadata": {name: meta[name] for name in _OF_META if name in meta}}
    found["metadata"]["annotations"] = {name: notes[name] for name in _NOTES if name in notes}
    return found | {part: item[part] for part in ("spec", "status") if part in item}


def slim_node(item: Json) -> Json:
    """What matters of a GPUNode: most of it is about seats, and changes all the time."""
    meta = item["metadata"]
    names = {name: meta[name] for name in ("name", "uid", "resourceVersion") if name in meta}
    resting = dict(_resting(item))
    seats = [_slim_seat(row, resting) for row in mappings(mapping(item.get("status")).get("seats"))]
    product, driver = _gpus_of(item)
    told = {
        "agent": {"address": address_of(item)},
        "gpus": [{"product": product}],
        "driver": {"version": driver},
        "groups": mappings(mapping(item.get("status")).get("groups")),
        "seats": seats,
        "usage": mappings(mapping(item.get("status")).get("usage")),
        "tiers": [{"name": Tier.NVME.value, "budgetBytes": _nvme_of(item)}],
    }
    return {"metadata": names, "status": told}


def _slim_seat(row: Json, resting: Mapping[str, tuple[str, float]]) -> Json:
    """Where it is and how busy, and more of one that rests in the object store."""
    found: Json = {name: row[name] for name in ("uid", "group", "heldBytes") if name in row}
    if busy := mapping(row.get("activity")).get("recentBusy"):
        found["activity"] = {"recentBusy": busy}
    if (rests := resting.get(text(row.get("uid")))) is not None:
        namespace, since = rests
        found |= {"namespace": namespace, "state": _PARKED, "tier": Tier.OBJECT.value}
        found["since"] = stamp(since)
    return found


def key_of(item: Json) -> Key:
    """Its namespace and name."""
    return str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
