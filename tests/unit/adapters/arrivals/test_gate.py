"""TCP held back from a network namespace, on two real ones that are joined by a cable."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kybernate.adapters.arrivals import NetworkGate, held, nftables, tap
from kybernate.adapters.arrivals.namespace import inside
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.errors import NotFoundError, RefusedError
from tests.kit.node.cable import THERE, lay_cable, take_cable

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
)

MPTCP = Path("/proc/sys/net/mptcp/enabled")
SERVER = """
import os, socket, sys, threading
def serve(port):
    listener = socket.create_server(("0.0.0.0", port))
    while True:
        one, _ = listener.accept()
        threading.Thread(target=echo, args=(one,), daemon=True).start()
accepted = []
def echo(one):
    accepted.append(one)
    while data := one.recv(100):
        one.sendall(data)
sys.stdin.readline()
for port in map(int, sys.argv[1:]):
    threading.Thread(target=serve, args=(port,), daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
for one in accepted:
    one.setsockopt(socket.IPPROTO_TCP, 19, 1)
print("in repair mode", flush=True)
sys.stdin.readline()
"""


class Pod:
    """A namespace with a tree that serves port 8000 and a neighbour that serves 9000."""

    def __init__(self, name):
        self.name = name
        self.connections = []
        lay_cable(name)
        self.tree, self.other = self._serve(8000), self._serve(9000)

    def _serve(self, port):
        words = ["ip", "netns", "exec", self.name, sys.executable, "-c", SERVER, str(port)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ready\n"
        return process

    def connection(self):
        self.connections.append(socket.create_connection((THERE, 8000), 5))
        return self.connections[-1]

    def end_tree(self):
        """As CRIU leaves it: connections in repair mode end without a word."""
        self.tree.stdin.write(b"\n")
        self.tree.stdin.flush()
        assert self.tree.stdout.readline() == b"in repair mode\n"
        self.tree.kill()
        self.tree.communicate()

    def close(self):
        for one in self.connections:
            # At once: what it still sends again would come to the next test's pod.
            with contextlib.suppress(OSError), one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for process in (self.tree, self.other):
            process.kill()
            process.communicate()
        take_cable(self.name)


@pytest.fixture
def pod():
    one = Pod(f"kybg{os.getpid() % 10000}")
    yield one
    one.close()


@pytest.fixture
def gate(tmp_path):
    one = NetworkGate(tmp_path / "gates", lambda pid: (pid, *Procfs().descendants(pid)))
    yield one
    # The loop of the test has ended, and with it who listened.
    one._taps.clear()
    one.close()


def talk(conversation, limit=0.5):
    """Whether the server answers on this connection within the limit."""
    conversation.settimeout(limit)
    conversation.sendall(b"x")
    with contextlib.suppress(TimeoutError):
        return conversation.recv(10) != b""
    return False


def connects(port, limit=0.5):
    with contextlib.suppress(TimeoutError, OSError):
        socket.create_connection((THERE, port), limit).close()
        return True
    return False


@pytest.mark.real_time
async def test_what_comes_is_dropped_and_told_and_answered_when_the_gate_is_open_again(pod, gate):
    told: list[str] = []
    old = pod.connection()
    assert await asyncio.to_thread(talk, old)
    await gate.shut(pod.tree.pid, told.append, 5.0)
    assert not await asyncio.to_thread(talk, old)
    assert told == ["somebody sent to its port 8000"]
    assert not await asyncio.to_thread(connects, 8000)
    assert await asyncio.to_thread(connects, 9000), "a neighbour in the pod is cut off"
    await gate.open(pod.tree.pid, 5.0)
    old.settimeout(5)
    assert await asyncio.to_thread(old.recv, 10) == b"x", "it was not sent again"
    assert await asyncio.to_thread(connects, 8000, 5)


def dropped_so_far():
    with nftables.opened() as netlink:
        return nftables.dropped(netlink)


@pytest.mark.real_time
async def test_what_is_dropped_is_counted_and_told_when_the_gate_is_open_again(pod, gate):
    assert await inside(pod.tree.pid, dropped_so_far) == 0, "nothing is shut"
    assert await gate.open(pod.tree.pid, 5.0) == 0
    old = pod.connection()
    assert await asyncio.to_thread(talk, old)
    await gate.shut(pod.tree.pid, print, 5.0)
    assert await inside(pod.tree.pid, dropped_so_far) == 0
    assert await asyncio.to_thread(connects, 9000)
    assert await inside(pod.tree.pid, dropped_so_far) == 0, "a neighbour's packets count"
    assert not await asyncio.to_thread(talk, old)
    dropped = await inside(pod.tree.pid, dropped_so_far)
    assert dropped >= 1
    for _ in range(2):
        assert not await asyncio.to_thread(connects, 8000, 0.3)
    assert await gate.open(pod.tree.pid, 5.0) >= dropped + 2, "what was held counts, too"
    assert await gate.open(pod.tree.pid, 5.0) == 0, "they were counted before"


def timed(port):
    """Seconds that a connection takes."""
    began = time.monotonic()
    socket.create_connection((THERE, port), 5).close()
    return time.monotonic() - began


@pytest.mark.real_time
async def test_who_connects_meanwhile_is_answered_as_soon_as_it_is_open(pod, gate):
    """And not a second after the first packet, when its kernel would send it again."""

    for _ in range(3):
        await gate.shut(pod.tree.pid, print, 5.0)
        with contextlib.ExitStack() as stack:
            some = [stack.enter_context(calling(8000)) for _ in range(9)]
            assert not await asyncio.to_thread(connected, some, 1, 0.2)
            assert await gate.open(pod.tree.pid, 5.0) >= 9
            assert len(await asyncio.to_thread(connected, some, 9, 0.7)) == 9
    assert await asyncio.to_thread(timed, 8000) < 0.1


@pytest.mark.real_time
async def test_a_new_agent_holds_what_comes_from_then_on(pod, gate, tmp_path):
    await gate.shut(pod.tree.pid, print, 5.0)
    gate.close()
    # As long as nobody holds it, it is dropped.
    assert not await asyncio.to_thread(connects, 8000)
    again = NetworkGate(tmp_path / "gates", lambda _: ())
    await again.shut(pod.tree.pid, print, 5.0)
    with calling(8000) as one:
        await asyncio.sleep(0.2)
        await again.open(pod.tree.pid, 5.0)
        assert len(await asyncio.to_thread(connected, [one], 1, 0.7)) == 1


@pytest.mark.real_time
async def test_a_queue_that_was_let_go_can_be_had_again_at_once(pod, monkeypatch):
    """Its socket is closed aside, which may take a while."""
    waiting = []
    monkeypatch.setattr(held, "close_aside", waiting.append)
    for _ in range(3):
        held.drop(await inside(pod.tree.pid, held.hold))
    assert len(waiting) == 3
    for one in waiting:
        one.close()


@pytest.mark.real_time
@pytest.mark.parametrize("lacks", ["rule", "queue"])
async def test_where_nothing_can_be_held_it_is_dropped_and_sent_again(
    pod, gate, monkeypatch, lacks
):
    def nowhere():
        return nftables._expression("nowhere", b"")

    def none():
        raise OSError(errno.EPERM, "somebody else has it")

    if lacks == "rule":
        monkeypatch.setattr(nftables, "_ways", [nowhere])
    else:
        monkeypatch.setattr(held, "hold", none)

    await gate.shut(pod.tree.pid, print, 5.0)
    one = asyncio.create_task(asyncio.to_thread(timed, 8000))
    await asyncio.sleep(0.2)
    await gate.open(pod.tree.pid, 5.0)
    assert 0.8 < await one < 3


@pytest.mark.real_time
async def test_an_agent_that_died_while_it_opened_leaves_no_half_gate(pod, gate):
    def die():
        raise SystemError("killed while nothing is held back any more")

    await gate.shut(pod.tree.pid, print, 5.0)
    with pytest.raises(SystemError):
        await inside(pod.tree.pid, lambda: nftables.open_again(die))
    assert await asyncio.to_thread(connects, 8000)
    await gate.shut(pod.tree.pid, print, 5.0)
    assert not await asyncio.to_thread(connects, 8000)
    await gate.open(pod.tree.pid, 5.0)
    assert await asyncio.to_thread(connects, 8000)


@pytest.mark.real_time
async def test_no_more_than_so_many_packets_are_held(pod, gate, monkeypatch):
    monkeypatch.setattr(held, "MOST", 2)

    await gate.shut(pod.tree.pid, print, 5.0)
    with contextlib.ExitStack() as stack:
        # Each has sent its first packet when this is done.
        some = [stack.enter_context(calling(8000)) for _ in range(4)]
        assert await gate.open(pod.tree.pid, 5.0) == 2
        assert len(await asyncio.to_thread(connected, some, 2, 0.6)) == 2
        assert len(await asyncio.to_thread(connected, some, 4, 5)) == 4


def calling(port):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex((THERE, port))
    return one


def connected(those, count, limit):
    """Those that are once so many are, or the limit has passed."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        _, found, _ = select.select([], those, [], end - time.monotonic())
        if len(found) >= count:
            break
        time.sleep(0.01)
    return found


@pytest.mark.real_time
async def test_what_a_table_of_others_drops_is_not_counted(pod, gate, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(nftables, "TABLE", "other")
        patched.setattr(nftables, "QUEUE", 7)
        await inside(pod.tree.pid, lambda: nftables.shut([9000]))
    await gate.shut(pod.tree.pid, print, 5.0)
    assert not await asyncio.to_thread(connects, 9000)
    assert await gate.open(pod.tree.pid, 5.0) == 0


@pytest.mark.real_time
async def test_a_port_is_held_back_before_anybody_listens_there(pod, tmp_path):
    told: list[str] = []
    gate = NetworkGate(tmp_path / "gates", lambda _: ())
    await gate.shut(pod.other.pid, told.append, 5.0, 8000)
    assert not await asyncio.to_thread(connects, 8000)
    assert told == ["somebody sent to its port 8000"]
    assert await asyncio.to_thread(connects, 9000), "a neighbour in the pod is cut off"
    await gate.open(pod.other.pid, 5.0)
    assert await asyncio.to_thread(connects, 8000, 5)


@pytest.mark.real_time
async def test_a_peer_that_only_closes_or_is_idle_calls_nobody(pod, gate):
    told: list[str] = []
    idle = pod.connection()
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    closing = pod.connection()
    assert await asyncio.to_thread(talk, idle)
    await gate.shut(pod.tree.pid, told.append, 5.0)
    closing.close()
    await asyncio.sleep(1.5)
    assert told == []
    await asyncio.to_thread(connects, 8000)
    assert len(told) == 1


@pytest.mark.real_time
async def test_a_tree_that_ends_behind_it_resets_nobody_and_a_new_agent_hears_of_the_next(
    pod, gate, tmp_path
):
    old = pod.connection()
    assert await asyncio.to_thread(talk, old)
    await gate.shut(pod.tree.pid, print, 5.0)
    pod.end_tree()
    gate.close()
    told: list[str] = []
    again = NetworkGate(tmp_path / "gates", lambda _: ())
    await again.shut(pod.other.pid, told.append, 5.0)
    await again.shut(pod.other.pid, told.append, 5.0)
    assert not await asyncio.to_thread(talk, old), "no answer, and no reset"
    assert told == ["somebody sent to its port 8000"]
    await again.open(pod.other.pid, 5.0)
    await again.open(pod.other.pid, 5.0)
    assert list((tmp_path / "gates").iterdir()) == []
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(talk, old, 5)


@pytest.mark.real_time
async def test_a_pod_that_ends_after_it_could_not_be_opened_leaves_nothing_held(
    pod, gate, monkeypatch
):
    """What is held would keep its namespace for good."""

    def fail(_):
        raise OSError(105, "the kernel's queue is full")

    await gate.shut(pod.tree.pid, print, 5.0)
    with monkeypatch.context() as patched:
        patched.setattr(nftables, "open_again", fail)
        with pytest.raises(OSError, match="full"):
            await gate.open(pod.tree.pid, 5.0)
    pod.tree.kill()
    pod.tree.wait()
    assert await gate.open(pod.tree.pid, 5.0) == 0
    assert (gate._held, gate._spaces, list(gate._folder.iterdir())) == ({}, {}, [])


@pytest.mark.real_time
async def test_what_was_noted_of_a_namespace_that_is_gone_is_not_believed_of_the_next(pod, gate):
    """The kernel gives its number to a new pod's."""

    number = os.stat(f"/proc/{pod.tree.pid}/ns/net").st_ino
    gate._folder.mkdir(parents=True)
    (gate._folder / f"{number}.json").write_text("[9000]")
    told: list[str] = []
    await gate.shut(pod.tree.pid, told.append, 5.0)
    assert not await asyncio.to_thread(connects, 8000)
    assert told == ["somebody sent to its port 8000"]
    assert await asyncio.to_thread(connects, 9000)


@pytest.mark.real_time
async def test_only_one_table_is_made_and_it_is_taken_away(pod, gate):
    for _ in range(2):
        await gate.shut(pod.tree.pid, print, 5.0)
    assert await inside(pod.tree.pid, nftables.is_shut)
    (noted,) = (gate._folder).iterdir()
    assert json.loads(noted.read_text()) == [8000]
    await gate.open(pod.tree.pid, 5.0)
    assert not await inside(pod.tree.pid, nftables.is_shut)


@pytest.mark.real_time
@pytest.mark.skipif(not MPTCP.exists(), reason="this kernel has no MPTCP")
async def test_a_pod_without_mptcp_is_told_that_there_is_none_and_the_node_keeps_it(pod, gate):
    before = of_the_node()
    assert await inside(pod.tree.pid, speaks_mptcp)
    for _ in range(2):
        await gate.plain(pod.tree.pid, 5.0)
    assert not await inside(pod.tree.pid, speaks_mptcp)
    assert of_the_node() == before


def of_the_node():
    return MPTCP.read_text()


def speaks_mptcp():
    with contextlib.suppress(OSError):
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
        return True
    return False


@pytest.mark.real_time
async def test_the_nodes_own_network_stays_as_it_is(gate):
    with pytest.raises(RefusedError, match="hostNetwork"):
        await gate.plain(os.getpid(), 5.0)


@pytest.mark.real_time
async def test_a_process_that_is_gone_has_no_gate(gate):
    with pytest.raises(NotFoundError):
        await gate.shut(2**22 + 1, print, 5.0)
    with pytest.raises(NotFoundError):
        await gate.plain(2**22 + 1, 5.0)
    await gate.open(2**22 + 1, 5.0)


@pytest.mark.parametrize(
    ("flags", "payload", "call"),
    [(0x02, 0, True), (0x12, 0, False), (0x10, 0, False), (0x11, 0, False), (0x18, 5, True)],
    ids=["connects", "accepts", "acknowledges", "closes", "sends"],
)
@pytest.mark.parametrize("version", [4, 6])
def test_which_packets_call(version, flags, payload, call):
    tcp = bytes(2) + (8000).to_bytes(2, "big") + bytes(8) + bytes((0x50, flags)) + bytes(6)
    body = tcp + bytes(payload)
    if version == 4:
        packet = bytes((0x45, 0)) + (20 + len(body)).to_bytes(2, "big") + bytes(16) + body
    else:
        packet = bytes((0x60, 0, 0, 0)) + len(body).to_bytes(2, "big") + bytes(34) + body
    assert tap.calls(packet) is call
    assert tap.port_of(packet) == 8000
    assert not tap.calls(packet[:30])


def test_a_tap_of_many_ports_hears_of_all():
    many = tap.open_tap(range(1, 3000))
    some = tap.open_tap([])
    assert len(tap._program(list(range(1, 3000)))) < 50
    for one in (many, some):
        one.close()
