"""The two watches that feed the snapshot, and what they mean for being ready."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

from extender import metrics
from extender.http import decode
from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.api import pods

if TYPE_CHECKING:
    from collections.abc import Callable

    from extender.state.snapshot import Snapshot
    from kybernate.adapters.k8s import Api
    from kybernate.core.views.utilisation import Figures

    OnEvent = Callable[[str, dict[str, Any]], None]

PAGE = 200
"""Objects that are listed at a time: while a page is decoded no call is answered."""


class Watches:
    """Pods and GPUNodes of the whole cluster. `node_event` takes each event about a GPUNode, as far
    as it matters, and `hear` each about a pod once the snapshot has taken it in."""

    def __init__(
        self,
        api: Api,
        snapshot: Snapshot,
        node_event: OnEvent | None = None,
        hear: OnEvent = lambda _kind, _pod: None,
    ) -> None:
        self.started = False
        """Whether the threads run, or ran."""

        def pod_event(kind: str, item: dict[str, Any]) -> None:
            snapshot.pod_event(kind, item)
            hear(kind, item)

        # Any pod may ask for a seat, with or without our label: resources can't be selected by.
        self._all = (
            _watcher(api.decoding(decode.pods), pods.PATH, pod_event, "pods"),
            _watcher(
                *(api.decoding(decode.gpu_nodes), keys.GPU_NODES_PATH),
                *(node_event or snapshot.node_event, "GPUNodes"),
            ),
        )
        metrics.UNPLACED.set_function(snapshot.unplaced)
        metrics.NODES.set_function(snapshot.nodes)
        metrics.USE.set_function(self._figures)
        self._snapshot = snapshot
        self._settled = threading.Event()
        metrics.WATCHES_BROKEN.set_function(lambda: sum(bool(w.last_error) for w in self._all))

    def start(self) -> None:
        """Start listing and watching."""
        self.started = True
        collect_young_only()
        for watch in self._all:
            watch.start()
        threading.Thread(target=self._settle, name="settle", daemon=True).start()

    def stop(self) -> None:
        """End both watches."""
        for watch in self._all:
            watch.stop()

    def refresh(self) -> Callable[[], bool]:
        """Take in all pods as of now; the answer says whether that is done."""
        pods = self._all[0]
        asked = pods.refresh()
        return lambda: pods.is_fresh(asked)

    def _settle(self) -> None:
        for watch in self._all:
            watch.synced.wait()
        try:
            self._snapshot.settle()
        finally:
            # What was read now stays: no collection needs to look at it ever again.
            gc.freeze()
            self._settled.set()

    def _figures(self) -> Figures | None:
        # A scrape in the middle of the first list would tell of half a cluster.
        return self._snapshot.figures() if self._settled.is_set() else None

    def not_ready(self) -> str | None:
        """Why the snapshot can't be trusted yet: it may lack seats that are taken."""
        for watch in self._all:
            if not watch.synced.is_set():
                return watch.last_error or "the first list of pods and GPUNodes is under way"
        return None if self._settled.is_set() else "what was listed is being taken in"


def _watcher(api: Api, path: str, on_event: OnEvent, name: str) -> Watcher:
    return Watcher(api, path, {}, on_event, name, keep=_as_it_is, names_only=True, page=PAGE)


def _as_it_is(item: dict[str, Any]) -> dict[str, Any]:
    return item


def collect_young_only() -> None:
    """Keep the collector of cycles from walking the whole ledger, again and again.

    A walk over tens of thousands of pods would stop all calls for as long as a second; their
    objects form no cycles, and go when the last reference does.
    """
    gc.set_threshold(50_000, 20, 1_000)
