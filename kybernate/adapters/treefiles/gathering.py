"""There: what a container's processes changed is written into an archive, while they stand."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from contextlib import suppress
from itertools import islice
from typing import IO, TYPE_CHECKING

from kybernate.adapters.kernel import beneath
from kybernate.dataclass import dataclass
from kybernate.lib.deadline import Deadline

from . import mounts
from .note import ARCHIVE, Note, home_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from threading import Event

MOST_FILES = 100_000
"""Of files and folders together."""
MOST_DEPTH = 128
"""Folders in each other; each costs the walk two frames of Python's stack."""
LOOSE = ("tmp", "dev/shm")
KEPT_MODE = 0o1777
"""Bits of a mode that travel: a program that gives itself rights does so where it is installed."""

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class _TooMuchError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Terms:
    limit: int
    until: Deadline


def gather(
    init: int,
    images: Path,
    limit: int,
    deadline: float,
    proc: str = "/proc",
    stop: Event | None = None,
) -> Note:
    """Write what the container of this process 1 has changed, at most `limit` bytes, while its tree
    stands still. Raises NotFoundError if it is gone, OSError if the disk refuses, DeadlineError,
    also soon after `stop` was set.

    What is late writes nothing into a folder that has taken this one's name meanwhile.
    """
    until = Deadline(
        deadline, "To gather the files that its container had changed took too long.", stop
    )
    home = home_of(init, proc)
    with beneath.opened(images) as folder:
        try:
            note = _archive(init, home, folder, _Terms(limit, until), proc)
        except _TooMuchError as error:
            note = Note(home, missing=str(error))
        except (OSError, ValueError, tarfile.TarError) as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            note = Note(
                home, missing=f"The files that its container had changed did not travel: {error}."
            )
        until.check()
        if not note.files:
            with suppress(FileNotFoundError):
                os.unlink(ARCHIVE, dir_fd=folder)
        note.write(folder)
    return note


def _archive(init: int, home: str, folder: int, terms: _Terms, proc: str) -> Note:
    terms.until.check()
    there = mounts.of(init, proc)
    own = mounts.own_of(there, mounts.of_node(proc))
    others = frozenset(there)
    file = os.fdopen(beneath.made(ARCHIVE, folder), "wb")
    with (
        file,
        beneath.root_of(init, proc) as root,
        tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as archive,
    ):
        writer = _Writer(archive, terms)
        if layer := _layer(there.get("/")):
            with beneath.opened(layer) as upper:
                writer.take_all(upper, "", others)
        for place in LOOSE:
            if own.get(f"/{place}"):
                with suppress(FileNotFoundError), beneath.opened_below(root, place) as loose:
                    writer.take_all(loose, place, others - {f"/{place}"})
    return Note(home, writer.files, writer.size, volumes=_volumes(own))


def _volumes(own: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(f"/{place}" for place in LOOSE if own.get(f"/{place}") is False)


class _Writer:
    """What is written into an archive, counted."""

    def __init__(self, archive: tarfile.TarFile, terms: _Terms) -> None:
        self._archive = archive
        self._terms = terms
        self._entries = 0
        self.files = self.size = 0

    def take_all(self, folder: int, at: str, others: frozenset[str]) -> None:
        """All below the folder, which is at that path in the container, but for other mounts."""
        with os.scandir(folder) as found:
            names = sorted(one.name for one in islice(found, MOST_FILES + 1))
        for name in names:
            path = f"{at}/{name}" if at else name
            if f"/{path}" in others:
                continue
            with suppress(FileNotFoundError):
                self._take(folder, name, path, others)

    def _take(self, folder: int, name: str, path: str, others: frozenset[str]) -> None:
        self._terms.until.check()
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        entry = _entry(path, found)
        self._count(entry)
        if stat.S_ISDIR(found.st_mode):
            self._archive.addfile(entry)
            with beneath.opened(name, folder) as below:
                self.take_all(below, path, others)
            return
        if stat.S_ISLNK(found.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
        elif stat.S_ISFIFO(found.st_mode):
            entry.type = tarfile.FIFOTYPE
        elif not stat.S_ISREG(found.st_mode):
            return  # sockets are CRIU's, and a device in the layer says that a file was removed
        self.files += 1
        self._add(folder, name, entry)

    def _count(self, entry: tarfile.TarInfo) -> None:
        self._entries, self.size = self._entries + 1, self.size + entry.size
        if self.size > self._terms.limit or self._entries > MOST_FILES:
            raise _TooMuchError(
                f"Its container had changed more than {self._terms.limit >> 20} MiB of files, or "
                f"{MOST_FILES} files, so they did not travel; raise the agent's carry_bytes, or "
                "keep them on a volume."
            )
        if entry.name.count("/") > MOST_DEPTH:
            raise _TooMuchError(
                f"Its container had made more than {MOST_DEPTH} folders in each other, so what it "
                "had changed did not travel; keep it on a volume."
            )

    def _add(self, folder: int, name: str, entry: tarfile.TarInfo) -> None:
        if entry.type != tarfile.REGTYPE:
            self._archive.addfile(entry)
            return
        # Somebody in the container may have put a device there since: to open one has effects.
        with beneath.named(folder, name) as path:
            if stat.S_ISREG(os.stat(path).st_mode):
                with open(path, "rb") as file:
                    self._archive.addfile(entry, _Whole(file, self._terms.until))


class _Whole:
    """A file that others may shorten while it is read: what is missing then is zeros."""

    def __init__(self, file: IO[bytes], until: Deadline) -> None:
        self._file = file
        self._until = until

    def read(self, size: int = -1) -> bytes:
        """Exactly so many bytes. Raises DeadlineError."""
        self._until.check()
        return self._file.read(size).ljust(max(0, size), b"\0")


def _entry(path: str, found: os.stat_result) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.mode, entry.uid, entry.gid = found.st_mode & KEPT_MODE, found.st_uid, found.st_gid
    entry.mtime = found.st_mtime
    if stat.S_ISDIR(found.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISREG(found.st_mode):
        entry.size = found.st_size
    return entry


def _layer(root: mounts.Mount | None) -> str:
    """The folder of the container's writable layer as this process sees it; empty if it has none.

    Raises OSError if there is one and it can't be reached.
    """
    if root is None or root.kind != "overlay" or root.options[0] == "ro":
        return ""
    options = dict(word.partition("=")[::2] for word in root.more)
    upper = options.get("upperdir", "")
    if not upper:
        return ""
    for base in ("", "/proc/1/root"):
        if os.path.isdir(base + upper):
            return base + upper
    raise _TooMuchError(
        "The agent could not read what its container had changed: it needs the host's PID "
        "namespace (hostPID), to see the container runtime's folders."
    )
