"""Namespaces' keys where they lie wrapped: in the database, and beside data keys in the places.

Taken in after the database was lost, wrapped again by the newest key, and destroyed. Each can be
ended anywhere and begun again: what is done is seen to be done.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from kybernate.adapters.keys.artifactkeys import wrapping_id
from kybernate.checkpoint.catalogue import data_keys
from kybernate.core.artifacts import keyobjects
from kybernate.errors import LockedError, RefusedError
from registry.database import insert_new
from registry.keys.namespacekeys import row_of, sealed_of
from registry.schema import NAMESPACE_KEYS, NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from kybernate.checkpoint.catalogue import Laid
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.keyobjects import KeyObject, NamespaceKey
    from kybernate.ports import Kms
    from registry.database import Database

log = logging.getLogger(__name__)


def take_in(database: Database, kms: Kms, place: Place) -> int:
    """Namespaces' keys that the database doesn't know; gives how many. What doesn't open is left
    out: agents put these objects. Raises RetryableError, ConfigError."""
    with database.read() as connection:
        known = set(connection.execute(select(NAMESPACE_KEYS.c.id)).scalars())
    found: dict[str, tuple[str, NamespaceKey]] = {}
    for one in data_keys(place):
        own = one.key.of
        if own.id and own.id not in known and own.id not in found and _opens(kms, one):
            found[own.id] = one.namespace, own
    rows = [row_of(namespace, own) for namespace, own in found.values()]
    seen = [
        {"name": row["namespace"], "uid": row["uid"], "seen_ms": row["made_ms"], "gone_ms": 0}
        for row in rows
    ]
    if not rows:
        return 0
    with database.write() as connection:
        insert_new(connection, NAMESPACES, seen)
        return insert_new(connection, NAMESPACE_KEYS, rows)


def _opens(kms: Kms, one: Laid) -> bool:
    own = one.key.of
    try:
        return wrapping_id(kms.unwrap(own.by, own.wrapped, own.bound_to(one.namespace))) == own.id
    except (LockedError, RefusedError) as error:
        log.warning("the key in %s is left out: %s", one.at, error)
        return False


def rewrap(
    database: Database,
    kms: Kms,
    places: Sequence[Place],
    say: Callable[[str], None],
    *,
    dry_run: bool,
) -> int:
    """Wrap by the newest key what others have wrapped; gives how many were, or would be.

    First the database, then the places: an agent that lays a key beside a new data key meanwhile
    has it from the database. Data keys that a key of the key management system has wrapped itself
    are wrapped again, too, but manifests of before have them as well, and are signed: `say` is told
    which key these still need. Raises RetryableError, ConfigError, RefusedError.
    """
    newest = kms.newest
    with database.read() as connection:
        rows = connection.execute(select(NAMESPACE_KEYS).where(NAMESPACE_KEYS.c.wrapped != ""))
        sealed = {row.id: (row.namespace, sealed_of(row)) for row in rows}
    done = 0
    for namespace, key in [one for one in sealed.values() if one[1].by != newest]:
        say(f"key {key.id} of {namespace}: wrapped by {key.by}; {newest} wraps it from now on")
        done += 1
        if not dry_run:
            sealed[key.id] = namespace, _again(kms, namespace, key)
            _store(database, key, sealed[key.id][1])
    now = {id_: key for id_, (_, key) in sealed.items()}
    for place in places:
        for one in data_keys(place):
            if (one.key.of.by or one.key.by) == newest or one.key.of.id not in {"", *now}:
                continue
            if not one.key.of.id:
                say(f"{one.at}: keep key {one.key.by} while states of before 0.2.0 are there")
            say(f"{place.name}/{one.at}: wrapped by {newest} from now on")
            done += 1
            if not dry_run:
                place.objects.put(one.at, keyobjects.encode(_wrapped_again(kms, one, now)))
    return done


def _wrapped_again(kms: Kms, one: Laid, now: Mapping[str, NamespaceKey]) -> KeyObject:
    if one.key.of.id:
        return one.key.with_own(now[one.key.of.id])
    secret = kms.unwrap(one.key.by, one.key.wrapped, one.namespace)
    by, wrapped = kms.wrap(secret, one.namespace)
    return replace(one.key, by=by, wrapped=wrapped)


def remove(place: Place, namespace: str, ids: Collection[str]) -> int:
    """Destroy these keys where they lie beside data keys; gives how many objects went. Raises
    RetryableError, OSError."""
    found = [one.at for one in data_keys(place, namespace) if one.key.of.id in ids]
    if found:
        place.objects.delete(found)
    return len(found)


def _again(kms: Kms, namespace: str, key: NamespaceKey) -> NamespaceKey:
    try:
        secret = kms.unwrap(key.by, key.wrapped, key.bound_to(namespace))
    except (LockedError, RefusedError) as error:
        raise RefusedError(f"key {key.id} of namespace {namespace}: {error}") from error
    by, wrapped = kms.wrap(secret, key.bound_to(namespace))
    return replace(key, by=by, wrapped=wrapped)


def _store(database: Database, before: NamespaceKey, after: NamespaceKey) -> None:
    """Unless it was destroyed meanwhile."""
    table = NAMESPACE_KEYS.c
    same = table.id == before.id, table.wrapped == before.wrapped
    with database.write() as connection:
        values = {"wrapped_by": after.by, "wrapped": after.wrapped}
        connection.execute(update(NAMESPACE_KEYS).where(*same).values(**values))
