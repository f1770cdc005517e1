"""A seat's server may say what it will: what of it is an answer, and what ends its connection."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from multidict import CIMultiDict

from proxy.relay.lines import BadHeadError, SeatError, head
from proxy.relay.pools import Pool

pytestmark = pytest.mark.real_time

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
DEADLINE = 10.0


class Server:
    """Says these bytes to each request, then hears on or closes; used as `async with`."""

    def __init__(self, *says, closes=False):
        self._says, self._closes = says, closes
        self.heard, self.connections, self.stalled = b"", 0, asyncio.Event()
        self._pools, self._served = [], {}

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.began = asyncio.get_running_loop().time()
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for pool in self._pools:
            pool.close()
        for writer in self._served.values():
            writer.transport.abort()
        await asyncio.gather(*self._served)

    def pool(self, silence=DEADLINE):
        settings = SimpleNamespace(
            answer_silence_s=silence, connect_limit_s=DEADLINE, idle_connection_s=DEADLINE
        )
        self._pools.append(Pool(self.address, settings))
        return self._pools[-1]

    async def _serve(self, reader, writer):
        self.connections += 1
        self._served[asyncio.current_task()] = writer
        with contextlib.suppress(ConnectionError):
            while heard := await reader.read(65536):
                self.heard += heard
                for said in self._says:
                    writer.write(said)
                    try:
                        async with asyncio.timeout(0.5):
                            await writer.drain()
                    except TimeoutError:
                        self.stalled.set()
                        await writer.drain()
                if self._closes:
                    break
            writer.close()


async def ask(pool, method="POST", body=b""):
    """(status, headers, body) of one request, on the connection that rests or a new one."""
    line = pool.take() or await pool.connect()
    headers = CIMultiDict({"Content-Length": str(len(body))})
    try:
        async with asyncio.timeout(DEADLINE):
            await line.ask(method, head(method, "/", pool.address, headers), bytearray(body))
            found = b"".join([piece async for piece in line.pieces()])
            return line.status, line.headers.copy(), found
    finally:
        pool.give(line)


async def test_a_connection_is_used_again_after_a_whole_answer():
    async with Server(OK) as server:
        pool = server.pool()
        assert [(await ask(pool, body=b"body"))[2] for _ in range(3)] == [b"ok"] * 3
        assert server.connections == 1
        assert server.heard.count(b"\r\n\r\nbody") == 3


async def test_what_a_client_left_unread_of_its_answer_is_not_the_next_ones():
    async with Server(OK) as server:
        pool = server.pool()
        line = await pool.connect()
        headers = CIMultiDict({"Content-Length": "0"})
        await line.ask("POST", head("POST", "/", pool.address, headers), bytearray())
        await asyncio.sleep(0.1)  # all of it has come, and is written to a client that reads slowly
        pool.give(line)
        assert (await ask(pool))[2] == b"ok"
        assert server.connections == 2


async def test_pieces_headers_and_a_word_before_the_answer_may_come_in_any_parts():
    whole = (
        b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\n"
        b"HTTP/1.1 202 Not quite\r\nX-Two: a\r\nX-Two: b\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\none\r\n3;x=y\r\ntwo\r\n0\r\nX-Trailer: 1\r\n\r\n"
    )
    async with Server(*(bytes([one]) for one in whole)) as server:
        pool = server.pool()
        for _ in range(2):
            status, headers, body = await ask(pool)
            assert (status, body) == (202, b"onetwo")
            assert headers.getall("X-Two") == ["a", "b"]
            assert not {"X-Early", "X-Trailer"} & headers.keys()
        assert server.connections == 1


async def test_an_answer_without_a_length_ends_with_its_connection():
    async with Server(b"HTTP/1.1 200 OK\r\n\r\n", b"half", b" and half", closes=True) as server:
        pool = server.pool()
        assert [(await ask(pool))[2] for _ in range(2)] == [b"half and half"] * 2
        assert server.connections == 2


async def test_a_connection_that_the_server_closes_leaves_no_timer():
    """It would keep all of the connection for `answer_silence_s`, which is minutes."""
    async with Server(OK, closes=True) as server:
        pool = server.pool(silence=600.0)
        for _ in range(5):
            assert (await ask(pool))[2] == b"ok"
            await asyncio.sleep(0.02)
        timers = asyncio.get_running_loop()._scheduled  # nobody else tells
        far = [one for one in timers if not one.cancelled() and one.when() > server.began + 300]
        assert not far


async def test_one_that_we_close_is_not_whole():
    async with Server(b"HTTP/1.1 200 OK\r\n\r\nhalf") as server:
        pool = server.pool()
        asking = asyncio.create_task(ask(pool))
        async with asyncio.timeout(DEADLINE):
            while not server.heard:  # noqa: ASYNC110 - a socket tells nobody
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        pool.close()
        with pytest.raises(SeatError):
            await asking


@pytest.mark.parametrize(
    ("says", "why"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "closed", id="half"),
        pytest.param(b"", "closed the connection", id="nothing"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", "isn't HTTP", id="another protocol"),
        pytest.param(b"HTTP/1.1 101 Go\r\nUpgrade: x\r\n\r\n", "isn't HTTP", id="upgrade"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
            "isn't HTTP",
            id="two lengths",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "isn't HTTP", id="chunk"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n", "headers", id="many"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", "its headers", id="long"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400_000, "its headers", id="endless"),
    ],
)
async def test_what_is_no_answer_is_an_error_and_ends_the_connection(says, why):
    async with Server(says, closes=True) as server:
        pool = server.pool()
        for _ in range(2):
            with pytest.raises(SeatError, match=why):
                await ask(pool)
        assert server.connections == 2


@pytest.mark.parametrize("more", [b"x", OK])
async def test_what_nobody_asked_for_reaches_no_later_request(more):
    async with Server(OK + more) as server:
        pool = server.pool()
        assert [(await ask(pool))[2] for _ in range(3)] == [b"ok"] * 3
        assert server.connections == 3


async def test_an_answer_to_head_has_a_length_and_no_body():
    async with Server(b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n") as server:
        status, headers, body = await ask(server.pool(), "HEAD")
        assert (status, headers["Content-Length"], body) == (200, "70000", b"")


async def test_a_silent_server_is_given_up_and_one_that_speaks_now_and_then_is_not():
    async with Server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") as server:
        with pytest.raises(SeatError, match=r"nothing for 0.2 s"):
            await ask(server.pool(silence=0.2))


async def test_a_slow_reader_holds_the_server_up_and_costs_no_memory():
    chunk = b"40000\r\n" + b"x" * 2**18 + b"\r\n"
    says = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[chunk] * 200, b"0\r\n\r\n"]
    async with Server(*says) as server:
        pool = server.pool(silence=0.3)
        line = await pool.connect()
        request = head("POST", "/", pool.address, CIMultiDict({"Content-Length": "0"}))
        await line.ask("POST", request, bytearray())
        async with asyncio.timeout(DEADLINE):
            await server.stalled.wait()
        first = await line.piece()
        assert len(first) < 2**20
        rest = sum([len(piece) async for piece in line.pieces()])
        assert len(first) + rest == 200 * 2**18
        pool.give(line)


@pytest.mark.parametrize(
    ("path", "value"),
    [("/a b", "v"), ("/a\r\nX: 1", "v"), ("/", "v\r\nX: 1"), ("/", "v\nX: 1"), ("/", "v\rX")],
)
def test_a_line_that_would_be_two_is_not_sent(path, value):
    with pytest.raises(BadHeadError):
        head("POST", path, "h:1", CIMultiDict({"X-Some": value}))
