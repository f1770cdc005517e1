"""The page's paths: the page itself, which needs no key as it tells nothing, and its data.

The policy in each answer's headers lets the page run and load what this server sends and nothing
else, and keeps any text from becoming HTML (Trusted Types).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from proxy.page.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from proxy.actions import Client
    from proxy.page.board import Board

_FOLDER = Path(__file__).parent / "assets"
_KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def is_page(path: str) -> bool:
    """Whether this path is the page's: it needs no key, and its data asks for one itself."""
    return path == "/ui" or path.startswith("/ui/")


class Door:
    """Answers below /ui. `who` raises ApiError (401) for a client that may not see anything."""

    def __init__(self, board: Board, who: Callable[[web.Request], Client]) -> None:
        self._stream, self._who = Stream(board), who
        self._files = {
            file.name: (file.read_bytes(), _KINDS[file.suffix]) for file in _FOLDER.iterdir()
        }

    async def close(self, app: web.Application) -> None:
        """Let all clients go; `on_shutdown` of the application."""
        await self._stream.close()

    def routes(
        self,
        add: Callable[[str, str, Callable[[web.Request], Awaitable[web.StreamResponse]]], object],
    ) -> None:
        """Add the page's paths, by `add(method, path, handler)`."""
        add("GET", "/ui", self.to_page)
        add("GET", "/ui/", self.file)
        add("GET", "/ui/events", self.events)
        add("GET", "/ui/{name}", self.file)

    async def to_page(self, request: web.Request) -> web.Response:
        """To where the page's own links begin."""
        return web.Response(status=308, headers={**HEADERS, "Location": "ui/"})

    async def file(self, request: web.Request) -> web.Response:
        """The page, a program or a style of it; the same for everyone."""
        name = request.match_info.get("name") or "index.html"
        found = self._files.get(name)
        if found is None:
            return web.Response(status=404, text="no such file\n", headers=HEADERS)
        return web.Response(body=found[0], content_type=found[1], charset="utf-8", headers=HEADERS)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The page's data, and its changes, as server-sent events: what the client may see."""
        return await self._stream.serve(request, lambda: self._who(request))
