"""Namespaces' own keys: made here, wrapped by the key management system, handed out for a pod.

A node gets the key of a namespace while it has a lease or a claim of a pod there, and the cluster
has that namespace still: a key belongs to the namespace's UID, and one of the same name that was
made again has another. Data keys, which lie in the places, are wrapped by it. What releases before
0.2.0 saved has data keys that the key management system itself has wrapped; they are the
namespace's that the registry saw first under the name.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import and_, select

from kybernate.adapters.keys.artifactkeys import WrapKeys, wrapping_id
from kybernate.core.artifacts import keyobjects
from kybernate.core.artifacts.keyobjects import NamespaceKey
from kybernate.dataclass import dataclass
from kybernate.errors import (
    ConfigError,
    ConflictError,
    CorruptError,
    LockedError,
    RefusedError,
    RetryableError,
)
from registry.database import insert_new
from registry.pods import fetch
from registry.schema import NAMESPACE_KEYS, NAMESPACES, PODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Row

    from kybernate.core.artifacts.keyobjects import KeyObject
    from kybernate.ports import Kms
    from registry.database import Database

log = logging.getLogger(__name__)

_KEY = 32
KEEP_S = 24 * 3600.0
"""Seconds that a node may continue with a key of which it can't hear again."""
_AWAY_S = 10.0


class Identities(Protocol):
    """Which namespaces there are, as the cluster says. `registry.cluster.Cluster` is one."""

    def namespace_uid(self, name: str, *, fresh: bool = False) -> str | None:
        """The UID; None if there is none of this name. Raises RetryableError."""
        ...


@dataclass(frozen=True, slots=True)
class Given:
    """A key for a node: the namespace's own with `sealed`, or a data key that was opened."""

    uid: str
    key: bytes
    sealed: NamespaceKey | None = None


def gone_of_none(_uid: str) -> bool:
    """`NamespaceKeys` where no cluster says which pods are gone."""
    return False


