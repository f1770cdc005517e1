"""The agent's journal: an append-only file of checksummed lines, one record each.

A line is `<crc32, 8 hex digits> <JSON>`. JSON is {"e": epoch, "f": format, "d": what was lost of
this epoch} as the first line, then {"k": key, "v": record} or {"k": key} for a deletion. A last
line that was cut off was never acknowledged: it counts as unwritten. Any other wrong line is
damage: the lines behind it are read all the same, the file as it was is kept aside, and `damage`
tells of it. Rewritten when it has grown to many times its content; the new file is whole on the
disk before it takes the name.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from kybernate.dataclass import dataclass
from kybernate.errors import RefusedError
from kybernate.lib.retry import quietly, retry_blocking, steadily

FORMAT = 2
"""Of the file; 1 was the same without the number. What a higher one says can't be read here."""

_KEPT_ASIDE = 4
_LOCK_POLL = steadily(0.05)
_AT_ONCE = 0.001
"""Seconds that an event loop waits on the spot: a sync mostly takes a fifth of it, and the loop
would take as long again to be told of its end."""
_LATE = 0.01
"""Seconds within which a record is written that may be late. A swap makes eleven records and awaits
two: each time that the writer's thread is woken takes the loop more than the write."""

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from pathlib import Path

    Records = Mapping[str, Mapping[str, Any]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record, or the end of one (None), and its line."""

    key: str
    record: Mapping[str, object] | None
    line: bytes
    synced: bool


class _Written:
    """The answer to a `put`: awaited, it ends when the batch is written. `write` has that begin."""

    def __init__(self, batch: Future[None], write: Callable[[], None]) -> None:
        self._batch, self._write = batch, write

    def __await__(self) -> Generator[Any, None, None]:
        if not self._batch.done():
            self._write()
        with suppress(TimeoutError):
            return self._batch.result(_AT_ONCE)
        # One who no longer wants the answer must not take it from the others of the batch.
        yield from asyncio.shield(asyncio.wrap_future(self._batch)).__await__()


class FileJournal:
    """Implements `ports.Journal` on one file.

    `epoch` (such as the boot ID) says for how long the records mean anything: records of
    another epoch are dropped by `load`, but for what `outlasting` makes of them. `damage` says what
    `load` could not read, "" if nothing.
    """

    def __init__(
        self,
        path: Path,
        epoch: str,
        rewrite_at: int = 4096,
        patience: float = 10.0,
        outlasting: Callable[[Records], Records] = lambda _: {},
    ) -> None:
        """At `rewrite_at` lines the file is rewritten, if that at least halves it. `patience`:
        seconds that `load` waits for an earlier owner of the file to end."""
        self.damage = ""
        self._outlasting = outlasting
        self._path = path
        self._rewrite_at = rewrite_at
        self._epoch = epoch
        self._records: dict[str, Mapping[str, object]] = {}
        self._lines = 0
        self._fd = -1
        self._damaged = False
        self._patience = patience
        self._lock_fd = -1
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._lock = threading.Lock()
        self._batch: list[_Entry] = []
        self._written: Future[None] = Future()
        """The answer to all that is in the batch."""
        self._writing = False
        """Whether the thread will take the batch as it is then."""

    def load(self) -> Mapping[str, Mapping[str, object]]:
        """See `ports.Journal.load`. Also makes the file whole again for appending.

        Raises RefusedError if another process owns the file, or a newer agent wrote it in a format
        that this one can't read.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._own()
        found, wrong, self.damage = _replay(self._path, self._epoch, self._outlasting)
        self._records = dict(found)
        if wrong:
            aside = _keep_aside(self._path)
            self.damage = (
                f"{wrong} of the journal's lines can't be read; the file is kept as {aside}"
            )
        self._rewrite()
        return dict(self._records)

    def put(
        self, key: str, record: Mapping[str, object], *, synced: bool, late: bool = False
    ) -> Awaitable[None]:
        """See `ports.Journal.put`."""
        entry = _Entry(key, record, _line({"k": key, "v": record}), synced)
        return self._submit(entry, late=late and not synced)

    def delete(self, key: str) -> Awaitable[None]:
        """See `ports.Journal.delete`."""
        return self._submit(_Entry(key, None, _line({"k": key}), synced=False), late=False)

    def close(self) -> None:
        """See `ports.Journal.close`."""
        self._write()
        self._writer.shutdown(wait=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _own(self) -> None:
        # Beside the file, which is replaced when it is rewritten. The kernel gives the lock back
        # when its owner is gone, however it ended.
        lock = self._path.with_suffix(".lock")
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            retry_blocking(
                lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
                quietly,
                on=BlockingIOError,
                pauses=_LOCK_POLL,
                until=time.monotonic() + self._patience,
            )
        except BlockingIOError:
            os.close(fd)
            raise RefusedError(
                f"another agent uses {self._path}; stop it, or give this one a state_dir of its own"
            ) from None
        self._lock_fd = fd

    def _submit(self, entry: _Entry, *, late: bool) -> Awaitable[None]:
        with self._lock:
            self._batch.append(entry)
            first, written = len(self._batch) == 1, self._written
        if not late:
            self._write()
        elif first:
            asyncio.get_running_loop().call_later(_LATE, self._write)
        return _Written(written, self._write)

    def _write(self) -> None:
        """Have the thread write what there is, if it won't do so anyhow."""
        with self._lock:
            if self._batch and not self._writing:
                self._writing = True
                self._writer.submit(self._write_batch)

    def _write_batch(self) -> None:
        """Everything that was put until now: one write, one sync."""
        with self._lock:
            batch, self._batch = self._batch, []
            written, self._written = self._written, Future()
            self._writing = False
        try:
            self._take(batch)
        except Exception as error:  # noqa: BLE001 - carried to who waits
            log.warning("the journal can't be written: %s", error)
            written.set_exception(error)
        else:
            written.set_result(None)

    def _take(self, batch: list[_Entry]) -> None:
        for entry in batch:
            if entry.record is None:
                self._records.pop(entry.key, None)
            else:
                self._records[entry.key] = entry.record
        if self._damaged:
            # Nothing behind a torn line would be read again, nor may a failed sync be repeated.
            self._rewrite()
            return
        try:
            self._append(batch)
        except OSError:
            self._damaged = True
            raise

    def _append(self, batch: list[_Entry]) -> None:
        _write_all(self._fd, b"".join(entry.line for entry in batch))
        self._lines += len(batch)
        if self._lines >= self._rewrite_at and self._lines > 2 * len(self._records):
            self._rewrite()
        elif any(entry.synced for entry in batch):
            os.fdatasync(self._fd)

    def _rewrite(self) -> None:
        new = self._path.with_suffix(".new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        lines = [_line({"e": self._epoch, "f": FORMAT, "d": self.damage})]
        lines += [_line({"k": key, "v": record}) for key, record in self._records.items()]
        try:
            _write_all(fd, b"".join(lines))
            os.fsync(fd)
            new.rename(self._path)
            _sync_folder(self._path.parent)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._lines, self._damaged = fd, len(lines), False


def _line(value: Mapping[str, object]) -> bytes:
    text = orjson.dumps(value)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _replay(
    path: Path, epoch: str, outlasting: Callable[[Records], Records]
) -> tuple[Records, int, str]:
    """The records of the epoch, how many lines are wrong, and what was lost before."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return {}, 0, ""
    if lines and not lines[-1].endswith(b"\n"):
        # A write that was cut off; or the newline alone is wrong, and the line was whole.
        whole = lines.pop()[:-1] + b"\n"
        lines += [whole] if _entry(whole) else []
    entries = [_entry(line) for line in lines]
    wrong = entries.count(None)
    if not entries:
        return {}, 0, ""
    old = _is_of_another(path, entries[0], epoch)
    records: dict[str, Mapping[str, object]] = {}
    for entry in entries:
        key = (entry or {}).get("k")
        if entry is None or not isinstance(key, str):
            continue
        if isinstance(value := entry.get("v"), dict):
            records[key] = value
        else:
            records.pop(key, None)
    if old:
        return outlasting(records), 0, ""
    return records, wrong, str((entries[0] or {}).get("d", ""))


def _is_of_another(path: Path, first: Mapping[str, object] | None, epoch: str) -> bool:
    """Whether the records mean nothing any more. Where the first line is wrong nobody can tell:
    every boot rewrites the file, so they are most likely of this one."""
    if first is None:
        return False
    if first.get("e") != epoch:
        return True
    written = first.get("f", 1)
    if not isinstance(written, int) or written > FORMAT:
        raise RefusedError(
            f"{path} has format {written}, and this agent reads formats up to {FORMAT}: run the "
            "version that wrote it, or a newer one"
        )
    return False


def _entry(line: bytes) -> Mapping[str, object] | None:
    """What the line says; None if it is wrong."""
    text = line[9:-1]
    if line[8:9] != b" " or line[-1:] != b"\n" or line[:8] != b"%08x" % zlib.crc32(text):
        return None
    entry = orjson.loads(text)
    return entry if isinstance(entry, dict) else None


def _keep_aside(path: Path) -> Path:
    """The file as it is, under another name; of several the last few."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    aside.hardlink_to(path)
    for old in sorted(path.parent.glob(f"{path.name}.damaged-*"))[:-_KEPT_ASIDE]:
        old.unlink(missing_ok=True)
    return aside
