"""Whether a network namespace is the node's, where nothing may be changed for a pod's sake."""

from __future__ import annotations

import os
from contextlib import suppress

from kybernate.errors import RefusedError


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
