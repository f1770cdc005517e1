"""What a disk has changed of SQLite's files, found before anybody is answered from them.

SQLite sums up the frames of its write-ahead log and nothing else. So each row that decides is held
twice, in its table and in an index, which SQLite keeps alike and compares. Of a log it believes the
frames before the first wrong one; what was committed behind that is gone without a word.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text

from kybernate.errors import ConfigError
from registry.schema import METADATA

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table
    from sqlalchemy.exc import DBAPIError

log = logging.getLogger(__name__)

TODO = (
    "stop the registry, keep the file, and put a backup back and run `kyb-registry unsettle`, or "
    "begin with an empty file and run `kyb-registry rebuild` (docs/reference/registry.md)"
)
_TWICE = tuple(
    (table, [column.name for column in table.columns]) for table in METADATA.sorted_tables
)
_DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_WHEN_BEGUN = _DAMAGED | {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY}
"""Where nothing but our own statements of preparing were made: then its schema is not ours."""
_NO_TEXT = "Could not decode to UTF-8"
"""Python's own complaint, which has no code of SQLite's."""
_HEAD = 32
_SALT = slice(16, 24)
_FRAME = struct.Struct(">II8s8x")
"""Of a frame's head: its page, the database's pages if it ends a transaction, the salt."""
_MAGICS = {0x377F0682: "<", 0x377F0683: ">"}


def check(connection: Connection) -> None:
    """Raises ConfigError, which says what to do, if a page or a row isn't what was written."""
    found = connection.execute(text("PRAGMA integrity_check(3)")).scalars().all()
    if found != ["ok"]:
        raise told("; ".join(found))


def told(problem: str) -> ConfigError:
    """The problem, and what is to be done."""
    return ConfigError("database", f"it is damaged, or can't be written ({problem}): {TODO}")


def is_damage(error: DBAPIError, *, preparing: bool = False) -> bool:
    """Whether the file itself is not right, so that the same call would always end so."""
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    return code in (_WHEN_BEGUN if preparing else _DAMAGED) or _NO_TEXT in str(error.orig)


def unreadable() -> sqlite3.DatabaseError:
    """What SQLite's complaint about a schema is, where it quotes bytes that can't be told."""
    error = sqlite3.DatabaseError("its schema is no text")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def keep_twice(connection: Connection) -> None:
    """From now on each row is in an index too. Older programs keep it, without knowing of it."""
    for table, columns in _TWICE:
        connection.execute(text(_index(table, columns)))


def _index(table: Table, columns: list[str]) -> str:
    return f"CREATE INDEX IF NOT EXISTS {table.name}_twice ON {table.name} ({', '.join(columns)})"


def lost(connection: Connection) -> bool:
    """Whether transactions lie in the log behind its first wrong frame; then the log is kept aside.
    Raises OSError.

    To be asked within a transaction that writes, which keeps others from adding to the log.
    """
    (path,) = (row.file for row in connection.execute(text("PRAGMA database_list")) if not row.seq)
    wal = Path(f"{path}-wal")
    data = wal.read_bytes() if wal.exists() else b""
    if len(data) <= _HEAD:
        return False
    page = int(connection.execute(text("PRAGMA page_size")).scalar_one())
    believed = struct.unpack_from("=I", Path(f"{path}-shm").read_bytes(), 16)[0]
    if not _ends_behind(data, page, believed):
        return False
    aside = wal.with_name(f"{wal.name}.damaged-{time.time_ns()}")
    try:
        shutil.copyfile(wal, aside)
    except OSError:
        # A part of it is of no use, and each try would leave one.
        aside.unlink(missing_ok=True)
        raise
    log.error(
        "%s was changed where it lies, and is kept as %s: what was committed last is lost, claims "
        "maybe among it; no pod can be claimed until `kyb-registry settle`",
        *(wal, aside),
    )
    return True


def _ends_behind(wal: bytes, page: int, believed: int) -> bool:
    """Whether a transaction of this log ends behind the frames that SQLite believed.

    Frames of the log before have another salt. What was rolled back has no end.
    """
    first = wal[_HEAD + 8 : _HEAD + 16]
    salt = wal[_SALT] if _is_right(wal[:_HEAD]) else first
    step = _FRAME.size + page
    heads = (_FRAME.unpack_from(wal, at) for at in range(_HEAD, len(wal) - step + 1, step))
    return any(ends and found == salt for _, ends, found in list(heads)[believed:])


def _is_right(head: bytes) -> bool:
    """Whether the log's head is what was written ("Checksum Algorithm" of walformat.html)."""
    order = _MAGICS.get(struct.unpack_from(">I", head)[0])
    if order is None:
        return False
    one = two = 0
    for left, right in struct.iter_unpack(f"{order}II", head[:24]):
        one = (one + left + two) & 0xFFFFFFFF
        two = (two + right + one) & 0xFFFFFFFF
    return (one, two) == struct.unpack_from(">II", head, 24)
