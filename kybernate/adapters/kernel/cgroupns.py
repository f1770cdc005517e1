"""The node's view of cgroups, for an agent that runs in a container.

With cgroup version 2, runtimes give a container a cgroup namespace of its own: /proc shows other
containers' cgroups by paths that lead nowhere, and the kernel refuses to move their processes. The
agent enters the namespace of the node's first process once, and then lays the right for it down.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from kybernate.errors import ConfigError

_CLONE_NEWCGROUP = 0x02000000
_CAP_SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522
_SETS = struct.Struct("=6I")
"""Effective, permitted and inheritable, first of capabilities 0-31, then of 32-63."""


def enter_node_cgroups(mount: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
    """Sees cgroups of version 2 as PID 1 does; CAP_SYS_ADMIN is not effective any more.

    It stays permitted, for the threads that look at a seat's sockets. To be called before other
    threads and processes are started: those inherit both. Raises ConfigError, naming the missing
    right, if the namespace is another one and can't be entered.
    """
    try:
        version2 = (mount / "cgroup.controllers").exists()
        if version2 and _namespace(proc / "self") != _namespace(proc / "1"):
            _enter(proc / "1/ns/cgroup")
    except PermissionError as error:
        raise ConfigError(
            "capabilities",
            f"the node's cgroup namespace can't be entered ({error.strerror}): give the agent's "
            "container hostPID, SYS_PTRACE and SYS_ADMIN, as config/nodeagent does",
        ) from error
    _lay_down(_CAP_SYS_ADMIN)


def _namespace(process: Path) -> str:
    try:
        return os.readlink(process / "ns/cgroup")
    except FileNotFoundError:
        return ""  # a kernel without such namespaces


def _enter(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_libc().setns(handle, _CLONE_NEWCGROUP))
    finally:
        os.close(handle)


def _lay_down(capability: int) -> None:
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    sets = ctypes.create_string_buffer(_SETS.size)
    libc = _libc()
    _checked(libc.capget(header, sets))
    words = list(_SETS.unpack(sets.raw))
    words[3 * (capability // 32)] &= ~(1 << capability % 32)
    _checked(libc.capset(header, ctypes.create_string_buffer(_SETS.pack(*words), _SETS.size)))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
