"""What models wrote, as text: what is kept of it, and what comes from now on.

A model's words are its own: they are sent as plain text that no browser takes for a page.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from kybernate.local.box import Box

_HEADERS = {
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
    "X-Accel-Buffering": "no",
    "Cache-Control": "no-store",
}
_AHEAD = 64


async def so_far(request: web.Request, box: Box) -> web.StreamResponse:
    """All that is kept, one model after the other."""
    response = web.StreamResponse(headers=_HEADERS)
    await response.prepare(request)
    for row in box.models():
        await response.write(f"== {row.name} ==\n".encode())
        async for piece in box.logs(row.name, follow=False):
            await response.write(piece)
    await response.write_eof()
    return response


async def stream(request: web.Request, box: Box, models: Iterable[str]) -> web.StreamResponse:
    """What these models write, until the client leaves."""
    response = web.StreamResponse(headers=_HEADERS)
    await response.prepare(request)
    pieces: asyncio.Queue[bytes] = asyncio.Queue(_AHEAD)
    tasks = [asyncio.create_task(_into(pieces, box.logs(one, follow=True))) for one in models]
    try:
        while True:
            await response.write(await pieces.get())
    except ConnectionError:
        return response
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _into(pieces: asyncio.Queue[bytes], source: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(ConnectionError):
        async for piece in source:
            await pieces.put(piece)
