"""What a tree's processes have open: read once for all that ask before a dump."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.adapters.criu.container import Container

    Opened = Mapping[int, Mapping[int, str]]
    """Process → descriptor → what its link says."""

_GONE = (FileNotFoundError, ProcessLookupError)


def of(container: Container) -> dict[int, dict[int, str]]:
    """Of every process of the tree; nothing of one that is gone. Raises PermissionError."""
    return {pid: _of_process(f"{container.proc}/{pid}/fd") for pid in container.pids()}


def _of_process(folder: str) -> dict[int, str]:
    found: dict[int, str] = {}
    with suppress(*_GONE):
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                found[int(name)] = os.readlink(f"{folder}/{name}")
    return found
