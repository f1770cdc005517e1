"""Containers' namespaces, and not the node's, where nothing may be changed for a pod's sake."""

from __future__ import annotations

import os
from contextlib import suppress

from kybernate.errors import RefusedError
from kybernate.lib import netns


def enter(pid: int, kind: str = "net", *, anywhere: bool = False) -> None:
    """Have the calling thread, which has CAP_SYS_ADMIN, be in the process's namespace of this kind.

    Raises FileNotFoundError if the process is gone, OSError, and RefusedError if a network is the
    node's, unless what comes next works `anywhere`: it looks, or takes back.
    """
    space = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if kind == "net" and not anywhere:
            see_pods_network(space)
        netns.enter(space, kind)
    finally:
        os.close(space)


def see_pods_network(space: int) -> None:
    """Raises RefusedError if this open network namespace is the node's, or ours: rules and
    addresses meant for one pod would be everybody's there."""
    found = os.fstat(space)
    for one in ("self", "1"):
        with suppress(PermissionError):
            if os.path.samestat(os.stat(f"/proc/{one}/ns/net"), found):
                raise RefusedError(
                    "its pod shares the node's network (hostNetwork), where nothing is changed for "
                    "one pod; leave hostNetwork out of its spec, so that it has one of its own"
                )
