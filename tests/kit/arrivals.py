"""Sockets of made-up trees: a fake of `ports.Arrivals`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.core.swap.traffic import Traffic
from kybernate.ports import WatchReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.ports import WatchTerms

LOOK = 0.002
"""Virtual seconds that a look at a running tree's sockets takes."""


@dataclass(slots=True)
class _Watch:
    terms: WatchTerms
    on_arrival: Callable[[str], None]
    look: Callable[[], None]


@dataclass(slots=True)
class FakeArrivals:
    """Implements `ports.Arrivals`. `unread` are handles at whose sockets something waits.

    `report` is told of each watch, `running` is what comes to a handle that runs. `patience`:
    seconds that nobody looks unless told to hasten.
    """

    watches: dict[str, _Watch] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    report: WatchReport = field(default_factory=WatchReport)
    running: dict[str, Traffic | OSError] = field(default_factory=dict)
    looks: int = 0
    patience: float = 0.0

    def arrive(self, handle: str) -> None:
        """Something arrives there; nobody is told if nobody watches."""
        self.unread.add(handle)
        watch = self.watches.pop(handle, None)
        if watch is not None:
            watch.on_arrival("somebody connected to its port 8000")

    def watch(
        self,
        handle: str,
        terms: WatchTerms,
        on_arrival: Callable[[str], None],
        on_watched: Callable[[WatchReport], None],
    ) -> None:
        """Watched from the next round of events on."""
        looked = False

        def look() -> None:
            nonlocal looked
            if self.watches.get(handle) is watch and not looked:
                looked = True
                on_watched(self.report)
                if handle in self.unread:
                    self.arrive(handle)

        watch = self.watches[handle] = _Watch(terms, on_arrival, look)
        asyncio.get_running_loop().call_later(self.patience, look)

    def hasten(self, handle: str) -> None:
        """In the next round of events, if nobody has looked yet."""
        watch = self.watches.get(handle)
        if watch is not None:
            asyncio.get_running_loop().call_soon(watch.look)

    def unwatch(self, handle: str) -> None:
        """Not watched."""
        self.watches.pop(handle, None)

    async def traffic(self, handle: str, deadline: float) -> Traffic:
        """As set."""
        self.looks += 1
        await asyncio.sleep(LOOK)
        found = self.running.get(handle, Traffic())
        if isinstance(found, OSError):
            raise found
        return found
