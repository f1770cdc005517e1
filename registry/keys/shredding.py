"""Namespaces that are gone: their keys are destroyed, and with them all that was packed of them.

A namespace whose UID the cluster has again, as after a look at a wrong one, is there as if it had
never been gone: what was to be destroyed because of that stays.

What is to be destroyed, and when, is written down first. When the time has come the key goes from
the database, which nobody can take back; then from the places, and for as long as a node may still
have it in memory they are looked through again, lest it was laid there again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, union, update

from kybernate.errors import ConflictError, NotFoundError
from kybernate.lib.rounds import rounds_blocking
from registry import metrics
from registry.database import insert_new
from registry.keys.namespacekeys import KEEP_S
from registry.keys.places import remove
from registry.schema import ARTIFACTS, NAMESPACE_KEYS, NAMESPACES, PODS

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Row

    from kybernate.adapters.registry.keywire import ShredWish
    from kybernate.checkpoint.places import Place
    from registry.database import Database
    from registry.keys.namespacekeys import Identities

    Json = dict[str, Any]

log = logging.getLogger(__name__)

GONE = "its namespace was deleted"
_AGAIN_MS = int(2 * KEEP_S * 1000)


class Shredder:
    """Looks after all namespaces. `cluster`: None where there is none: then only who says so has a
    namespace's keys destroyed. `grace_s`: seconds from a namespace's end to that of its keys."""

    def __init__(
        self,
        database: Database,
        cluster: Identities | None,
        places: Sequence[Place],
        grace_s: float,
    ) -> None:
        self._database = database
        self._cluster = cluster
        self._places = places
        self._grace_ms = int(grace_s * 1000)

    def run(self, stopping: threading.Event, every_s: float) -> None:
        """Look now and then until `stopping` is set. Blocks."""
        rounds_blocking(self.look, stopping, every_s, "looking after namespaces")

    def look(self) -> None:
        """See which namespaces are gone, destroy what is due. Raises RetryableError, OSError."""
        if self._cluster is not None:
            for name in self._names():
                self._see(name, self._cluster.namespace_uid(name))
        with self._database.read() as connection:
            now = self._database.now(connection)
            table = NAMESPACE_KEYS.c
            due = table.shred_ms > 0, table.shred_ms <= now
            fresh = (table.shredded_ms == 0) | (table.shredded_ms > now - _AGAIN_MS)
            rows = connection.execute(select(NAMESPACE_KEYS).where(*due, fresh)).all()
        for row in rows:
            self._destroy(row)
        self._count()

    def wish(self, namespace: str, wish: ShredWish) -> Json:
        """What somebody wants done with a namespace's keys: all that it has by now, or would have.
        Raises NotFoundError, ConflictError."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            found = [
                row
                for row in _keys(connection, namespace)
                if not row.shredded_ms and wish.uid in (None, row.uid)
            ]
            if not found:
                raise NotFoundError(f"namespace {namespace} has no key that could be destroyed")
            if wish.cancel and not any(row.wrapped for row in found):
                raise ConflictError(f"the keys of namespace {namespace} are destroyed already")
            seconds = self._grace_ms / 1000 if wish.seconds is None else wish.seconds
            due = 0 if wish.cancel else now + max(1, int(seconds * 1000))
            changed = [row.id for row in found if row.wrapped]
            if not wish.dry_run:
                _intend(connection, changed, due, "" if wish.cancel else wish.why)
        answer = self.listed(namespace)
        if wish.dry_run:
            for one in answer["keys"]:
                one["shred_ms"] = due if one["id"] in changed else one["shred_ms"]
        else:
            log.warning(
                "the keys of namespace %s are %s: %r",
                *(namespace, "kept" if wish.cancel else f"destroyed at {due}", wish.why),
            )
        return answer | {"changed": len(changed)}

    def listed(self, namespace: str) -> Json:
        """All keys of namespaces of this name."""
        uid = self._cluster.namespace_uid(namespace) if self._cluster is not None else ""
        with self._database.read() as connection:
            rows = _keys(connection, namespace)
        keys = [
            {
                "id": row.id,
                "uid": row.uid,
                "made_ms": row.made_ms,
                "by": row.wrapped_by,
                "shred_ms": row.shred_ms,
                "shredded_ms": row.shredded_ms,
                "why": row.shred_why,
            }
            for row in rows
        ]
        return {"namespace": namespace, "uid": uid or "", "keys": keys, "changed": 0}

    def _names(self) -> list[str]:
        """Of all namespaces that something was saved of, or may be."""
        known = select(NAMESPACES.c.name).where(NAMESPACES.c.gone_ms == 0)
        keyed = select(NAMESPACE_KEYS.c.namespace).where(NAMESPACE_KEYS.c.wrapped != "")
        saved = union(known, keyed, select(ARTIFACTS.c.namespace), select(PODS.c.namespace))
        with self._database.read() as connection:
            return sorted(connection.execute(saved).scalars())

    def _see(self, name: str, uid: str | None) -> None:
        """Write down what the cluster says of a namespace's name."""
        table = NAMESPACES.c
        with self._database.read() as connection:
            rows = connection.execute(select(NAMESPACES).where(table.name == name)).all()
        there = {row.uid: row.gone_ms for row in rows}
        if not _gone(there, uid) and (uid is None or there.get(uid) == 0):
            return
        if there and self._cluster is not None:
            # A watch may be late, and another replica know of the next one of this name already.
            uid = self._cluster.namespace_uid(name, fresh=True)
        gone = _gone(there, uid)
        with self._database.write() as connection:
            now = self._database.now(connection)
            if uid is not None:
                row = {"name": name, "uid": uid, "seen_ms": now, "gone_ms": 0}
                insert_new(connection, NAMESPACES, [row])
                _take_back(connection, name, uid)
            for former in gone:
                of_it = table.name == name, table.uid == former
                connection.execute(update(NAMESPACES).where(*of_it).values(gone_ms=now))
                keys = [
                    key.id
                    for key in _keys(connection, name)
                    if key.uid == former and key.wrapped and not key.shred_ms
                ]
                _intend(connection, keys, now + self._grace_ms, GONE)
        for former in gone:
            log.warning(
                "namespace %s (UID %s) is gone: its keys are destroyed in %.0f h, and with them "
                "all that was packed of it; `kybernate artifacts shred %s --keep` keeps them",
                *(name, former, self._grace_ms / 3_600_000, name),
            )

    def _destroy(self, row: Row[Any]) -> None:
        """Of one key. Idempotent: what a crash leaves undone is done the next time."""
        of_it = NAMESPACE_KEYS.c.id == row.id
        if row.wrapped:
            if row.shred_why == GONE and not self._is_gone(row.namespace, row.uid):
                return
            with self._database.write() as connection:
                still = NAMESPACE_KEYS.c.shred_ms == row.shred_ms
                gone = update(NAMESPACE_KEYS).where(of_it, still).values(wrapped="")
                if not connection.execute(gone).rowcount:
                    return
        went = sum(remove(place, row.namespace, {row.id}) for place in self._places)
        if row.shredded_ms:
            if went:
                log.warning("key %s was laid again beside data keys: destroyed again", row.id)
            return
        with self._database.write() as connection:
            done = {"shredded_ms": self._database.now(connection)}
            connection.execute(update(NAMESPACE_KEYS).where(of_it).values(**done))
        metrics.DESTROYED.inc()
        log.warning(
            "key %s of namespace %s (UID %s) is destroyed, and lay in %d places besides: %s",
            *(row.id, row.namespace, row.uid or "unknown", went, row.shred_why),
        )

    def _is_gone(self, name: str, uid: str) -> bool:
        """Whether the cluster says so now: what it said once may be days old. Raises
        RetryableError."""
        if self._cluster is None:
            return False
        return self._cluster.namespace_uid(name, fresh=True) != uid

    def _count(self) -> None:
        with self._database.read() as connection:
            table = NAMESPACE_KEYS.c
            wanted = select(table.id).where(table.shred_ms > 0, table.shredded_ms == 0)
            metrics.TO_DESTROY.set(len(connection.execute(wanted).all()))


