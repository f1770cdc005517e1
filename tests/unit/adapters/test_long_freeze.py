"""What watchdogs do after a long freeze: real processes under the kernel's own freezer.

The clock runs on while a tree is frozen, so at the thaw every timer in it is due at once. Which
workloads mind that, and what cures them, is listed in docs/reference/node/timers.md.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from bench.processes import free_port
from kybernate.adapters.kernel.freezer import CgroupFreezer

MOUNTS = (Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
FROZEN = 2.5
"""Seconds of each freeze; every timer in these workloads is shorter."""
LIMIT = 60.0


@pytest.fixture
def container():
    """A container's cgroup in the first freezer there is."""
    mount = next((path for path in MOUNTS if (path / "cgroup.procs").exists()), None)
    if mount is None or not os.access(mount, os.W_OK) or os.geteuid() != 0:
        pytest.skip("no freezer to write to")
    group = mount / f"kyb-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    yield group
    end = time.monotonic() + LIMIT
    for folder in (group / "kyb", group):
        while folder.exists():
            assert time.monotonic() < end, f"{folder} can't be removed"
            with suppress(OSError):
                folder.rmdir()


class Tree:
    """A workload whose whole tree can be frozen, as a seat's is."""

    def __init__(self, container: Path, script: str, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-uc", script],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: (container / "cgroup.procs").write_text("0"),  # noqa: PLW1509
        )
        self._freezer = CgroupFreezer()
        self.handle = self._freezer.place(self.process.pid)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def freeze(self) -> None:
        asyncio.run(self._freezer.freeze(self.handle, LIMIT))

    def thaw(self) -> None:
        self._freezer.thaw(self.handle)

    def sleep_frozen(self) -> None:
        self.freeze()
        time.sleep(FROZEN)
        self.thaw()

    def ends_after_freezes(self, most: int) -> int | None:
        """Its exit status, or None if it lives on after so many."""
        for _ in range(most):
            self.sleep_frozen()
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(1.0)
        return None

    def end(self) -> None:
        self.thaw()
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def start(container):
    """Starts a script as a workload; it has printed "up"."""
    trees = []

    def begin(script: str, **env: str) -> Tree:
        trees.append(Tree(container, script, env))
        assert trees[-1].line().startswith("up")
        return trees[-1]

    yield begin
    for tree in trees:
        tree.end()


# --- a monitor that aborts a process whose watchdog gives no sign of life ------------------------

HEARTBEAT = """
import os, sys, threading, time
sys.setswitchinterval(0.0005)  # at the thaw, the monitor looks before another piece is done
piece = float(os.environ.get('PIECE', '0.2'))
beat, counter = time.monotonic(), 0
def work():
    global beat, counter
    while True:
        end = time.process_time() + piece  # a sign of life after each piece of work
        while time.process_time() < end: pass
        beat, counter = time.monotonic(), counter + 1
def by_age():
    while True:
        time.sleep(0.05)
        if time.monotonic() - beat > 1.5: os.abort()
def by_count():
    before = -1
    while True:
        time.sleep(1.5)
        if counter == before: os.abort()
        before = counter
monitor = {'age': by_age, 'count': by_count}[os.environ['MONITOR']]
threading.Thread(target=work, daemon=True).start()
if os.environ.get('ENABLE_MONITORING', '1') == '1':
    threading.Thread(target=monitor, daemon=True).start()
time.sleep(1.8)
print('up', flush=True)
while True: print(input(), flush=True)
"""


def survives(tree: Tree) -> bool:
    """Whether it still answers, well after the thaw."""
    time.sleep(0.5)
    with suppress(BrokenPipeError):
        tree.tell("here")
    return tree.line() == "here"


def test_a_monitor_that_looks_at_the_age_of_the_last_sign_ends_the_process(start):
    # Whether the monitor or the end of a piece of work comes first after a thaw is chance.
    tree = start(HEARTBEAT, MONITOR="age")
    assert tree.ends_after_freezes(10) == -signal.SIGABRT


def test_the_same_monitor_switched_off_does_not(start):
    tree = start(HEARTBEAT, MONITOR="age", ENABLE_MONITORING="0")
    tree.sleep_frozen()
    assert survives(tree)


def test_a_monitor_that_counts_signs_over_its_period_is_not_misled(start):
    # It stands still together with what it watches.
    tree = start(HEARTBEAT, MONITOR="count", PIECE="0.01")
    tree.sleep_frozen()
    assert survives(tree)


# --- gRPC keepalive ------------------------------------------------------------------------------

