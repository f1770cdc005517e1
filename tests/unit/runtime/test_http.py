"""A server of ours as a process, and callers who are slow, strange, or still there as it stops."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.processes import free_port, worker
from kybernate.adapters.pki import Folder, Validity
from kybernate.errors import ConfigError
from kybernate.runtime.http2.peers import MOST_CONNECTIONS as MOST_PEERS
from kybernate.runtime.tls import MutualTls
from kybernate.runtime.worker import MOST_CONNECTIONS
from tests.kit.clients.http2 import GOAWAY, GREETING, PING, answers, call, frame, frames
from tests.unit.runtime.served import LARGE, REQUEST_S, STOP_S, THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kit.clients.http2 import Frame

pytestmark = pytest.mark.real_time

LIMIT_S = 20.0
PATIENCE_S = 3 * REQUEST_S + 2
"""In which a good caller is answered, whoever else holds threads; on a busy machine."""

STRANGER = "127.0.0.2"


@contextmanager
def many_descriptors() -> Iterator[None]:
    """For the test's own ends of the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Served:
    """The server, and ways to call it."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder, self.port = folder, free_port()
        self.clients: list[http.client.HTTPSConnection] = []
        Folder(folder).init([], Validity(), datetime.now(UTC))
        self.log = folder / "log"
        with self.log.open("wb") as log:
            # What a container has at first, often.
            limited = ["sh", "-c", 'ulimit -Sn 1024 && exec "$@"', "sh", sys.executable]
            argv = [*limited, "-m", "tests.unit.runtime.served", str(folder), str(self.port)]
            self.process = subprocess.Popen([*argv, *more], stdout=log, stderr=log)
        deadline = time.monotonic() + LIMIT_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                break
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def context(self, name: str | None = "scheduler", *protocols: str) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        if name:
            made.load_cert_chain(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        if protocols:
            made.set_alpn_protocols(list(protocols))
        return made

    def plain(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), LIMIT_S, (source, 0))

    def tls(self, *protocols: str, source: str = "127.0.0.1") -> ssl.SSLSocket:
        context = self.context("scheduler", *protocols)
        return context.wrap_socket(self.plain(source), server_hostname="127.0.0.1")

    def client(self, name: str | None = "scheduler") -> http.client.HTTPSConnection:
        made = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=LIMIT_S, context=self.context(name)
        )
        self.clients.append(made)
        return made

    def hang_up(self) -> None:
        while self.clients:
            self.clients.pop().close()

    def stop(self) -> None:
        self.hang_up()
        self.process.terminate()
        self.process.wait(LIMIT_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"), "http2")
    yield made
    made.stop()
    assert "Traceback" not in made.log.read_text()


@pytest.fixture
def served(server: Served) -> Iterator[Served]:
    yield server
    server.hang_up()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Served]:
    """One that the test may stop."""
    made = Served(tmp_path, "http2")
    yield made
    made.stop()
    assert "Traceback" not in made.log.read_text()


def get(client: http.client.HTTPSConnection, path: str) -> tuple[int, bytes]:
    client.request("GET", path)
    answer = client.getresponse()
    return answer.status, answer.read()


HEAD = b"POST /read HTTP/1.1\r\nHost: x\r\n"


def silent(served: Served) -> tuple[socket.socket, bytes]:
    """In the handshake."""
    connection = served.plain()
    connection.sendall(b"\x16\x03\x01\x02\x00\x01")
    return connection, b"\x00"


def heading(served: Served) -> tuple[socket.socket, bytes]:
    connection = served.tls()
    connection.sendall(HEAD)
    return connection, b"X"


def posting(served: Served) -> tuple[socket.socket, bytes]:
    connection = served.tls()
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
    return connection, b"x"


def deaf(served: Served) -> tuple[socket.socket, bytes]:
    """Who asks for much and reads nothing."""
    connection = served.tls()
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection, b""


@pytest.mark.parametrize("begin", [silent, heading, posting, deaf])
def test_who_is_slow_keeps_no_thread(
    served: Served, begin: Callable[[Served], tuple[socket.socket, bytes]]
) -> None:
    with ExitStack() as stack:
        slow = [begin(served) for _ in range(THREADS)]
        for connection, _ in slow:
            stack.enter_context(connection)
        over = threading.Event()

        def drip(connection: socket.socket, drop: bytes) -> None:
            with suppress(OSError):
                while not over.wait(REQUEST_S / 5):
                    connection.sendall(drop)

        drips = [threading.Thread(target=drip, args=one) for one in slow]
        for thread in drips:
            thread.start()
        began = time.monotonic()
        assert get(served.client(), "/read") == (200, b"0")
        took = time.monotonic() - began
        over.set()
        for thread in drips:
            thread.join()
    assert took < PATIENCE_S


def test_who_only_connects_keeps_no_thread_at_all(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(THREADS):
            stack.enter_context(served.plain())
        began = time.monotonic()
        assert get(served.client(), "/read") == (200, b"0")
        took = time.monotonic() - began
    assert took < 3


def test_handshakes_that_come_byte_by_byte_keep_no_thread_at_all(served: Served) -> None:
    with ExitStack() as stack:
        slow = [silent(served) for _ in range(20 * THREADS)]
        for connection, _ in slow:
            stack.enter_context(connection)
        over = threading.Event()

        def drip() -> None:
            while not over.wait(REQUEST_S / 20):
                for connection, drop in slow:
                    with suppress(OSError):
                        connection.sendall(drop)

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        try:
            assert get(served.client(), "/read") == (200, b"0")
            took = time.monotonic() - began
            for connection, _ in slow:
                with suppress(ConnectionResetError):
                    assert connection.recv(100) == b""
            ended = time.monotonic() - began
        finally:
            over.set()
            thread.join()
    assert took < PATIENCE_S
    assert ended < PATIENCE_S


def test_who_has_all_the_connections_there_may_be_keeps_nobody_out(alone: Served) -> None:
    with ExitStack() as stack, many_descriptors():
        mine = alone.client()
        assert get(mine, "/read") == (200, b"0")
        first = mine.sock
        for _ in range(100):
            stack.enter_context(Peer(alone, STRANGER).socket)
        for _ in range(MOST_CONNECTIONS + 50):
            stack.enter_context(alone.plain(STRANGER))
        began = time.monotonic()
        assert get(alone.client(), "/read") == (200, b"0")
        assert time.monotonic() - began < PATIENCE_S
        # Nor does somebody else's connection end for it.
        assert get(mine, "/read") == (200, b"0")
        assert mine.sock is first


def test_who_has_to_wait_for_a_thread_is_not_cut_off_for_it(served: Served) -> None:
    with ExitStack() as stack:
        # Each has a thread for as long as its answer may take to be read.
        for _ in range(3 * THREADS):
            stack.enter_context(deaf(served)[0])
        assert get(served.client(), "/read") == (200, b"0")


def test_who_sends_no_request_after_the_handshake_is_cut_off(served: Served) -> None:
    with ExitStack() as stack:
        shaken = [stack.enter_context(served.tls()) for _ in range(10 * THREADS)]
        began = time.monotonic()
        assert get(served.client(), "/read") == (200, b"0")
        assert time.monotonic() - began < REQUEST_S
        for connection in shaken:
            assert connection.recv(100) == b""
        assert time.monotonic() - began < PATIENCE_S


def test_who_only_connects_holds_up_no_end(alone: Served) -> None:
    with alone.plain():
        time.sleep(0.5)
        began = time.monotonic()
        alone.process.terminate()
        assert alone.process.wait(LIMIT_S) == 0
        assert time.monotonic() - began < STOP_S


def test_a_slow_caller_is_cut_off(served: Served) -> None:
    began = time.monotonic()
    connection, _ = heading(served)
    with connection:
        assert connection.recv(100) == b""
        assert REQUEST_S * 0.9 < time.monotonic() - began < PATIENCE_S


def test_calls_share_a_connection_and_each_has_its_own_time(served: Served) -> None:
    client = served.client()
    assert get(client, "/name")[1].find(b"kyb-scheduler") > 0
    first = client.sock
    for _ in range(3):
        time.sleep(REQUEST_S * 0.6)
        assert get(client, "/slow") == (200, b"ok")
    assert client.sock is first


def test_who_calls_again_at_once_finds_the_thread_still_there(served: Served) -> None:
    main = Path(f"/proc/{worker(served.process.pid)}/status")

    def passed_on() -> int:
        """How often gunicorn's loop woke, which passes connections on to threads."""
        text = main.read_text().partition("\nvoluntary_ctxt_switches:")[2]
        return int(text.split()[0])

    client = served.client()
    assert get(client, "/name")[0] == 200
    before = passed_on()
    for _ in range(200):
        assert get(client, "/name")[0] == 200
    assert passed_on() - before < 100


