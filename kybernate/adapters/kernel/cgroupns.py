"""The node's view of cgroups, for an agent that runs in a container.

With cgroup version 2, runtimes give a container a cgroup namespace of its own: /proc shows other
containers' cgroups by paths that lead nowhere, and the kernel refuses to move their processes. The
agent enters the namespace of the node's first process once, and then lays the right for it down.
"""

from __future__ import annotations

import os
from pathlib import Path

from kybernate.errors import ConfigError
from kybernate.lib import netns


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
    netns.lay_down_sys_admin()


def _namespace(process: Path) -> str:
    try:
        return os.readlink(process / "ns/cgroup")
    except FileNotFoundError:
        return ""  # a kernel without such namespaces


def _enter(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        netns.enter(handle, "cgroup")
    finally:
        os.close(handle)
