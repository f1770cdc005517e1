"""An API server of which a test says what it answers."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

END = object()
LIMIT_S = 10.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.005)


class Feed:
    """One open watch: what the test puts in comes out; END ends it, an exception breaks it."""

    def __init__(self) -> None:
        self.items: queue.Queue[Any] = queue.Queue()

    def send(self, kind: str, item: dict[str, Any]) -> None:
        self.items.put({"type": kind, "object": item})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (item := self.items.get(timeout=LIMIT_S)) is not END:
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        self.items.put(END)


class Script:
    """An API server that answers lists and watches from queues."""

    def __init__(self) -> None:
        self.lists: queue.Queue[Any] = queue.Queue()
        self.watches: queue.Queue[Any] = queue.Queue()
        self.asked: list[dict[str, Any]] = []

    def listing(self, *items: dict[str, Any], version: int = 10, more: str | None = None) -> None:
        meta = {"resourceVersion": str(version), **({"continue": more} if more else {})}
        self.lists.put({"metadata": meta, "items": list(items)})

    def feed(self) -> Feed:
        feed = Feed()
        self.watches.put(feed)
        return feed

    def get(self, path: str, params: Any = None, *, timeout: float = 0) -> Any:
        return self._next(self.lists, params)

    def watch(self, path: str, params: Any, *, timeout: float) -> Any:
        return self._next(self.watches, params)

    def _next(self, source: queue.Queue[Any], params: Any) -> Any:
        self.asked.append(dict(params))
        item = source.get(timeout=LIMIT_S)
        if isinstance(item, Exception):
            raise item
        return item
