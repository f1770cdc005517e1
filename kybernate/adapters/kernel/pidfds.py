"""Notices that a process has ended, without looking: a pidfd turns readable."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.types import PodUid

_MOST = 64
"""Processes watched of one seat: descriptors are limited, and the first ones count most."""


class Pidfds:
    """Implements `kybernate.ports.Deaths`. All calls come from one running event loop."""

    def __init__(self) -> None:
        self._open: dict[PodUid, dict[int, int]] = {}

    def watch(
        self, uid: PodUid, pids: Iterable[int], on_death: Callable[[PodUid, int], None]
    ) -> None:
        """Tell of the first of these processes that ends, or has ended already; then no more."""
        self.unwatch(uid)
        watched = self._open[uid] = {}
        loop = asyncio.get_running_loop()

        def ended(pid: int) -> None:
            if self._open.get(uid) is watched:
                self.unwatch(uid)
                on_death(uid, pid)

        for pid in list(dict.fromkeys(pids))[:_MOST]:
            try:
                watched[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                loop.call_soon(ended, pid)
                continue
            loop.add_reader(watched[pid], ended, pid)

    def unwatch(self, uid: PodUid) -> None:
        """Tell no more of this seat; idempotent."""
        for descriptor in self._open.pop(uid, {}).values():
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
