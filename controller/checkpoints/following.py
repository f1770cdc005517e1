"""Hears of the ends of operations when they come, rather than at the next look.

A pod waits while its state is away: what its agent has done is not to lie there until somebody asks
again, seconds later after minutes. Whoever isn't followed, since many are or its agent doesn't
answer, is looked at now and then all the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.checkpoints.agents import Agents

_MOST = 32
"""Each is a thread that waits, and an open call."""
_OF_NODE = 8
"""An agent has so many streams for one caller, and other calls need some."""
_WITHIN_S = 600.0


class Following:
    """Operations that are waited for, by their names. Any thread may ask."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._lock = threading.Lock()
        self._nodes: dict[str, str] = {}

    def follow(self, node: str, name: str, ended: Callable[[], None]) -> None:
        """Have `ended` called once the operation has ended, on another thread; nothing if that is
        so already, or too many are followed."""
        with self._lock:
            of_node = sum(one == node for one in self._nodes.values())
            if name in self._nodes or len(self._nodes) >= _MOST or of_node >= _OF_NODE:
                return
            self._nodes[name] = node
        work = threading.Thread(target=self._wait, args=(node, name, ended), daemon=True)
        work.name = "follow"
        work.start()

    def _wait(self, node: str, name: str, ended: Callable[[], None]) -> None:
        try:
            if self._agents.ends(node, name, _WITHIN_S):
                ended()
        finally:
            with self._lock:
                del self._nodes[name]
