"""The right to enter namespaces and to change device cgroups, taken by one thread for its life.

The agent keeps CAP_SYS_ADMIN permitted and not effective: a thread that needs it takes it up.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SYS_ADMIN = 1 << 21
_VERSION_3 = 0x20080522
_SETS = struct.Struct("=6I")
"""Effective, permitted and inheritable, first of capabilities 0-31, then of 32-63."""

_libc = ctypes.CDLL(None, use_errno=True)


def take_sys_admin() -> None:
    """Make CAP_SYS_ADMIN effective in the calling thread. Raises PermissionError without it."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0))
    sets = ctypes.create_string_buffer(_SETS.size)
    _checked(_libc.capget(header, sets))
    effective, *others = _SETS.unpack(sets.raw)
    if not effective & _SYS_ADMIN:
        wanted = _SETS.pack(effective | _SYS_ADMIN, *others)
        _checked(_libc.capset(header, ctypes.create_string_buffer(wanted, _SETS.size)))


def as_admin(call: Callable[[], T]) -> T:
    """What `call` returns in a thread that has CAP_SYS_ADMIN, and ends with it; blocks. Raises
    PermissionError without it, and what `call` raises."""
    results: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            take_sys_admin()
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return results[0]


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"CAP_SYS_ADMIN: {os.strerror(number)}")
