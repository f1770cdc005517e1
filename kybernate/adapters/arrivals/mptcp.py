"""Switches MPTCP off in a network namespace: who asks for it is told that there is none.

CRIU knows no MPTCP, and a Go server of 1.24 or later listens by it unless it can't. The setting is
the namespace's own, and lasts as long. It is reached by a mount of proc that is attached nowhere:
runtimes have /proc/sys read-only in containers, the agent's too, and a pod's /proc is the pod's.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTING = "sys/net/mptcp/enabled"
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC = 1
_CREATE = 6

_libc = ctypes.CDLL(None, use_errno=True)


def switch_off() -> None:
    """In the calling thread's namespace; nothing where the kernel has no MPTCP. What has such a
    socket keeps it. Quick; needs CAP_SYS_ADMIN, raises OSError."""
    with _proc() as proc, suppress(FileNotFoundError):
        setting = os.open(_SETTING, os.O_RDWR | os.O_CLOEXEC, dir_fd=proc)
        try:
            if os.read(setting, 16).strip() != b"0":
                os.pwrite(setting, b"0\n", 0)
        finally:
            os.close(setting)


@contextmanager
def _proc() -> Iterator[int]:
    """A proc file system of our own."""
    context = _called(_FSOPEN, b"proc", _CLOEXEC)
    try:
        _called(_FSCONFIG, context, _CREATE, None, None, 0)
        mount = _called(_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)
    try:
        yield mount
    finally:
        os.close(mount)


def _called(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"a proc file system of its own: {os.strerror(code)}")
    return result
