"""Folders and files below a container's root, reached without following a link on any step."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError)
NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


@contextmanager
def root_of(init: int, proc: str) -> Iterator[int]:
    """A container's root, by its process 1. Raises NotFoundError."""
    try:
        opened_root = os.open(f"{proc}/{init}/root", _FOLDER | os.O_CLOEXEC)
    except GONE as error:
        raise NotFoundError(f"There is no process {init} any more.") from error
    try:
        yield opened_root
    finally:
        os.close(opened_root)


@contextmanager
def opened(path: str | Path, below: int | None = None) -> Iterator[int]:
    """A folder. Raises OSError."""
    found = os.open(path, _FOLDER | NO_LINK, dir_fd=below)
    try:
        yield found
    finally:
        os.close(found)


@contextmanager
def named(folder: int, name: str) -> Iterator[str]:
    """A path to exactly what is called so now, which nobody can put something else in place of."""
    found = os.open(name, os.O_PATH | NO_LINK, dir_fd=folder)
    try:
        if stat.S_ISLNK(os.fstat(found).st_mode):
            raise FileNotFoundError(f"{name} has become a link")
        yield f"/proc/self/fd/{found}"
    finally:
        os.close(found)


@contextmanager
def opened_below(root: int, path: str, *, make: bool = False) -> Iterator[int]:
    """The folder at a path below another, none of whose steps is a link; made, where it lacks."""
    here = os.dup(root)
    try:
        for part in filter(None, path.split("/")):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=here)
            below = os.open(part, _FOLDER | NO_LINK, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def made(name: str, folder: int) -> int:
    """An empty file of ours, open for writing. Raises OSError."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, 0o600, dir_fd=folder)
