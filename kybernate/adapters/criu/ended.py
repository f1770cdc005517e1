"""Folders of containers that are no more: nobody looks into their logs and locks again."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.criu import limits, running
from kybernate.adapters.criu.container import is_free
from kybernate.adapters.criu.net import loans
from kybernate.adapters.kernel import smallfile

if TYPE_CHECKING:
    from pathlib import Path


def forget(root: Path, proc: Path) -> None:
    """Remove those in which nobody works, and by which nothing is to be put back. Blocks."""
    for work in root.iterdir():
        locks = (work / name for name in (running.ENTERED, running.PAGES))
        with suppress(OSError):
            lent = any((work / name).exists() for name in (limits.FILE, loans.FILE))
            if not (_lives(work.name, proc) or lent) and all(is_free(lock) for lock in locks):
                shutil.rmtree(work)


def _lives(name: str, proc: Path) -> bool:
    """Whether the process is there that the folder is named after, or it is named otherwise."""
    pid, _, start = name.partition("-")
    if not (pid.isdigit() and start.isdigit()):
        return True
    with suppress(FileNotFoundError, ProcessLookupError):
        return smallfile.read(f"{proc}/{pid}/stat").rpartition(")")[2].split()[19] == start
    return False
