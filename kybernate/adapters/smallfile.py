"""Reads of the kernel's small files, without a file object: a swap makes dozens of them."""

from __future__ import annotations

import os

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
