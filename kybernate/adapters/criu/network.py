"""Work in a container's network namespace, from a thread that enters it and ends there."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from typing import TYPE_CHECKING, TypeVar

from kybernate.adapters.nodespace import see_pods_network

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_SYS_ADMIN = 1 << 21
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def inside(pid: int, call: Callable[[], T], *, looks: bool = False) -> T:
    """What `call` returns in the process's network namespace; blocks. Raises OSError, what `call`
    raises, and RefusedError if the namespace is the node's, unless the call only `looks`."""
    results: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            _take_sys_admin()
            _enter(pid, looks=looks)
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return results[0]


def _take_sys_admin() -> None:
    """Effective in this thread alone; the agent keeps it permitted."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    sets = ctypes.create_string_buffer(24)
    if _libc.capget(header, sets) == 0:
        words = list(struct.unpack("=6I", sets.raw))
        words[0] |= _SYS_ADMIN
        _libc.capset(header, ctypes.create_string_buffer(struct.pack("=6I", *words), 24))


def _enter(pid: int, *, looks: bool) -> None:
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not looks:
            see_pods_network(descriptor)
        if _libc.setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
