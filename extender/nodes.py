"""Nodes that left the cluster: their GPUNodes stay behind, and nobody must be placed there.

Only names are watched, and only a node that was seen to go counts as gone: GPUNodes are believed
otherwise, also while Nodes can't be listed.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kybernate.adapters.k8s import Api

    Json = dict[str, Any]
    OnEvent = Callable[[str, Json], None]


class Nodes:
    """Between the watch on GPUNodes and who takes its events in: those of gone nodes stop here."""

    def __init__(self, take_in: OnEvent, read: Callable[[str], Json]) -> None:
        """`read` gives the GPUNode of a name, or raises KybernateError."""
        self._take_in = take_in
        self._read = read
        self._lock = threading.Lock()
        self._gone: set[str] = set()

    def gpu_node_event(self, kind: str, item: Json) -> None:
        """An event of the watch on GPUNodes."""
        with self._lock:
            if kind == "DELETED" or str(item["metadata"]["name"]) not in self._gone:
                self._take_in(kind, item)

    def node_event(self, kind: str, item: Json) -> None:
        """An event of the watch on Nodes. Raises KybernateError if a node that is back can't be
        read; its next event tries again."""
        name = str(item["metadata"]["name"])
        if kind == "DELETED":
            with self._lock:
                self._gone.add(name)
                self._take_in("DELETED", {"metadata": {"name": name}})
        elif name in self._gone:
            self._bring_back(name)

    def _bring_back(self, name: str) -> None:
        with self._lock:
            # Without one, its agent will make one.
            with suppress(NotFoundError):
                self._take_in("ADDED", self._read(name))
            self._gone.discard(name)


def watch_nodes(api: Api, nodes: Nodes) -> Callable[[threading.Event], None]:
    """What keeps up with the names of Nodes until the event that it is given is set."""
    watch = Watcher(
        api.of_metadata(), "/api/v1/nodes", {}, nodes.node_event, "Nodes", names_only=True
    )

    def run(stopping: threading.Event) -> None:
        watch.start()
        stopping.wait()
        watch.stop()

    return run


def gpu_node_reader(api: Api, timeout: float) -> Callable[[str], Json]:
    """Reads a GPUNode by name, within `timeout` seconds. Raises KybernateError."""
    return lambda name: api.get(f"{keys.GPU_NODES_PATH}/{name}", timeout=timeout)
