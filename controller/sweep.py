"""Operations whose request is gone, found on the agents themselves and cancelled.

A request that is deleted while no controller runs tells nobody; its operation is still there.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from controller import metrics
from kybernate.core.requests.checkpoint import strays
from kybernate.errors import KybernateError
from kybernate.lib.rounds import rounds_blocking

if TYPE_CHECKING:
    import threading

    from controller.agents import Agents
    from controller.known import Nodes, Requests
    from kybernate.core.requests.checkpoint import Request
    from kybernate.runtime.lead import Fence

log = logging.getLogger(__name__)

_AT_ONCE = 8


class Sweep:
    """`every` in seconds."""

    def __init__(
        self, requests: Requests[Request], nodes: Nodes, agents: Agents, fence: Fence, every: float
    ) -> None:
        self._requests = requests
        self._nodes = nodes
        self._agents = agents
        self._fence = fence
        self._every = every

    def run(self, stopping: threading.Event) -> None:
        """Sweep now and then, while this replica leads, until told to stop."""
        rounds_blocking(partial(self.sweep, stopping), stopping, self._every, "sweep")

    def sweep(self, stopping: threading.Event) -> None:
        """Ask all agents once."""
        if self._fence.closed() is not None:
            return
        with ThreadPoolExecutor(_AT_ONCE, "sweep") as pool:
            for node in self._nodes.names():
                pool.submit(self._of_node, node, stopping)

    def _of_node(self, node: str, stopping: threading.Event) -> None:
        if stopping.is_set():
            return
        try:
            # What is begun after this list is of a request that is known already.
            names = self._agents.own(node)
            for name in strays(names, self._requests.wanted()):
                self._fence.check()
                self._agents.cancel(node, name)
                metrics.STRAYS.inc()
                log.info("operation %s on node %s: its request is gone or has ended", name, node)
        except KybernateError as error:
            log.warning("operations on node %s can't be listed: %s", node, error)
