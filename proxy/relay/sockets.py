"""Passing a websocket on to a seat: message by message, both ways, until one side closes it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import WSMsgType, web

from proxy.openai import ApiError
from proxy.relay.exchange import NOT_TO_SEAT, REQUEST_ID, kyb_headers, unreachable, without
from proxy.relay.traces import NO_TRACE

if TYPE_CHECKING:
    from collections.abc import Set

    from proxy.desk import Flight
    from proxy.relay.asking import Asking
    from proxy.relay.pools import Pools
    from proxy.relay.traces import Trace

LARGEST = 16 * 2**20
"""Bytes of one message, either way."""

_HANDSHAKE = frozenset(
    f"sec-websocket-{name}" for name in ("key", "version", "extensions", "accept", "protocol")
)
_End = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class Socket:
    """One websocket to a seat. `response` is set as soon as the client has its handshake."""

    def __init__(
        self,
        request: web.Request,
        asking: Asking,
        request_id: str,
        ours: Set[str] = frozenset(),
        trace: Trace = NO_TRACE,
    ) -> None:
        """`ours`: more headers that the seat must not see, in lower case."""
        self.response: web.StreamResponse | None = None
        self._trace = trace
        self._request = request
        self._asking = asking
        self._request_id = request_id
        self._not_to_seat = NOT_TO_SEAT | ours | _HANDSHAKE

    async def run(self, flight: Flight, pools: Pools, connect_limit: float) -> web.StreamResponse:
        """Pass messages on until either side closes. Raises ApiError (502) if the seat takes no
        websocket there."""
        seat = flight.serve.seat
        headers = without(self._request.headers, self._not_to_seat)
        headers[REQUEST_ID] = self._request_id
        headers.update(self._asking.headers)
        self._trace.asks(headers)
        offered = [
            name.strip()
            for name in self._request.headers.get("Sec-WebSocket-Protocol", "").split(",")
            if name.strip()
        ]
        try:
            async with asyncio.timeout(connect_limit):
                upstream = await pools.session(seat.uid).ws_connect(
                    f"ws://{seat.address}{self._asking.path}",
                    headers=headers,
                    protocols=offered,
                    autoclose=False,
                    autoping=False,
                    max_msg_size=LARGEST,
                )
        except aiohttp.WSServerHandshakeError as error:
            said = f"{seat.model} takes no websocket at this path (it answered {error.status})."
            raise ApiError(502, "upstream_failed", said) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(seat, error) from error
        self._trace.begins(101)
        async with upstream:
            chosen = [upstream.protocol] if upstream.protocol else []
            client = web.WebSocketResponse(
                protocols=chosen, autoclose=False, autoping=False, max_msg_size=LARGEST
            )
            client.headers.update(kyb_headers(self._request_id, flight.serve))
            await client.prepare(self._request)
            self.response = client
            await _both_ways(client, upstream)
        flight.answered = True
        return client


async def _both_ways(client: web.WebSocketResponse, seat: aiohttp.ClientWebSocketResponse) -> None:
    ways = [asyncio.ensure_future(_pass(client, seat)), asyncio.ensure_future(_pass(seat, client))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for end in (client, seat):
            if not end.closed:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(2.0):
                        await end.close()


async def _pass(source: _End, sink: _End) -> None:
    while True:
        message = await source.receive()
        try:
            match message.type:
                case WSMsgType.TEXT:
                    await sink.send_str(message.data)
                case WSMsgType.BINARY:
                    await sink.send_bytes(message.data)
                case WSMsgType.PING:
                    await sink.ping(message.data)
                case WSMsgType.PONG:
                    await sink.pong(message.data)
                case WSMsgType.CLOSE:
                    await sink.close(
                        code=message.data or 1000, message=(message.extra or "").encode()
                    )
                    await source.close()
                    return
                case _:
                    return
        except ConnectionError:
            return