def test_who_calls_without_a_pause_keeps_no_thread_from_others(served: Served) -> None:
    over = threading.Event()

    def call_on() -> None:
        client = served.client()
        while not over.is_set():
            assert get(client, "/name")[0] == 200

    with ThreadPoolExecutor(3 * THREADS) as pool:
        busy = [pool.submit(call_on) for _ in range(3 * THREADS)]
        try:
            for _ in range(5):
                began = time.monotonic()
                assert get(served.client(), "/read") == (200, b"0")
                assert time.monotonic() - began < PATIENCE_S
        finally:
            over.set()
        for one in busy:
            one.result(LIMIT_S)


def test_after_a_503_comes_another_connection(served: Served) -> None:
    client = served.client()
    client.request("GET", "/unready")
    answer = client.getresponse()
    assert (answer.status, answer.read(), answer.will_close) == (503, b"ok", True)


@pytest.mark.parametrize("name", [None, "other"])
def test_without_a_certificate_of_ours_nothing_is_answered(
    served: Served, name: str | None, tmp_path: Path
) -> None:
    client = served.client(None)
    if name:
        Folder(tmp_path).init([], Validity(), datetime.now(UTC))
        context = served.context(None)
        context.load_cert_chain(tmp_path / "scheduler.crt", tmp_path / "scheduler.key")
        client = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=5, context=context)
        served.clients.append(client)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        get(client, "/name")


