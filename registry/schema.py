"""The tables, and how a database gets to be of the newest version."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Boolean, Column, Index, MetaData, Table, Text, inspect, text

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Connection

METADATA = MetaData()


def _table(name: str, *columns: Column[object] | Index) -> Table:
    return Table(name, METADATA, *columns)


def _text(name: str, *, key: bool = False, optional: bool = False) -> Column[object]:
    return Column(name, Text, primary_key=key, nullable=optional)


def _number(name: str) -> Column[object]:
    return Column(name, BigInteger, nullable=False)


def _flag(name: str) -> Column[object]:
    return Column(name, Boolean, nullable=False)


ARTIFACTS = _table(
    "artifacts",
    _text("id", key=True),
    *map(_text, ("namespace", "digest", "pod", "pod_uid", "container", "model")),
    *map(_number, ("size", "created_ms")),
    _text("parent", optional=True),
    _text("facts"),
    _number("recorded_ms"),
)
COPIES = _table(
    "copies",
    *(_text(name, key=True) for name in ("artifact", "place", "node", "store")),
    _text("state"),
    *map(_number, ("size", "told_ms", "created_ms")),
)
PODS = _table(
    "pods",
    *(_text(name, key=True) for name in ("namespace", "uid")),
    _number("version"),
    _text("node"),
    _number("token"),
    _text("holder"),
    _number("until_ms"),
    *map(_text, ("stopped", "stopped_by", "stopped_why", "successor", "successor_node")),
    _text("artifact"),
    *map(_flag, ("settled", "ended")),
)
WRITERS = _table(
    "writers",
    *(_text(name, key=True) for name in ("artifact", "node")),
    *map(_number, ("token", "told_ms")),
)
"""Which nodes are believed of an artifact: who recorded it, with the token that it had, and who
packed it as the pod's successor; `told_ms`: when this was first told, 0 where 0.2.0 wrote it, which
left that out. Beside the versions: an older program needs not know of it."""
LONG_AGO = 1
"""For `told_ms` of what only a manifest says: before anything that was decided of its node."""
NAMESPACES = _table(
    "namespaces",
    *(_text(name, key=True) for name in ("name", "uid")),
    *map(_number, ("seen_ms", "gone_ms")),
)
"""Which namespaces there were; `gone_ms` is 0 for one that is there."""

NAMESPACE_KEYS = _table(
    "namespace_keys",
    _text("id", key=True),
    *map(_text, ("namespace", "uid")),
    _number("made_ms"),
    *map(_text, ("wrapped_by", "wrapped")),
    *map(_number, ("shred_ms", "shredded_ms")),
    _text("shred_why"),
)
"""Namespaces' own keys. `shred_ms`: when it is to be destroyed, 0 for never; `wrapped` is empty
from then on, and `shredded_ms` set once it lies nowhere else either."""

MARKS = _table("marks", _text("name", key=True), _text("value"))
"""Single values: the schema's version, since when all claims are known, PostgreSQL's timeline, what
names of packs are proven by."""

VERSION = "schema"
SETTLED = "settled"
TIMELINE = "timeline"
PACK_NAMES = "pack-names"
"""A secret in hexadecimal digits, and until when names count that it doesn't prove, in seconds
since 1970: after an upgrade packs may be half-written of which 0.2.0 made the name."""
_BRIDGE_S = 1800

_FIRST = (
    """CREATE TABLE artifacts (
        id {text} NOT NULL PRIMARY KEY, namespace {text} NOT NULL, digest {text} NOT NULL,
        pod {text} NOT NULL, pod_uid {text} NOT NULL, container {text} NOT NULL,
        model {text} NOT NULL, size BIGINT NOT NULL, created_ms BIGINT NOT NULL, parent {text},
        facts {text} NOT NULL, recorded_ms BIGINT NOT NULL)""",
    """CREATE TABLE copies (
        artifact {text} NOT NULL REFERENCES artifacts (id) ON DELETE CASCADE,
        place {text} NOT NULL, node {text} NOT NULL, store {text} NOT NULL,
        state {text} NOT NULL, size BIGINT NOT NULL, told_ms BIGINT NOT NULL,
        created_ms BIGINT NOT NULL, PRIMARY KEY (artifact, place, node, store))""",
    """CREATE TABLE pods (
        namespace {text} NOT NULL, uid {text} NOT NULL, version BIGINT NOT NULL,
        node {text} NOT NULL, token BIGINT NOT NULL, holder {text} NOT NULL,
        until_ms BIGINT NOT NULL,
        stopped {text} NOT NULL, stopped_by {text} NOT NULL, stopped_why {text} NOT NULL,
        successor {text} NOT NULL, successor_node {text} NOT NULL, artifact {text} NOT NULL,
        settled BOOLEAN NOT NULL, ended BOOLEAN NOT NULL, PRIMARY KEY (namespace, uid))""",
    "CREATE INDEX pods_of_successor ON pods (successor)",
    "CREATE INDEX artifacts_newest ON artifacts (created_ms, id)",
    "CREATE INDEX artifacts_of_namespace ON artifacts (namespace, created_ms, id)",
    "CREATE INDEX artifacts_of_model ON artifacts (model, created_ms, id)",
    "CREATE INDEX artifacts_of_pod ON artifacts (pod, created_ms, id)",
    "CREATE INDEX artifacts_of_uid ON artifacts (pod_uid, created_ms, id)",
    "CREATE INDEX copies_of_node ON copies (node, created_ms, artifact)",
    "CREATE INDEX copies_of_place ON copies (place, created_ms, artifact)",
    "CREATE INDEX copies_in_state ON copies (state, created_ms, artifact)",
)
_BESIDE = (
    """CREATE TABLE IF NOT EXISTS writers (
    artifact {text} NOT NULL REFERENCES artifacts (id) ON DELETE CASCADE, node {text} NOT NULL,
    token BIGINT NOT NULL, told_ms BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (artifact, node))""",
    """CREATE TABLE IF NOT EXISTS namespaces (
        name {text} NOT NULL, uid {text} NOT NULL, seen_ms BIGINT NOT NULL,
        gone_ms BIGINT NOT NULL, PRIMARY KEY (name, uid))""",
    """CREATE TABLE IF NOT EXISTS namespace_keys (
        id {text} NOT NULL PRIMARY KEY, namespace {text} NOT NULL, uid {text} NOT NULL,
        made_ms BIGINT NOT NULL, wrapped_by {text} NOT NULL, wrapped {text} NOT NULL,
        shred_ms BIGINT NOT NULL, shredded_ms BIGINT NOT NULL, shred_why {text} NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS keys_of_namespace ON namespace_keys (namespace, uid, made_ms, id)",
)
"""Tables that older programs need not know of: no version, so that these open the database, too."""
_TOLD = "ALTER TABLE writers ADD COLUMN told_ms BIGINT NOT NULL DEFAULT 0"
"""A column that 0.2.0 leaves out."""
MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST,)
"""What takes a database from each version to the next, oldest first; never changed, only added."""

