"""Work in a container's network or IPC namespace, from a thread that enters it and ends there."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, TypeVar

from kybernate.adapters.kernel.nodespace import see_pods_network
from kybernate.adapters.kernel.sysadmin import as_admin

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_KINDS = {"net": 0x40000000, "ipc": 0x08000000}

_libc = ctypes.CDLL(None, use_errno=True)


def inside(pid: int, call: Callable[[], T], kind: str = "net", *, anywhere: bool = False) -> T:
    """What `call` returns in the process's namespace of this kind; blocks. Raises OSError, what
    `call` raises, and RefusedError if a network is the node's, unless the call works `anywhere`: it
    looks, or takes back."""

    def run() -> T:
        _enter(pid, kind, anywhere=anywhere)
        return call()

    return as_admin(run)


def _enter(pid: int, kind: str, *, anywhere: bool) -> None:
    descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if kind == "net" and not anywhere:
            see_pods_network(descriptor)
        if _libc.setns(descriptor, _KINDS[kind]):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
