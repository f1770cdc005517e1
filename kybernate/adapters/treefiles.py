"""Files of a container that its processes changed: beside the images of its tree, and back.

CRIU writes memory, and takes it that files are where they were. In another container that is so
for the image's own and for volumes; what was changed in the writable layer, in /tmp and in /dev/shm
travels as a tar archive. It was made by a tenant: only plain files, folders, links and pipes of it
are laid out, and each step of each path is opened without following a link.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tarfile
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING

from kybernate.adapters import smallfile
from kybernate.errors import NotFoundError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARCHIVE = "files.tar"
NOTE = "files.json"
MOST_FILES = 100_000
"""Of files and folders together."""
MOST_DEPTH = 128
"""Folders in each other; each costs the walk two frames of Python's stack."""
_LOOSE = ("tmp", "dev/shm")
_KEPT_MODE = 0o1777
"""Bits of a mode that travel: a program that gives itself rights does so where it is installed."""

_GONE = (FileNotFoundError, ProcessLookupError)
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Note:
    """`home`: the container that the files are of. `missing`: why they did not travel, or empty."""

    home: str
    files: int = 0
    size: int = 0
    missing: str = ""


class _TooMuchError(Exception):
    pass


def gather(init: int, images: Path, limit: int, proc: str = "/proc") -> Note:
    """Write what the container of this process 1 has changed, at most `limit` bytes, while its tree
    stands still. Raises NotFoundError if it is gone, OSError if the disk refuses."""
    home = home_of(init, proc)
    try:
        found = _archive(init, images / ARCHIVE, limit, proc)
        note = Note(home, *found)
    except _TooMuchError as error:
        note = Note(home, missing=str(error))
    except (OSError, ValueError, tarfile.TarError) as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        note = Note(
            home, missing=f"The files that its container had changed did not travel: {error}."
        )
    if not note.files:
        (images / ARCHIVE).unlink(missing_ok=True)
    (images / NOTE).write_text(json.dumps(asdict(note)))
    return note


def lay_out(init: int, images: Path, limit: int, proc: str = "/proc") -> int:
    """Put the files into the container of this process 1, unless it is the one that they are of;
    how many. Raises NotFoundError if it is gone, RestoreError if they can't be there."""
    try:
        note = Note(**json.loads((images / NOTE).read_text()))
    except FileNotFoundError:
        return 0
    except (ValueError, TypeError) as error:
        raise RestoreError(f"{images / NOTE} can't be understood: {error}") from error
    if note.home == home_of(init, proc) or not (images / ARCHIVE).exists():
        return 0
    try:
        with _root(init, proc) as root, tarfile.open(images / ARCHIVE, "r:") as archive:
            return _lay_all(archive, root, limit)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise RestoreError(f"the files that it had changed can't be laid out: {error}") from error


def home_of(init: int, proc: str = "/proc") -> str:
    """Names the container exactly: boot, process 1 and its start. Raises NotFoundError."""
    try:
        start = smallfile.read(f"{proc}/{init}/stat").rpartition(")")[2].split()[19]
    except _GONE as error:
        raise NotFoundError(f"There is no process {init} any more.") from error
    return f"{smallfile.read('/proc/sys/kernel/random/boot_id').strip()}/{init}/{start}"


# --- there --------------------------------------------------------------------------------------


def _archive(init: int, path: Path, limit: int, proc: str) -> tuple[int, int]:
    """How many files there are, and their bytes."""
    mounts = _mounts(init, proc)
    with _root(init, proc) as root, tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as archive:
        writer = _Writer(archive, limit)
        if layer := _layer(mounts):
            with _opened(layer) as upper:
                writer.take_all(upper, "", frozenset(mounts))
        for place in _LOOSE:
            if f"/{place}" in mounts:
                with suppress(FileNotFoundError), _opened_below(root, place) as folder:
                    writer.take_all(folder, place, frozenset(mounts) - {f"/{place}"})
    return writer.files, writer.size


