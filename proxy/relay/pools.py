"""Kept connections to seats."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from kybernate.settings.proxy import ProxySettings
    from kybernate.types import PodUid


class Pools:
    """Connections to seats, one pool each, so that a seat's can be closed before it is parked.

    A server's idle timeouts all fire when it is thawed; a connection kept over a park would be
    reset under the next request.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._sessions: dict[PodUid, aiohttp.ClientSession] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def session(self, uid: PodUid) -> aiohttp.ClientSession:
        """The pool of a seat."""
        session = self._sessions.get(uid)
        if session is None:
            session = self._sessions[uid] = self._open()
        return session

    def drop(self, uid: PodUid) -> None:
        """Close all connections to this seat."""
        session = self._sessions.pop(uid, None)
        if session is not None:
            task = asyncio.ensure_future(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        for uid in list(self._sessions):
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