GRPC = """
import os, sys, grpc
from concurrent.futures import ThreadPoolExecutor
class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
options = [('grpc.keepalive_time_ms', 500), ('grpc.keepalive_timeout_ms', 500),
           ('grpc.keepalive_permit_without_calls', 1), ('grpc.http2.max_pings_without_data', 0),
           ('grpc.http2.min_ping_interval_without_data_ms', 100)]
server = grpc.server(ThreadPoolExecutor(2), options=options)
server.add_generic_rpc_handlers((Echo(),))
port = server.add_insecure_port('127.0.0.1:0')
server.start()
channel = grpc.insecure_channel(f'127.0.0.1:{port}', options=options)
call = channel.unary_unary('/x/Echo')
call(b'warm', timeout=60)
print('up', port, flush=True)
while True:
    word = input()
    print(call(word.encode(), timeout=60, wait_for_ready=True).decode(), flush=True)
"""
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 500),
    ("grpc.keepalive_timeout_ms", 500),
    ("grpc.http2.ping_timeout_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


def test_a_grpc_pair_inside_the_tree_talks_on(start):
    tree = start(GRPC)
    tree.sleep_frozen()
    tree.tell("again")
    assert tree.line() == "again"


def grpc_port(start) -> tuple[Tree, int]:
    """The server's port: the script prints it behind "up"."""
    port = free_port()
    return start(GRPC.replace("'127.0.0.1:0'", f"'127.0.0.1:{port}'")), port


def test_an_outside_client_with_keepalive_gives_a_frozen_server_up_and_comes_back(start):
    tree, port = grpc_port(start)
    with grpc.insecure_channel(f"127.0.0.1:{port}", KEEPALIVE) as channel:
        call = channel.unary_unary("/x/Echo")
        assert call(b"one", timeout=LIMIT, wait_for_ready=True) == b"one"
        tree.freeze()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(call, b"two", timeout=LIMIT)
            time.sleep(FROZEN)
            tree.thaw()
            with pytest.raises(grpc.RpcError) as caught:
                waiting.result(LIMIT)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert call(b"three", timeout=LIMIT, wait_for_ready=True) == b"three"


def test_an_outside_client_without_keepalive_waits_and_is_answered(start):
    tree, port = grpc_port(start)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/x/Echo")
        assert call(b"one", timeout=LIMIT, wait_for_ready=True) == b"one"
        tree.freeze()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(call, b"two", timeout=LIMIT)
            time.sleep(FROZEN)
            tree.thaw()
            assert waiting.result(LIMIT) == b"two"


# --- clients inside the tree whose answer comes while it is frozen -------------------------------

CLIENT = """
import socket, sys
print('up', flush=True)
with socket.create_connection(('127.0.0.1', int(input())), timeout=1.0) as s:
    s.sendall(b'q')
    try: print(s.recv(10).decode(), flush=True)
    except TimeoutError: print('timeout', flush=True)
"""


def test_a_blocking_client_takes_the_answer_that_came_while_it_was_frozen(start):
    # It finds data and time-out at once, and takes the data.
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT)
        tree = start(CLIENT)
        tree.tell(str(server.getsockname()[1]))
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b"q"
            tree.freeze()
            connection.sendall(b"answer")
            time.sleep(FROZEN)
            tree.thaw()
            assert tree.line() == "answer"


# --- a server's idle time-out, and the request that waited ---------------------------------------

SERVER = """
import asyncio, os
from aiohttp import web
async def main():
    app = web.Application()
    async def answer(request): return web.Response(text='yes')
    app.router.add_get('/', answer)
    runner = web.AppRunner(app, keepalive_timeout=float(os.environ['KEEP_ALIVE']))
    await runner.setup()
    site = web.TCPSite(runner, '127.0.0.1', 0)
    await site.start()
    print('up', flush=True)
    print(site._server.sockets[0].getsockname()[1], flush=True)
    while True: await asyncio.sleep(0.05)
asyncio.run(main())
"""


def test_with_a_long_idle_time_out_a_request_that_waited_on_an_old_connection_is_answered(start):
    tree = start(SERVER, KEEP_ALIVE="86400")
    client = http.client.HTTPConnection("127.0.0.1", int(tree.line()), timeout=LIMIT)
    client.request("GET", "/")
    assert client.getresponse().read() == b"yes"
    tree.freeze()
    client.request("GET", "/")
    time.sleep(FROZEN)
    tree.thaw()
    assert client.getresponse().read() == b"yes"
    client.close()
