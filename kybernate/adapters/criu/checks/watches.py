"""Folders that a tree watches (inotify): CRIU must be told where to look for them on overlayfs.

The kernel names what is watched by file system and inode only. Looked for are the places where
programs keep what they watch; the walk sees the container's mounts and is bounded.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import beneath, smallfile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.criu.checks.descriptors import Opened
    from kybernate.adapters.criu.container import Container

_PLACES = ("/etc", "/config", "/data", "/tmp", "/run", "/var", "/home", "/srv", "/opt", "/app", "/")  # noqa: S108 - looked at, not used
_DEPTH = 4
_LIMIT = 0.3
"""Seconds of looking."""
_WATCH = re.compile(r"inotify wd:\S+ ino:([0-9a-f]+) sdev:([0-9a-f]+)")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError)


def folders(container: Container, opened: Opened) -> tuple[list[str], list[int]]:
    """Paths in the container that are watched, and for each watch without one its process."""
    wanted = dict(_watches(container, opened))
    if not wanted:
        return [], []
    found: dict[int, str] = {}
    end = time.monotonic() + _LIMIT
    for inode, path in _walk(container):
        if inode in wanted and inode not in found:
            found[inode] = path
        if len(found) == len(wanted) or time.monotonic() > end:
            break
    return sorted(found.values()), [pid for at, pid in wanted.items() if at not in found]


def _watches(container: Container, opened: Opened) -> Iterator[tuple[int, int]]:
    """(inode, process) of everything that is watched."""
    for pid, links in opened.items():
        for descriptor, link in links.items():
            if link == "anon_inode:inotify":
                with suppress(*_GONE):
                    text = smallfile.read(f"{container.proc}/{pid}/fdinfo/{descriptor}")
                    for match in _WATCH.finditer(text):
                        yield int(match[1], 16), pid


def _walk(container: Container) -> Iterator[tuple[int, str]]:
    """(inode, path in the container) of files and folders. No link is followed on any step: one of
    the container's would lead to the node's own folders."""
    with beneath.root_of(container.init, str(container.proc)) as root:
        for place in _PLACES:
            with suppress(OSError), beneath.opened_below(root, place) as folder:
                yield from _inside(folder, place.rstrip("/"), _DEPTH)


def _inside(folder: int, shown: str, depth: int) -> Iterator[tuple[int, str]]:
    yield os.fstat(folder).st_ino, shown or "/"
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.inode(), f"{shown}/{entry.name}"
            if depth and entry.is_dir(follow_symlinks=False) and shown + entry.name != "proc":
                with suppress(OSError), beneath.opened(entry.name, folder) as below:
                    yield from _inside(below, f"{shown}/{entry.name}", depth - 1)