# Texts are ordered by their bytes everywhere: pages go by that order.
_TEXT = {"postgresql": 'TEXT COLLATE "C"', "sqlite": "TEXT"}
_LOCK = 0x6B796272


def migrate(connection: Connection) -> int:
    """Take the database to the newest version, alone; gives how many steps that took.

    Raises ConfigError if a newer program made it.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    MARKS.create(connection, checkfirst=True)
    row = connection.execute(MARKS.select().where(MARKS.c.name == VERSION)).first()
    version = int(row.value) if row else 0
    if version > len(MIGRATIONS):
        raise ConfigError(
            "database",
            f"it is of version {version}, and this program knows {len(MIGRATIONS)}: run the newer "
            "program, or restore the backup from before it",
        )
    for step in MIGRATIONS[version:]:
        for statement in step:
            connection.execute(text(statement.format(text=_TEXT[connection.dialect.name])))
    for statement in _BESIDE:
        connection.execute(text(statement.format(text=_TEXT[connection.dialect.name])))
    if "told_ms" not in {one["name"] for one in inspect(connection).get_columns(WRITERS.name)}:
        connection.execute(text(_TOLD))
    _make_pack_names(connection)
    connection.execute(MARKS.delete().where(MARKS.c.name == VERSION))
    connection.execute(MARKS.insert().values(name=VERSION, value=str(len(MIGRATIONS))))
    return len(MIGRATIONS) - version


def _make_pack_names(connection: Connection) -> None:
    if connection.execute(MARKS.select().where(MARKS.c.name == PACK_NAMES)).first():
        return
    older = connection.execute(PODS.select().limit(1)).first()
    until = int(time.time()) + _BRIDGE_S if older else 0
    value = f"{secrets.token_hex(32)} {until}"
    connection.execute(MARKS.insert().values(name=PACK_NAMES, value=value))
