"""Entering other processes' namespaces, and the right to, which one thread takes for its life.

The agent keeps CAP_SYS_ADMIN permitted and not effective: a thread that needs it takes it up.
`os.setns` comes with Python 3.12.
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

_KINDS = {
    "net": 0x40000000,
    "pid": 0x20000000,
    "ipc": 0x08000000,
    "cgroup": 0x02000000,
    "mnt": 0x00020000,
}
_SYS_ADMIN = 1 << 21
_VERSION_3 = 0x20080522
_SETS = struct.Struct("=6I")
"""Effective, permitted and inheritable, first of capabilities 0-31, then of 32-63."""

_libc = ctypes.CDLL(None, use_errno=True)


def enter(space: int, kind: str) -> None:
    """Have the calling thread be in this open namespace: "net", "ipc" or "cgroup". Raises OSError,
    and PermissionError without CAP_SYS_ADMIN."""
    _checked(_libc.setns(space, _KINDS[kind]), "setns")


def leave(*kinds: str) -> None:
    """Have the calling thread be in new namespaces of these kinds, and what it starts; only the
    latter in one of processes ("pid"). Raises OSError, PermissionError without CAP_SYS_ADMIN."""
    _checked(_libc.unshare(sum(_KINDS[kind] for kind in kinds)), "unshare")


def take_sys_admin() -> None:
    """Make CAP_SYS_ADMIN effective in the calling thread. Raises PermissionError without it."""
    _set_effective(wanted=True)


def lay_down_sys_admin() -> None:
    """It is not effective in the calling thread any more, and stays permitted."""
    _set_effective(wanted=False)


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


def _set_effective(*, wanted: bool) -> None:
    header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0))
    sets = ctypes.create_string_buffer(_SETS.size)
    _checked(_libc.capget(header, sets), "CAP_SYS_ADMIN")
    before, *others = _SETS.unpack(sets.raw)
    effective = before | _SYS_ADMIN if wanted else before & ~_SYS_ADMIN
    if effective != before:
        packed = _SETS.pack(effective, *others)
        buffer = ctypes.create_string_buffer(packed, _SETS.size)
        _checked(_libc.capset(header, buffer), "CAP_SYS_ADMIN")


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
