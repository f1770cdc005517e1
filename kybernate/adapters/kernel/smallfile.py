"""Reads of the kernel's small files, without a file object: a swap makes dozens of them."""

from __future__ import annotations

import os
from contextlib import suppress

_PIECE = 1 << 16


def read(path: str) -> str:
    """All of it; what is no UTF-8 is replaced. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(descriptor, _PIECE)
        while piece:
            piece = os.read(descriptor, _PIECE)
            data += piece
    finally:
        os.close(descriptor)
    return data.decode(errors="replace")


def children(proc: object, pid: int) -> list[int]:
    """The children of all of a process's threads: the kernel notes each with the thread that made
    it. A thread that ends meanwhile has none. Raises FileNotFoundError, ProcessLookupError if the
    process is gone."""
    found: list[int] = []
    for thread in sorted(os.listdir(f"{proc}/{pid}/task"), key=int):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, read(f"{proc}/{pid}/task/{thread}/children").split())
    return found