class NamespaceKeys:
    """All of them. `cluster`: None where there is none, and a namespace is known by its name alone.
    `gone`: whether the cluster says that the pod with this UID is no more."""

    def __init__(
        self,
        database: Database,
        kms: Kms,
        cluster: Identities | None = None,
        gone: Callable[[str], bool] = gone_of_none,
    ) -> None:
        self._database = database
        self._kms = kms
        self._cluster = cluster
        self._gone = gone

    def check_pod(self, node: str, pod: tuple[str, str]) -> None:
        """The node has a lease or a claim for this pod. Raises ConflictError."""
        with self._database.read() as connection:
            if not _holds(connection, node, pod, self._database.now(connection)):
                raise ConflictError(
                    f"node {node} has no lease of pod {'/'.join(pod)}, and no claim for it: take "
                    "one first"
                )
        if self._gone(pod[1]):
            raise ConflictError(f"pod {'/'.join(pod)} is gone: nothing is opened for it any more")

    def uid_of(self, namespace: str) -> str:
        """The namespace's UID, empty without a cluster; remembered from now on.

        Raises ConflictError if there is no such namespace, RetryableError.
        """
        uid = self._cluster.namespace_uid(namespace) if self._cluster is not None else ""
        if uid is None:
            raise ConflictError(f"the cluster has no namespace {namespace} any more")
        with self._database.read() as connection:
            if _seen(connection, namespace, uid):
                return uid
        with self._database.write() as connection:
            now = self._database.now(connection)
            row = {"name": namespace, "uid": uid, "seen_ms": now, "gone_ms": 0}
            insert_new(connection, NAMESPACES, [row])
        return uid

    def newest(self, namespace: str) -> Given:
        """The key that wraps the namespace's new data keys, made if there is none. Raises
        ConflictError, RetryableError."""
        uid = self.uid_of(namespace)
        with self._database.read() as connection:
            row = _newest(connection, namespace, uid)
        if row is None:
            self._make(namespace, uid)
            with self._database.read() as connection:
                row = _newest(connection, namespace, uid)
        if row is None:
            raise RetryableError(f"the key of namespace {namespace} was destroyed just now")
        return self._opened(row)

    def named(self, namespace: str, id_: str, *, former: bool = False) -> Given | None:
        """The key of this ID; None if it isn't known. `former`: also of a namespace that is gone,
        until it is destroyed. Raises RefusedError for one that was destroyed, or is another
        namespace's; ConflictError, RetryableError."""
        uid = "" if former else self.uid_of(namespace)
        with self._database.read() as connection:
            query = select(NAMESPACE_KEYS).where(NAMESPACE_KEYS.c.id == id_)
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        if row.namespace != namespace:
            raise RefusedError(f"key {id_} is another namespace's than {namespace}")
        if not row.wrapped:
            raise RefusedError(f"key {id_} of namespace {namespace} was destroyed: {row.shred_why}")
        if not former and row.uid not in ("", uid):
            raise RefusedError(
                f"key {id_} is that of a namespace {namespace} which was deleted (UID {row.uid}); "
                "what it saved is not the present one's"
            )
        if not former and row.uid != uid:
            self._check_first(namespace, uid)
        return self._opened(row)

    def opened(self, namespace: str, by: str, wrapped: str, *, former: bool = False) -> Given:
        """A data key that the key management system itself has wrapped, for the namespace that was
        first of its name. Raises RefusedError, ConflictError, RetryableError."""
        uid = self.uid_of(namespace) if not former else ""
        if not former:
            self._check_first(namespace, uid)
        try:
            return Given(uid, self._unwrapped(by, wrapped, namespace))
        except (LockedError, RefusedError) as error:
            raise RetryableError(
                f"key {by} is not known here, and wraps nothing else: if the registry's database "
                f"was lost, `kyb-registry rebuild` finds the keys of namespaces ({error})",
                _AWAY_S,
            ) from error

    def check_data_key(self, namespace: str, number: str, data: bytes) -> None:
        """What is to lie in the object store as the namespace's data key of this number opens, and
        so does its own key beside it. Where nothing here wraps keys, agents alone can tell.

        Raises RefusedError if not, ConflictError, RetryableError.
        """
        try:
            self._see_opens(namespace, number, keyobjects.decode(data, "data"))
        except (CorruptError, LockedError, RefusedError) as error:
            raise RefusedError(f"data: is no data key of namespace {namespace}: {error}") from error

    def _see_opens(self, namespace: str, number: str, key: KeyObject) -> None:
        own = key.of
        if str(key.number) != number:
            raise CorruptError(f"number is {key.number}, not {number}")
        if not own.id:
            if self._kms.newest:
                self._unwrapped(key.by, key.wrapped, namespace)
            return
        given = self.named(namespace, own.id)
        if given is None or key.by != own.id:
            raise CorruptError(f"it is wrapped by {key.by}, beside {own.id}, which is not known")
        if self._unwrapped(own.by, own.wrapped, own.bound_to(namespace)) != given.key:
            raise CorruptError("the namespace's key beside it is another")
        WrapKeys((given.key,)).unwrap(key.by, key.wrapped, namespace)

    def _check_first(self, namespace: str, uid: str) -> None:
        with self._database.read() as connection:
            query = select(NAMESPACES.c.uid).where(NAMESPACES.c.name == namespace)
            first = connection.execute(query.order_by(NAMESPACES.c.seen_ms, NAMESPACES.c.uid))
            owner = next((one for one in first.scalars() if one or not uid), uid)
        if owner != uid:
            raise RefusedError(
                f"artifacts from before namespaces had keys of their own is that of the namespace "
                f"{namespace} which was deleted (UID {owner}), and not the present one's"
            )

    def _make(self, namespace: str, uid: str) -> None:
        """Wrapped first: a crash leaves a row that opens, or none. Of two makers the one with the
        lower row is used by both."""
        secret = secrets.token_bytes(_KEY)
        made = NamespaceKey(wrapping_id(secret), uid)
        by, wrapped = self._wrapped(secret, made.bound_to(namespace))
        with self._database.write() as connection:
            now = self._database.now(connection)
            if _newest(connection, namespace, uid) is None:
                sealed = NamespaceKey(made.id, uid, now, by, wrapped)
                insert_new(connection, NAMESPACE_KEYS, [row_of(namespace, sealed)])
        log.info("namespace %s (UID %s) has a key from now on", namespace, uid or "unknown")

    def _opened(self, row: Row[Any]) -> Given:
        sealed = sealed_of(row)
        try:
            key = self._unwrapped(sealed.by, sealed.wrapped, sealed.bound_to(row.namespace))
        except (LockedError, RefusedError) as error:
            # Nobody may give a state up for that: the key that wraps it may be put back.
            raise RetryableError(
                f"key {row.id} of namespace {row.namespace} can't be opened: {error}", _AWAY_S
            ) from error
        return Given(row.uid, key, sealed)

    def _wrapped(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        try:
            return self._kms.wrap(secret, bound_to)
        except ConfigError as error:
            raise _not_set_up(error) from error

    def _unwrapped(self, by: str, wrapped: str, bound_to: str) -> bytes:
        try:
            return self._kms.unwrap(by, wrapped, bound_to)
        except ConfigError as error:
            raise _not_set_up(error) from error


def sealed_of(row: Row[Any]) -> NamespaceKey:
    """A row's key, as it lies in places."""
    return NamespaceKey(row.id, row.uid, row.made_ms, row.wrapped_by, row.wrapped)


def row_of(namespace: str, key: NamespaceKey) -> dict[str, Any]:
    """The row of a key."""
    return {
        "id": key.id,
        "namespace": namespace,
        "uid": key.uid,
        "made_ms": key.made_ms,
        "wrapped_by": key.by,
        "wrapped": key.wrapped,
        "shred_ms": 0,
        "shredded_ms": 0,
        "shred_why": "",
    }


def _newest(connection: Connection, namespace: str, uid: str) -> Row[Any] | None:
    """The first made, so that all makers agree."""
    table = NAMESPACE_KEYS.c
    query = select(NAMESPACE_KEYS).where(
        table.namespace == namespace, table.uid == uid, table.wrapped != ""
    )
    return connection.execute(query.order_by(table.made_ms, table.id).limit(1)).one_or_none()


def _seen(connection: Connection, namespace: str, uid: str) -> bool:
    table = NAMESPACES.c
    query = select(table.uid).where(table.name == namespace, table.uid == uid)
    return connection.execute(query).scalar_one_or_none() is not None


def _holds(connection: Connection, node: str, pod: tuple[str, str], now: int) -> bool:
    """Whether the pod is the node's: by a lease that has not ended, or since it continues there
    with another's state."""
    namespace, uid = pod
    found = fetch(connection, pod)
    if found is not None and not found.ended and not found.stopped:
        continues = found.successor not in ("", uid)
        if not continues and found.holder == node and found.until_ms > now:
            return True
    if found is not None and found.stopped and found.successor != uid:
        return False
    claimed = and_(
        PODS.c.namespace == namespace, PODS.c.successor == uid, PODS.c.successor_node == node
    )
    if connection.execute(select(PODS.c.uid).where(claimed).limit(1)).first() is None:
        return False
    return found is None or found.successor in ("", uid)


def _not_set_up(error: ConfigError) -> RetryableError:
    return RetryableError(f"the registry can't wrap or open keys: {error}", _AWAY_S)
