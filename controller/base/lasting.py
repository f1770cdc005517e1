"""Objects that count as long as they are there: placements, policies, shares and templates."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from controller.base.known import key_of
from kybernate import keys
from kybernate.api import events
from kybernate.api.asked import reason_of
from kybernate.errors import ConfigError
from kybernate.lib.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum

    from controller.base.cluster import Cluster
    from controller.base.queue import Key
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

T = TypeVar("T")

log = logging.getLogger(__name__)


class Lasting(NamedTuple, Generic[T]):
    """An object that counts as long as it is there, as it was last seen. `says` is None if that
    can't be, which `wrong` tells; `status`: what the API server has of it."""

    says: T | None
    wrong: str
    path: str
    uid: str
    version: str
    generation: int
    status: object


def read_lasting(path: str, item: Json, read: Callable[[Json], T]) -> Lasting[T]:
    """One of those that all together have this path; `read` raises ConfigError."""
    meta, says, wrong = item["metadata"], None, ""
    try:
        says = read(item)
    except ConfigError as error:
        wrong = str(error)
    group, _, plural = path.rpartition("/")
    place = f"namespaces/{meta['namespace']}/{plural}" if "namespace" in meta else plural
    path = f"{group}/{place}/{meta['name']}"
    version, generation = str(meta["resourceVersion"]), int(meta.get("generation") or 1)
    return Lasting(says, wrong, path, str(meta["uid"]), version, generation, item.get("status"))


class Objects(Generic[T]):
    """The objects of one kind, which all together have this path; `read` as in `read_lasting`. Fed
    by the watch's thread and by what is written; any thread may ask. `due` is told which object to
    look at, and in how many seconds."""

    settle_s = 0.1
    """Seconds in which changes of a namespace are taken together."""

    def __init__(
        self, path: str, read: Callable[[Json], T], due: Callable[[Key, float], None]
    ) -> None:
        self._path = path
        self._read = read
        self._due = due
        self._known: Keyed[Lasting[T]] = Keyed()

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        self.saw(kind, item)
        self._due(key_of(item), 0.0)

    def saw(self, kind: str, item: Json) -> tuple[Lasting[T] | None, Lasting[T] | None]:
        """Take in an event of the watch, which makes nothing due. Returns the object as it was and
        as it is, None where it is not there."""
        there = kind != "DELETED" and "deletionTimestamp" not in item["metadata"]
        now = read_lasting(self._path, item, self._read) if there else None
        return self._known.put(*key_of(item), now), now

    def wrote(self, known: Lasting[T], item: Json) -> None:
        """What a write of ours to `known` was answered with, unless the watch has told more since:
        nobody would tell that again."""
        found = read_lasting(self._path, item, self._read)
        self._known.replace(*key_of(item), known, found)

    def get(self, key: Key) -> Lasting[T] | None:
        """The object as it was last seen; None if it is gone."""
        return self._known.get(*key)

    def of(self, namespace: str) -> tuple[Lasting[T], ...]:
        """The objects of a namespace."""
        return self._known.of(namespace)

    def all(self) -> tuple[Lasting[T], ...]:
        """The objects of all namespaces."""
        return self._known.all()

    def number(self, reason: StrEnum) -> int:
        """How many say this reason."""
        return sum(reason_of(one.status, type(reason)) is reason for one in self.all())

    def touch(self, namespace: str = "") -> None:
        """Have all objects of a namespace looked at, without one all there are."""
        for key in self._known.keys(namespace):
            self._due(key, self.settle_s)


def write_lasting(cluster: Cluster, known: Lasting[Any], status: Json, fence: Fence) -> Json | None:
    """Write an object's status, and return the object as it is then; None if it has it already."""
    if _merged(status) == _merged(known.status):
        return None
    fence.check()
    return cluster.write_status(known.path, known.version, status)


class Statuses(Generic[T]):
    """Writes the statuses of objects of one kind, which is called `named` in Kubernetes. `alarming`
    are the reasons that people should see to."""

    def __init__(
        self,
        named: str,
        alarming: frozenset[StrEnum],
        objects: Objects[T],
        cluster: Cluster,
        fence: Fence,
    ) -> None:
        self._named = named
        self._alarming = alarming
        self._objects = objects
        self._cluster = cluster
        self._fence = fence

    def put(self, known: Lasting[T], status: Json, reason: StrEnum | None, message: str) -> None:
        """Write the object's status, and if the reason is another one, say it in the log and in an
        event. Raises KybernateError."""
        found = write_lasting(self._cluster, known, status, self._fence)
        if found is None:
            return
        self._objects.wrote(known, found)
        if reason is not None and reason is not reason_of(known.status, type(reason)):
            key = key_of(found)
            log.info("%s %s/%s: %s: %s", self._named, *key, reason, message)
            about = events.of_object(keys.API_VERSION, self._named, *key, known.uid)
            self._cluster.say(about, str(reason), message, warning=reason in self._alarming)


def _merged(status: object) -> object:
    """A status without what a merge takes away."""
    if not isinstance(status, dict):
        return status
    return {name: _merged(value) for name, value in status.items() if value is not None}
