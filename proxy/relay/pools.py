"""Kept connections to seats."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from kybernate.settings.common import host_port
from proxy.relay.lines import Line

if TYPE_CHECKING:
    from kybernate.settings.proxy import ProxySettings
    from kybernate.types import PodUid


class Pool:
    """One seat's connections for plain requests, those that rest among them."""

    def __init__(self, address: str, settings: ProxySettings) -> None:
        self.address = address
        self._host, self._port = host_port(address)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._all: set[Line] = set()
        self._resting: list[tuple[float, Line]] = []
        self._sweeper: asyncio.TimerHandle | None = None

    def take(self) -> Line | None:
        """The connection that has rested shortest, if there is one."""
        while self._resting:
            line = self._resting.pop()[1]
            if line.usable:
                return line
        return None

    async def connect(self) -> Line:
        """A new one. Raises OSError, TimeoutError among them."""
        silence, loop = self._settings.answer_silence_s, self._loop
        async with asyncio.timeout(self._settings.connect_limit_s):
            _, line = await loop.create_connection(
                lambda: Line(silence, self._all.discard), self._host, self._port
            )
        self._all.add(line)
        return line

    def give(self, line: Line) -> None:
        """Its answer was read, or is given up."""
        line.rest()
        if line.usable:
            self._resting.append((self._loop.time(), line))
            if self._sweeper is None:
                self._sweep()

    def _sweep(self) -> None:
        """Close what has rested too long, and look again."""
        limit = self._settings.idle_connection_s
        until = self._loop.time() - limit
        for since, line in self._resting:
            if since <= until:
                line.close()
        self._resting = [one for one in self._resting if one[0] > until]
        self._sweeper = self._loop.call_later(limit, self._sweep) if self._resting else None

    def close(self) -> None:
        """Close all."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._resting.clear()
        for line in tuple(self._all):
            line.close()


class Pools:
    """Connections to seats, one pool each, so that a seat's can be closed before it is parked.

    A server's idle timeouts all fire when it is thawed; a connection kept over a park would be
    reset under the next request.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._pools: dict[PodUid, Pool] = {}
        self._sessions: dict[PodUid, aiohttp.ClientSession] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def pool(self, uid: PodUid, address: str) -> Pool:
        """The pool of a seat."""
        pool = self._pools.get(uid)
        if pool is None or pool.address != address:
            if pool is not None:
                pool.close()
            pool = self._pools[uid] = Pool(address, self._settings)
        return pool

    def session(self, uid: PodUid) -> aiohttp.ClientSession:
        """A seat's websockets."""
        session = self._sessions.get(uid)
        if session is None:
            session = self._sessions[uid] = self._open()
        return session

    def drop(self, uid: PodUid) -> None:
        """Close all connections to this seat."""
        if pool := self._pools.pop(uid, None):
            pool.close()
        session = self._sessions.pop(uid, None)
        if session is not None:
            task = asyncio.ensure_future(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        for uid in {*self._pools, *self._sessions}:
            self.drop(uid)
        await asyncio.gather(*self._closing)

    def _open(self) -> aiohttp.ClientSession:
        settings = self._settings
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=settings.idle_connection_s, use_dns_cache=False
            ),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=settings.connect_limit_s,
                sock_read=settings.answer_silence_s,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            auto_decompress=False,
        )
