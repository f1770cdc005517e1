"""Sends the page's data as server-sent events: all of it first, then what changes.

Clients that may see the same share the work: their page is made once every PACE_S, and only if
something may have changed. A client that reads too slowly is cut off; its page asks again, and
begins with all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from kybernate.dataclass import dataclass
from kybernate.lib.rounds import rounds
from proxy.openai import ApiError
from proxy.page.shape import changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.actions import Client
    from proxy.page.board import Board

PACE_S = 0.2
QUIET_S = 5.0
"""After which a client is told that nothing changed."""
BEHIND = 4 << 20
"""Bytes that wait for one client at most, besides what it begins with and what the kernel holds."""
CLIENTS = 64
OF_ONE = CLIENTS // 2
"""Pages of one client, so that none keeps all others out."""
STALLED_S = 30.0
"""How long one write may take before its client is taken for gone."""
_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Accel-Buffering": "no",
}


@dataclass(slots=True, eq=False)
class _Reader:
    """One page of a client: what waits for it, at most so many bytes. `over`: it is told no
    more."""

    client: str
    transport: asyncio.BaseTransport | None
    most: int
    events: list[bytes] = field(default_factory=list)
    behind: int = 0
    over: bool = False
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, event: bytes) -> None:
        self.behind += len(event)
        self.events.append(event)
        self.more.set()
        if self.behind > self.most:
            self.cut()

    def cut(self) -> None:
        """At once, and what waits for it is dropped."""
        self.end()
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()

    def end(self) -> None:
        self.over = True
        self.events.clear()
        self.more.set()

    def take(self) -> bytes:
        taken = b"".join(self.events)
        self.events.clear()
        self.more.clear()
        return taken


@dataclass(slots=True)
class _Channel:
    """Clients that may see the same, and what they were told last."""

    client: Client
    told: dict[str, Any]
    span: int
    said_at: float
    readers: set[_Reader] = field(default_factory=set)


class Stream:
    """The page's clients. `board` knows what to show."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._channels: dict[frozenset[str] | None, _Channel] = {}
        self._untold: list[_Channel] = []
        self._task: asyncio.Task[None] | None = None

    async def serve(
        self, request: web.Request, allowed: Callable[[], Client]
    ) -> web.StreamResponse:
        """Send until the client leaves, reads too slowly, or is no longer `allowed`. Raises
        ApiError (401, or 503 if there are too many clients)."""
        client = allowed()
        self._check_room(client)
        response = web.StreamResponse(headers=_HEADERS)
        channel, reader = self._join(client, request.transport)
        try:
            await response.prepare(request)
            with contextlib.suppress(ConnectionError, ApiError):
                await self._send(response, reader, lambda: allowed() == client)
        except TimeoutError:
            reader.cut()
        finally:
            self._leave(channel, reader)
        return response

    def _check_room(self, client: Client) -> None:
        names = [reader.client for one in self._channels.values() for reader in one.readers]
        if len(names) >= CLIENTS:
            raise ApiError(503, "too_many_pages", f"{CLIENTS} pages are open already; close one.")
        if names.count(client.name) >= OF_ONE:
            said = f"{OF_ONE} pages of yours are open already; close one."
            raise ApiError(503, "too_many_pages", said)

    async def close(self) -> None:
        """Let all clients go, as the server ends."""
        for channel in self._channels.values():
            for reader in channel.readers:
                reader.end()
        if self._task is not None:
            self._task.cancel()

    async def _send(
        self, response: web.StreamResponse, reader: _Reader, may: Callable[[], bool]
    ) -> None:
        while True:
            await reader.more.wait()
            if reader.over or not may():
                return
            taken = reader.take()
            async with asyncio.timeout(STALLED_S):
                await response.write(taken)
            reader.behind -= len(taken)

    def _join(
        self, client: Client, transport: asyncio.BaseTransport | None
    ) -> tuple[_Channel, _Reader]:
        channel = self._channels.get(client.namespaces)
        if channel is None:
            page = self._board.page(client)
            channel = _Channel(client, page, self._board.history.last, self._board.now)
            self._channels[client.namespaces] = channel
        else:
            self._tell(channel)
        past = self._board.spans(client, 0, channel.span)
        first = _event("page", {"now": self._board.now, **channel.told, "spans": past})
        reader = _Reader(client.name, transport, BEHIND + len(first))
        reader.add(first)
        channel.readers.add(reader)
        if self._task is None:
            self._task = asyncio.create_task(rounds(self._tell_all, PACE_S, "page"), name="page")
        return channel, reader

    def _leave(self, channel: _Channel, reader: _Reader) -> None:
        channel.readers.discard(reader)
        if not channel.readers and self._channels.get(channel.client.namespaces) is channel:
            del self._channels[channel.client.namespaces]
        if not self._channels and self._task is not None:
            self._task.cancel()
            self._task = None

    def _tell_all(self) -> None:
        """A channel that can't be told is left out until the next change; the next round continues
        with those behind it."""
        if not self._untold and self._board.changed():
            self._untold = list(self._channels.values())
        while self._untold:
            self._tell(self._untold.pop())

    def _tell(self, channel: _Channel) -> None:
        page, now = self._board.page(channel.client), self._board.now
        last = self._board.history.last
        patch = changes(channel.told, page)
        past = self._board.spans(channel.client, channel.span, last)
        channel.told, channel.span = page, last
        if not patch and not past and now - channel.said_at < QUIET_S:
            return
        channel.said_at = now
        event = _event("change", {"now": now, **patch, **({"spans": past} if past else {})})
        for reader in channel.readers:
            reader.add(event)


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(data))