def _gone(there: Mapping[str, int], uid: str | None) -> list[str]:
    """Those UIDs of a name that are not there any more, and were until now. `there`: since when
    each is gone."""
    return [one for one, at in there.items() if one not in ("", uid) and not at]


def _take_back(connection: Connection, name: str, uid: str) -> None:
    """A namespace that is there is not gone, and nothing is destroyed because it was."""
    table = NAMESPACES.c
    wrong = table.name == name, table.uid == uid, table.gone_ms > 0
    if not connection.execute(update(NAMESPACES).where(*wrong).values(gone_ms=0)).rowcount:
        return
    keys = [key.id for key in _keys(connection, name) if key.uid == uid and key.shred_why == GONE]
    _intend(connection, keys, 0, "")
    log.warning(
        "namespace %s (UID %s) is there again: %d keys that were to be destroyed are kept",
        *(name, uid, len(keys)),
    )


def _keys(connection: Connection, namespace: str) -> Sequence[Row[Any]]:
    query = select(NAMESPACE_KEYS).where(NAMESPACE_KEYS.c.namespace == namespace)
    return connection.execute(query.order_by(NAMESPACE_KEYS.c.made_ms, NAMESPACE_KEYS.c.id)).all()


def _intend(connection: Connection, ids: Sequence[str], due_ms: int, why: str) -> None:
    if ids:
        of_them = NAMESPACE_KEYS.c.id.in_(ids), NAMESPACE_KEYS.c.wrapped != ""
        wanted = {"shred_ms": due_ms, "shred_why": why}
        connection.execute(update(NAMESPACE_KEYS).where(*of_them).values(**wanted))