def test_what_is_no_request_is_told_in_json(served: Served) -> None:
    with served.tls() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n")
        told = b""
        while got := connection.recv(65536):
            told += got
    head, _, body = told.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]


def test_calls_under_way_are_answered_as_it_stops(alone: Served) -> None:
    callers, idle = 4, alone.client()
    get(idle, "/name")
    stopping = threading.Event()

    def call_until_it_ends() -> int:
        answered, client = 0, alone.client()
        while True:
            try:
                client.request("GET", "/slow")
            except OSError:
                return answered
            try:
                told = client.getresponse()
            except (ConnectionError, ssl.SSLError):
                # Only a call that was sent as the connection was idle may be lost so.
                assert stopping.is_set()
                return answered
            assert (told.status, told.read()) == (200, b"ok")
            answered += 1
            if told.will_close:
                return answered

    with ThreadPoolExecutor(callers) as pool:
        calls = [pool.submit(call_until_it_ends) for _ in range(callers)]
        time.sleep(1)
        began = time.monotonic()
        stopping.set()
        alone.process.terminate()
        assert alone.process.wait(LIMIT_S) == 0
        took = time.monotonic() - began
        assert sum(one.result() for one in calls) >= callers
    # Sooner than idle connections are given up, and not by being killed.
    assert took < STOP_S
    assert (alone.folder / "stopped").exists()


def test_an_answer_is_sent_to_its_end_as_it_stops(alone: Served) -> None:
    with alone.tls() as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        got = len(connection.recv(65536))
        alone.process.terminate()
        time.sleep(0.5)
        while data := connection.recv(1 << 20):
            got += len(data)
    assert got > LARGE


def test_its_own_end_comes_even_if_a_call_does_not(alone: Served) -> None:
    connection, drop = posting(alone)
    with connection:
        alone.process.terminate()
        with suppress(OSError):
            while alone.process.poll() is None:
                connection.sendall(drop)
                time.sleep(0.1)
    alone.process.wait(LIMIT_S)
    assert (alone.folder / "stopped").exists()


