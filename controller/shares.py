"""Shares: what namespaces have used, as all nodes' agents together have counted it.

Agents go by Shares without this on their own node; what is here makes a quota one of the cluster's.
Nothing is remembered: what agents tell is added up again each time.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from controller.base.lasting import Lasting, read_lasting, write_lasting
from kybernate import keys
from kybernate.api.shares import dump_share_status, read_share
from kybernate.core.policy.shares import NOTHING, Found, Share, ShareReason, judge
from kybernate.errors import ConflictError, KybernateError
from kybernate.lib.rounds import rounds_blocking
from kybernate.runtime.listed import Listed

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from controller.base.cluster import Cluster
    from controller.base.known import Nodes
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

log = logging.getLogger(__name__)

EVERY_S = 5.0
"""Seconds between two looks."""


class Shares:
    """Has each Share say what its namespace has used. `pods`: those with seats of a namespace;
    `revoked`: why a node isn't believed, empty if it is."""

    def __init__(
        self,
        nodes: Nodes,
        pods: Callable[[str], object],
        revoked: Callable[[str], str],
        cluster: Cluster,
        fence: Fence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.seen: Listed[Lasting[Share]] = Listed(keys.SHARES_PATH, "Shares", _read)
        self._nodes = nodes
        self._pods = pods
        self._revoked = revoked
        self._cluster = cluster
        self._fence = fence
        self._wall = wall

    def run(self, stopping: threading.Event) -> None:
        """Look now and then, while this replica leads, until told to stop."""
        rounds_blocking(self.look, stopping, EVERY_S, "Shares")

    def look(self) -> None:
        """Look at all once; what can't be written of one holds up no other."""
        if self._fence.closed() is not None:
            return
        for one in self.seen.all():
            try:
                self._write(one)
            except ConflictError:
                # It was changed meanwhile, which the watch tells.
                continue
            except KybernateError as error:
                log.warning("%s: %s", one.path, error)

    def _write(self, one: Lasting[Share]) -> None:
        now = self._wall()
        found = self._judged(one, now)
        status = dump_share_status(found, one.status, one.generation, now)
        if write_lasting(self._cluster, one, status, self._fence) is None:
            return
        if not found.reason.holds and found.reason.value not in str(one.status):
            log.info("%s: %s", one.path, found.message)

    def _judged(self, one: Lasting[Share], now: float) -> Found:
        share = one.says
        if share is None:
            return Found(ShareReason.INVALID, one.wrong, NOTHING)
        rows = self._nodes.used(share.namespace)
        believed = {node: used for node, used in rows.items() if not self._revoked(node)}
        return judge(share, believed, now, seats=bool(self._pods(share.namespace)))


def _read(item: Json) -> Lasting[Share]:
    return read_lasting(keys.SHARES_PATH, item, read_share)
