"""And back: an archive's files are put into another container, before its tree is there."""

from __future__ import annotations

import os
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import beneath
from kybernate.dataclass import dataclass
from kybernate.errors import RestoreError
from kybernate.lib.deadline import Deadline

from . import mounts
from .gathering import KEPT_MODE, MOST_FILES
from .note import ARCHIVE, Note, home_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from threading import Event

_CHUNK = 1 << 20
_LATEST = float(2**63 - 1024)
"""Seconds since 1970: the last time of the kernel's that is a float. A tmpfs has later ones."""


def lay_out(
    init: int,
    images: Path,
    limit: int,
    deadline: float,
    proc: str = "/proc",
    stop: Event | None = None,
) -> int:
    """Put the files into the container of this process 1, unless it is the one that they are of;
    how many. Raises NotFoundError if it is gone, RestoreError if they can't be there,
    DeadlineError, also soon after `stop` was set."""
    until = Deadline(
        deadline, "To lay out the files that its container had changed took too long.", stop
    )
    try:
        until.check()
        note = Note.read(images)
        if note is None or note.home == home_of(init, proc):
            return 0
        own = mounts.own_of(mounts.of(init, proc), mounts.of_node(proc))
        _see_volumes(note, own)
        if not (images / ARCHIVE).exists():
            return 0
        with beneath.root_of(init, proc) as root, tarfile.open(images / ARCHIVE, "r:") as archive:
            return _Layer(archive, root, own, until).lay_all(limit)
    except (OSError, ValueError, OverflowError, tarfile.TarError, EOFError) as error:
        raise RestoreError(f"the files that it had changed can't be laid out: {error}") from error


def _see_volumes(note: Note, own: Mapping[str, bool]) -> None:
    for place in note.volumes:
        if own.get(mounts.nearest(place, own), True):
            raise RestoreError(
                f"it had a volume at {place}, whose files do not travel, and this container has "
                "none there; mount the same volume"
            )


@dataclass(slots=True)
class _Layer:
    """An archive on its way into a container's root; `own` as of `mounts.own_of`."""

    archive: tarfile.TarFile
    root: int
    own: Mapping[str, bool]
    until: Deadline

    def lay_all(self, limit: int) -> int:
        """How many files there are now."""
        done = size = 0
        made: list[tarfile.TarInfo] = []
        for entry in self.archive:
            self.until.check()
            size += entry.size
            if size > limit or done > MOST_FILES:
                raise RestoreError(
                    f"its files take more than this agent lets travel ({limit >> 20} MiB); raise "
                    "carry_bytes"
                )
            if self._is_ours(entry):
                self._lay(entry)
                done += not entry.isdir()
                made += [entry] if entry.isdir() else []
        # Last, since what is laid into a folder changes its time, and may need the right to write.
        for entry in reversed(made):
            self.until.check()
            self._finish_folder(entry)
        return done

    def _is_ours(self, entry: tarfile.TarInfo) -> bool:
        """False of a folder where a volume is; raises RestoreError of what would lie in one."""
        path = "/" + "/".join(_parts(entry.name))
        point = mounts.nearest(path, self.own)
        if self.own.get(point, True):
            return True
        if not entry.isdir():
            raise RestoreError(
                f"it had changed {path[:200]!r}, where this container has a volume ({point[:200]}) "
                "that is not its own; mount there what was mounted there, or nothing"
            )
        return False

    def _lay(self, entry: tarfile.TarInfo) -> None:
        *above, name = _parts(entry.name)
        with beneath.opened_below(self.root, "/".join(above), make=True) as folder:
            if entry.isdir():
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
                return
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            if entry.isreg():
                self._lay_file(entry, folder, name)
            else:
                _lay_other(entry, folder, name)

    def _lay_file(self, entry: tarfile.TarInfo, folder: int, name: str) -> None:
        source = self.archive.extractfile(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | beneath.NO_LINK
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
            while source is not None and (data := source.read(_CHUNK)):
                self.until.check()
                file.write(data)
            file.flush()
            os.fchown(file.fileno(), entry.uid, entry.gid)
            os.fchmod(file.fileno(), entry.mode & KEPT_MODE)
            os.utime(file.fileno(), _times(entry))

    def _finish_folder(self, entry: tarfile.TarInfo) -> None:
        with beneath.opened_below(self.root, "/".join(_parts(entry.name))) as folder:
            os.fchown(folder, entry.uid, entry.gid)
            os.fchmod(folder, entry.mode & KEPT_MODE)
            os.utime(folder, _times(entry))


def _lay_other(entry: tarfile.TarInfo, folder: int, name: str) -> None:
    if entry.issym():
        os.symlink(entry.linkname, name, dir_fd=folder)
        os.chown(name, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False)
    elif entry.isfifo():
        os.mkfifo(name, 0o600, dir_fd=folder)
        os.chown(name, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False)
        with beneath.named(folder, name) as path:
            os.chmod(path, entry.mode & KEPT_MODE)


def _times(entry: tarfile.TarInfo) -> tuple[float, float]:
    changed = min(entry.mtime, _LATEST)
    return changed, changed


def _parts(name: str) -> list[str]:
    parts = name.rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise RestoreError(f"{name[:200]!r} is no path of a file that could travel")
    return parts
