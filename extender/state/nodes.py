"""Nodes that left the cluster: their GPUNodes may stay behind, and nobody must be placed there.

A GPUNode names the Node that owns it. Once all Nodes are listed, one whose owner there isn't is
left out, also by an extender that wasn't there when the Node went. Of those that name none, only
those whose Node was seen to go are. While Nodes can't be listed, GPUNodes are believed.
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

POLL = 0.1


class Nodes:
    """Between the watch on GPUNodes and who takes its events in: those of gone nodes stop here."""

    def __init__(self, take_in: OnEvent, read: Callable[[str], Json]) -> None:
        """`read` gives the GPUNode of a name, or raises KybernateError."""
        self._take_in = take_in
        self._read = read
        self._lock = threading.Lock()
        self._uids: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._gone: set[str] = set()
        self._out: set[str] = set()
        self._listed = False

    def gpu_node_event(self, kind: str, item: Json) -> None:
        """An event of the watch on GPUNodes."""
        name = str(item["metadata"]["name"])
        with self._lock:
            if kind == "DELETED":
                self._owners.pop(name, None)
                self._out.discard(name)
                self._take_in(kind, item)
            else:
                self._hear_of(name, kind, item)

    def node_event(self, kind: str, item: Json) -> None:
        """An event of the watch on Nodes. Raises KybernateError if a node that is back can't be
        read; its next event tries again."""
        name = str(item["metadata"]["name"])
        with self._lock:
            if kind == "DELETED":
                self._uids.pop(name, None)
                self._gone.add(name)
                self._leave_out(name)
                return
            self._uids[name] = str(item["metadata"].get("uid"))
            self._gone.discard(name)
            if self._is_gone(name):
                self._leave_out(name)
            elif name in self._out:
                self._bring_back(name)

    def listed(self) -> None:
        """All Nodes that there are were told of."""
        with self._lock:
            self._listed = True
            for name in self._owners:
                if self._is_gone(name):
                    self._leave_out(name)

    def _is_gone(self, name: str) -> bool:
        owner = self._owners.get(name)
        if owner is not None and self._listed:
            return self._uids.get(name) != owner
        return name in self._gone

    def _hear_of(self, name: str, kind: str, item: Json) -> None:
        owner = _owner(item)
        if owner is None:
            self._owners.pop(name, None)
        else:
            self._owners[name] = owner
        if self._is_gone(name):
            self._leave_out(name)
        else:
            self._out.discard(name)
            self._take_in(kind, item)

    def _leave_out(self, name: str) -> None:
        self._out.add(name)
        self._take_in("DELETED", {"metadata": {"name": name}})

    def _bring_back(self, name: str) -> None:
        # Without one, its agent will make one.
        with suppress(NotFoundError):
            self._hear_of(name, "ADDED", self._read(name))


class NodeWatch:
    """Keeps up with the names and UIDs of Nodes."""

    def __init__(self, api: Api, nodes: Nodes) -> None:
        self._nodes = nodes
        self._watch = Watcher(
            api.of_metadata(), "/api/v1/nodes", {}, nodes.node_event, "Nodes", names_only=True
        )

    def run(self, stopping: threading.Event) -> None:
        """Watch until the event is set."""
        self._watch.start()
        while not stopping.is_set() and not self._watch.synced.wait(POLL):
            pass
        if self._watch.synced.is_set():
            self._nodes.listed()
        stopping.wait()
        self._watch.stop()

    def not_ready(self) -> str | None:
        """Why calls can't be answered yet: GPUNodes may be known whose Nodes are gone."""
        if self._watch.synced.is_set() or self._watch.last_error:
            return None
        return "the first list of Nodes is under way"


def _owner(gpu_node: Json) -> str | None:
    """The UID of the Node that owns the GPUNode, if it says."""
    for one in gpu_node["metadata"].get("ownerReferences") or ():
        if isinstance(one, dict) and one.get("kind") == "Node":
            return str(one.get("uid"))
    return None


def gpu_node_reader(api: Api, timeout: float) -> Callable[[str], Json]:
    """Reads a GPUNode by name, within `timeout` seconds. Raises KybernateError."""
    return lambda name: api.get(f"{keys.GPU_NODES_PATH}/{name}", timeout=timeout)
