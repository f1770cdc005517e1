"""The right to enter namespaces, taken by one thread for as long as it lives.

The agent keeps CAP_SYS_ADMIN permitted and not effective: a thread that needs it takes it up.
"""

from __future__ import annotations

import ctypes
import os
import struct

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


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"CAP_SYS_ADMIN: {os.strerror(number)}")