class Peer:
    """A connection of HTTP/2."""

    def __init__(self, served: Served, source: str = "127.0.0.1") -> None:
        self.socket = served.tls("h2", "http/1.1", source=source)
        assert self.socket.selected_alpn_protocol() == "h2"
        self.got = b""
        self.socket.sendall(GREETING)

    def frames(self) -> list[Frame]:
        whole, at = 0, self.got
        while len(at) >= 9 and len(at) >= 9 + int.from_bytes(at[:3], "big"):
            size = 9 + int.from_bytes(at[:3], "big")
            whole, at = whole + size, at[size:]
        return frames(self.got[:whole])

    def until(self, *streams: int) -> dict[int, bytes]:
        while not set(streams) <= answers(self.frames()).keys():
            data = self.socket.recv(65536)
            assert data, self.frames()
            self.got += data
        return {stream: one.body for stream, one in answers(self.frames()).items()}

    def rest(self) -> list[Frame]:
        with suppress(ConnectionError, ssl.SSLEOFError):
            while data := self.socket.recv(65536):
                self.got += data
        return self.frames()


def test_calls_over_http2_overlap(served: Served) -> None:
    peer = Peer(served)
    with peer.socket:
        peer.socket.sendall(call(1, "/slow", method="GET") + call(3, "/name", method="GET"))
        assert b"kyb-scheduler" in peer.until(3)[3]
        assert 1 not in answers(peer.frames())
        assert peer.until(1)[1] == b"ok"


def test_many_idle_peers_keep_no_thread(served: Served) -> None:
    with ExitStack() as stack:
        peers = [Peer(served) for _ in range(10 * THREADS)]
        for peer in peers:
            stack.enter_context(peer.socket)
        assert get(served.client(), "/read") == (200, b"0")
        peers[0].socket.sendall(call(1, "/read", b"123"))
        assert peers[0].until(1)[1] == b"3"


def test_a_peer_with_all_the_connections_there_may_be_keeps_no_other_out(alone: Served) -> None:
    first = Peer(alone)
    with ExitStack() as stack, first.socket:
        strangers = [Peer(alone, STRANGER) for _ in range(MOST_PEERS + 10)]
        for one in strangers:
            stack.enter_context(one.socket)
        other = Peer(alone)
        with other.socket:
            for stream, peer in ((1, first), (1, other), (3, first)):
                peer.socket.sendall(call(stream, "/read", b"123"))
                assert peer.until(stream)[stream] == b"3"
        # Its own oldest ones went, and its newest is served.
        assert strangers[0].rest()
        strangers[-1].socket.sendall(call(1, "/read", b"123"))
        assert strangers[-1].until(1)[1] == b"3"


def test_a_peer_who_reads_nothing_keeps_nobody_waiting(served: Served) -> None:
    deaf, other = Peer(served), Peer(served)
    with deaf.socket, other.socket:
        deaf.socket.settimeout(1)
        with suppress(TimeoutError):
            for _ in range(200):
                deaf.socket.sendall(frame(PING, 0, 0, b"12345678") * 1000)
        began = time.monotonic()
        other.socket.sendall(call(1, "/name", method="GET"))
        other.until(1)
        assert time.monotonic() - began < PATIENCE_S


def test_peers_are_told_to_leave_as_it_stops(alone: Served) -> None:
    peer = Peer(alone)
    with peer.socket:
        peer.socket.sendall(call(1, "/slow", method="GET") + call(3, "/name", method="GET"))
        peer.until(3)
        alone.process.terminate()
        left = peer.rest()
        assert answers(left)[1].body == b"ok"
        assert GOAWAY in [one.kind for one in left]
    assert alone.process.wait(LIMIT_S) == 0
    assert (alone.folder / "stopped").exists()


def test_a_503_over_http2_sends_the_peer_away(served: Served) -> None:
    peer = Peer(served)
    with peer.socket:
        peer.socket.sendall(call(1, "/unready", method="GET"))
        assert GOAWAY in [one.kind for one in peer.rest()]


def test_certificates_are_read_again_once_they_have_changed(tmp_path: Path) -> None:
    tls = MutualTls(tmp_path, "extender", more=["agents-ca.crt"])
    with pytest.raises(ConfigError, match=r"tls_dir: .*extender.crt and extender.key"):
        tls.check()
    Folder(tmp_path).init([], Validity(), datetime.now(UTC))
    tls.check()
    first = tls()
    assert first.minimum_version == ssl.TLSVersion.TLSv1_2
    assert first.verify_mode == ssl.CERT_REQUIRED
    assert tls() is first
    os.utime(tmp_path / "extender.key", ns=(1, 1))
    assert tls() is not first


def test_without_http2_nothing_of_it_is_needed() -> None:
    code = "import sys; sys.modules['h2'] = None; import registry.service, webhook.service"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