class _Writer:
    """What is written into an archive, counted."""

    def __init__(self, archive: tarfile.TarFile, limit: int) -> None:
        self._archive = archive
        self._limit = limit
        self._entries = 0
        self.files = self.size = 0

    def take_all(self, folder: int, at: str, mounts: frozenset[str]) -> None:
        """All below the folder, which is at that path in the container, but for other mounts."""
        with os.scandir(folder) as found:
            names = sorted(one.name for one in islice(found, MOST_FILES + 1))
        for name in names:
            path = f"{at}/{name}" if at else name
            if f"/{path}" in mounts:
                continue
            with suppress(FileNotFoundError):
                self._take(folder, name, path, mounts)

    def _take(self, folder: int, name: str, path: str, mounts: frozenset[str]) -> None:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        entry = _entry(path, found)
        self._count(entry)
        if stat.S_ISDIR(found.st_mode):
            self._archive.addfile(entry)
            opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=folder)
            try:
                self.take_all(opened, path, mounts)
            finally:
                os.close(opened)
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
        if self.size > self._limit or self._entries > MOST_FILES:
            raise _TooMuchError(
                f"Its container had changed more than {self._limit >> 20} MiB of files, or "
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
        with _named(folder, name) as path:
            if stat.S_ISREG(os.stat(path).st_mode):
                with open(path, "rb") as file:
                    self._archive.addfile(entry, _Whole(file))


class _Whole:
    """A file that others may shorten while it is read: what is missing then is zeros."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Exactly so many bytes."""
        return self._file.read(size).ljust(max(0, size), b"\0")


def _entry(path: str, found: os.stat_result) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.mode, entry.uid, entry.gid = found.st_mode & _KEPT_MODE, found.st_uid, found.st_gid
    entry.mtime = found.st_mtime
    if stat.S_ISDIR(found.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISREG(found.st_mode):
        entry.size = found.st_size
    return entry


def _mounts(init: int, proc: str) -> dict[str, list[str]]:
    """Mount points of the container, with the words that mountinfo says of each."""
    try:
        lines = smallfile.read(f"{proc}/{init}/mountinfo").splitlines()
    except _GONE as error:
        raise NotFoundError(f"There is no process {init} any more.") from error
    return {words[4].encode().decode("unicode_escape"): words for words in map(str.split, lines)}


def _layer(mounts: dict[str, list[str]]) -> str:
    """The folder of the container's writable layer as this process sees it; empty if it has none.

    Raises OSError if there is one and it can't be reached.
    """
    words = mounts.get("/", [])
    if "overlay" not in words or words[5].split(",")[0] == "ro":
        return ""
    options = dict(word.partition("=")[::2] for word in words[-1].split(","))
    upper = options.get("upperdir", "")
    if not upper:
        return ""
    for root in ("", "/proc/1/root"):
        if os.path.isdir(root + upper):
            return root + upper
    raise _TooMuchError(
        "The agent could not read what its container had changed: it needs the host's PID "
        "namespace (hostPID), to see the container runtime's folders."
    )


# --- and back -----------------------------------------------------------------------------------


def _lay_all(archive: tarfile.TarFile, root: int, limit: int) -> int:
    done = size = 0
    folders: list[tarfile.TarInfo] = []
    for entry in archive:
        size += entry.size
        if size > limit or done > MOST_FILES:
            raise RestoreError(
                f"its files take more than this agent lets travel ({limit >> 20} MiB); raise "
                "carry_bytes"
            )
        _lay(archive, entry, root)
        done += not entry.isdir()
        folders += [entry] if entry.isdir() else []
    # Last, since what is laid into a folder changes its time, and may need the right to write.
    for entry in reversed(folders):
        _finish_folder(entry, root)
    return done


def _lay(archive: tarfile.TarFile, entry: tarfile.TarInfo, root: int) -> None:
    *above, name = _parts(entry.name)
    with _opened_below(root, "/".join(above), make=True) as folder:
        if entry.isdir():
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
            return
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        if entry.issym():
            os.symlink(entry.linkname, name, dir_fd=folder)
            os.chown(name, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False)
        elif entry.isfifo():
            os.mkfifo(name, 0o600, dir_fd=folder)
            os.chown(name, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False)
            with _named(folder, name) as path:
                os.chmod(path, entry.mode & _KEPT_MODE)
        elif entry.isreg():
            _lay_file(archive, entry, folder, name)


def _lay_file(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: int, name: str) -> None:
    source = archive.extractfile(entry)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        while source is not None and (data := source.read(_CHUNK)):
            file.write(data)
        file.flush()
        os.fchown(file.fileno(), entry.uid, entry.gid)
        os.fchmod(file.fileno(), entry.mode & _KEPT_MODE)
        os.utime(file.fileno(), (entry.mtime, entry.mtime))


def _finish_folder(entry: tarfile.TarInfo, root: int) -> None:
    with _opened_below(root, "/".join(_parts(entry.name))) as folder:
        os.fchown(folder, entry.uid, entry.gid)
        os.fchmod(folder, entry.mode & _KEPT_MODE)
        os.utime(folder, (entry.mtime, entry.mtime))


def _parts(name: str) -> list[str]:
    parts = name.rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise RestoreError(f"{name[:200]!r} is no path of a file that could travel")
    return parts


# --- folders without links ----------------------------------------------------------------------


@contextmanager
def _root(init: int, proc: str) -> Iterator[int]:
    try:
        opened = os.open(f"{proc}/{init}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except _GONE as error:
        raise NotFoundError(f"There is no process {init} any more.") from error
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _named(folder: int, name: str) -> Iterator[str]:
    """A path to exactly what is called so now, which nobody can put something else in place of."""
    found = os.open(name, os.O_PATH | _NO_LINK, dir_fd=folder)
    try:
        if stat.S_ISLNK(os.fstat(found).st_mode):
            raise FileNotFoundError(f"{name} has become a link")
        yield f"/proc/self/fd/{found}"
    finally:
        os.close(found)


@contextmanager
def _opened_below(root: int, path: str, *, make: bool = False) -> Iterator[int]:
    """The folder at a path below another, none of whose steps is a link; made, where it lacks."""
    here = os.dup(root)
    try:
        for part in filter(None, path.split("/")):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=here)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)
