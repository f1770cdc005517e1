"""What arrives at frozen processes: the kernel's sockets, freezer and sock_diag as they are.

The tests' own process is "somebody outside": it isn't in the tree, also where it is on loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kybernate.adapters.arrivals import SocketArrivals
from kybernate.adapters.arrivals.duplicates import Duplicator, let_go
from kybernate.adapters.arrivals.watch import SETTLE, _Watch, descriptor_limit
from kybernate.adapters.kernel.freezer import CgroupFreezer
from kybernate.ports import WatchTerms

MOUNT = Path("/sys/fs/cgroup")
V1 = MOUNT / "freezer"
V2 = next((path for path in (MOUNT, MOUNT / "unified") if (path / "cgroup.procs").exists()), None)
WORKLOAD = Path(__file__).with_name("tree_of_sockets.py")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="freezing needs root")


def root_of(folder):
    return folder if folder is not None and os.access(folder, os.W_OK) else None


@pytest.fixture
def base():
    """A container's cgroup, of the version that this machine freezes with."""
    root = root_of(V1) or root_of(V2)
    if root is None:
        pytest.skip("no cgroup to freeze in")
    group = root / f"kyb-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    yield group
    end = time.monotonic() + 5
    for folder in (group / "kyb", group):
        while folder.exists():
            assert time.monotonic() < end, f"{folder} can't be removed"
            with suppress(OSError):
                folder.rmdir()


class Tree:
    """A running workload, its freezer, and a watch on it."""

    def __init__(self, base, unix, settle):
        self.base = base
        self.freezer = CgroupFreezer(base.parent.parent if base.parent == V1 else base.parent)
        self.arrivals = SocketArrivals(self.freezer.pids, settle)
        self.unix = unix
        self.arrived: list[str] = []
        self.reports = []

    def start(self, *words):
        def enter():
            (self.base / "cgroup.procs").write_text("0")

        self.process = subprocess.Popen(
            [sys.executable, str(WORKLOAD), self.unix, *words],
            preexec_fn=enter,  # noqa: PLW1509  (no other thread here)
            stdout=subprocess.PIPE,
            text=True,
        )
        ports = json.loads(self.process.stdout.readline())
        self.tcp, self.udp = ("127.0.0.1", ports["tcp"]), ("127.0.0.1", ports["udp"])
        self.handle = self.freezer.place(self.process.pid)

    def stop(self):
        asyncio.run(self.freezer.kill(self.handle, 30))
        self.arrivals.close()
        self.process.communicate(timeout=10)

    def client(self, family=socket.AF_INET):
        """A connection that has been answered once."""
        one = socket.socket(family)
        one.settimeout(30)
        one.connect(self.unix if family == socket.AF_UNIX else self.tcp)
        ask(one)
        return one

    async def freeze(self, **terms):
        """Frozen, and watched: returns the report."""
        await self.freezer.freeze(self.handle, 30)
        return await self.watch(**terms)

    async def watch(self, **terms):
        told = asyncio.Event()

        def watched(report):
            self.reports.append(report)
            told.set()

        self.arrivals.watch(self.handle, WatchTerms(**terms), self.arrived.append, watched)
        await asyncio.wait_for(told.wait(), 30)
        return self.reports[-1]

    async def works_for(self, one):
        """It has read a request; returns what has it answer."""
        held = f"{self.unix}.held"
        line = f"held {held}\n".encode()
        await asyncio.sleep(0.05)  # else it came as the answer before went: the kernel counts ms
        one.sendall(line)
        end = time.monotonic() + 10
        while not os.access(held, os.F_OK):
            assert time.monotonic() < end, "it hasn't read the request"
            await asyncio.sleep(0.001)

        async def answer():
            os.unlink(held)
            assert await asyncio.to_thread(one.recv, 100) == line

        return answer

    async def until_told(self, limit=30.0):
        """What arrived; fails if nothing does."""
        end = time.monotonic() + limit
        while not self.arrived:
            assert time.monotonic() < end, "nobody noticed"
            await asyncio.sleep(0.001)
        return self.arrived[0]

    async def nothing_comes(self, seconds=0.3):
        await asyncio.sleep(seconds)
        assert self.arrived == []

    def thaw(self):
        self.arrivals.unwatch(self.handle)
        self.freezer.thaw(self.handle)


def ask(one, words=b"hello"):
    one.sendall(words + b"\n")
    answer = one.recv(100)
    assert answer == words + b"\n"


@pytest.fixture
def make_tree(base, tmp_path):
    """Starts a workload with these words."""
    made = []

    def make(*words, settle=0.0, unix=str(tmp_path / "u.sock")):
        one = Tree(base, unix, settle)
        one.start(*words)
        made.append(one)
        return one

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def tree(make_tree):
    return make_tree()


@pytest.fixture
def chatty(make_tree):
    # What it has sent to itself just before it is frozen is on its way for another moment.
    return make_tree("chatter", settle=SETTLE)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.real_time
async def test_a_new_connection_is_noticed_at_once_and_answered_after_the_thaw(tree):
    report = await tree.freeze()
    assert report.watched >= 3
    assert report.problem == ""
    await tree.nothing_comes()
    with socket.create_connection(tree.tcp, 5) as one:
        assert await tree.until_told() == f"somebody connected to its port {tree.tcp[1]}"
        one.sendall(b"hi\n")
        tree.thaw()
        assert await asyncio.to_thread(one.recv, 10) == b"hi\n"


@pytest.mark.real_time
async def test_a_request_on_an_old_connection_that_was_kept(tree):
    with tree.client() as one:
        report = await tree.freeze(end_idle=False)
        assert report.ended == 0
        await tree.nothing_comes()
        one.sendall(b"again\n")
        assert "127.0.0.1" in await tree.until_told()
        tree.thaw()
        assert await asyncio.to_thread(one.recv, 10) == b"again\n"


@pytest.mark.real_time
async def test_udp_and_unix_sockets_of_old_and_new_peers(tree):
    old = tree.client(socket.AF_UNIX)
    new = socket.socket(socket.AF_UNIX)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.settimeout(5)
    new.settimeout(5)

    def send_old():
        old.sendall(b"old\n")

    def send_new():
        new.connect(tree.unix)
        new.sendall(b"new\n")

    def send_datagram():
        datagrams.sendto(b"gram\n", tree.udp)

    scenes = (
        (send_old, old, b"old\n", "Unix"),
        (send_new, new, b"new\n", "Unix"),
        (send_datagram, datagrams, b"gram\n", f"UDP port {tree.udp[1]}"),
    )
    for send, one, answer, words in scenes:
        tree.arrived.clear()
        await tree.freeze()
        await tree.nothing_comes(0.05)
        send()
        assert words in await tree.until_told()
        tree.thaw()
        assert await asyncio.to_thread(one.recv, 10) == answer
    for one in (old, new, datagrams):
        one.close()


@pytest.mark.real_time
async def test_what_came_between_freeze_and_watch_counts_of_all_kinds(tree):
    old = tree.client(socket.AF_UNIX)
    kept = tree.client()
    for kind in ("new", "kept", "unix", "udp"):
        tree.arrived.clear()
        await tree.freezer.freeze(tree.handle, 30)
        one = socket.socket(type=socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        if kind == "udp":
            one.sendto(b"x\n", tree.udp)
        elif kind == "new":
            one.connect(tree.tcp)
            one.sendall(b"x\n")
        else:
            (old if kind == "unix" else kept).sendall(b"x\n")
        await tree.watch(end_idle=False)
        await tree.until_told()
        tree.thaw()
        target = {"unix": old, "kept": kept}.get(kind, one)
        target.settimeout(5)
        assert await asyncio.to_thread(target.recv, 10) == b"x\n"
        one.close()
    old.close()
    kept.close()


@pytest.mark.real_time
async def test_the_trees_talk_with_itself_is_nothing(chatty):
    for _ in range(20):
        report = await chatty.freeze()
        assert report.problem == ""
        assert report.ended == 0
        await chatty.nothing_comes(0.03)
        chatty.thaw()
        await asyncio.sleep(0.01)
    await chatty.freeze()
    await chatty.nothing_comes(1.0)
    chatty.thaw()


@pytest.mark.real_time
async def test_talk_with_itself_hides_nobody_elses_connection(chatty):
    for _ in range(10):
        chatty.arrived.clear()
        await chatty.freezer.freeze(chatty.handle, 30)
        with socket.create_connection(chatty.tcp, 5) as one:
            one.sendall(b"hi\n")
            await chatty.watch()
            await chatty.until_told()
            chatty.thaw()
            assert await asyncio.to_thread(one.recv, 10) == b"hi\n"


@pytest.mark.real_time
async def test_peers_that_close_or_reset_wake_nobody(tree):
    closing, resetting = tree.client(), tree.client()
    unix = tree.client(socket.AF_UNIX)
    await tree.freeze(end_idle=False)
    closing.close()
    unix.close()
    resetting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    resetting.close()
    await tree.nothing_comes()
    tree.thaw()


@pytest.mark.real_time
async def test_a_request_with_the_clients_end_behind_it_counts(tree):
    with tree.client() as one:
        await tree.freeze(end_idle=False)
        one.sendall(b"last\n")
        one.shutdown(socket.SHUT_WR)
        await tree.until_told()
        tree.thaw()
        assert await asyncio.to_thread(one.recv, 10) == b"last\n"


@pytest.mark.real_time
async def test_what_arrives_at_others_in_the_same_network_wakes_nobody(tree):
    with socket.create_server(("127.0.0.1", 0)) as sidecar:
        await tree.freeze()
        for _ in range(5):
            with socket.create_connection(sidecar.getsockname()) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
                accepted, _ = sidecar.accept()
                accepted.close()
        await tree.nothing_comes()
        tree.thaw()


@pytest.mark.real_time
async def test_idle_connections_are_reset_while_nobody_uses_them(tree):
    with tree.client() as idle, tree.client(socket.AF_UNIX) as unix:
        report = await tree.freeze()
        assert report.ended == 1
        with pytest.raises(ConnectionResetError):
            idle.recv(10)
        await tree.nothing_comes(0.1)
        tree.thaw()
        ask(unix)
    with tree.client() as again:
        ask(again)


@pytest.mark.real_time
@pytest.mark.parametrize("end_idle", [True, False])
async def test_a_timeout_that_fires_at_the_thaw_hits_no_request(make_tree, end_idle):
    tree = make_tree("timeout")
    with tree.client() as old:
        await tree.freeze(end_idle=end_idle)
        await asyncio.sleep(0.8)
        if not end_idle:
            # The price of keeping: the server's clock ran on, and it closes before it reads.
            old.sendall(b"lost\n")
            await tree.until_told()
            tree.thaw()
            with pytest.raises(ConnectionResetError):
                await asyncio.to_thread(old.recv, 10)
            return
        with pytest.raises(ConnectionResetError):
            old.recv(10)
    with socket.create_connection(tree.tcp, 5) as new:
        new.sendall(b"kept\n")
        await tree.until_told()
        tree.thaw()
        assert await asyncio.to_thread(new.recv, 10) == b"kept\n"


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="no IPv6 here")
@pytest.mark.real_time
async def test_ipv4_clients_of_a_socket_for_both_families(make_tree):
    tree = make_tree("dual")
    with tree.client() as idle, socket.create_connection(("::1", tree.tcp[1]), 5) as six:
        ask(six)
        running = await tree.arrivals.traffic(tree.handle, 2.0)
        assert [c.inbound for c in running.connections] == [True, True]
        assert (await tree.freeze()).ended == 2
        for one in (idle, six):
            with pytest.raises(ConnectionResetError):
                one.recv(1)
        with socket.create_connection(tree.tcp, 5) as one:
            one.sendall(b"hi\n")
            await tree.until_told()
            tree.thaw()
            assert await asyncio.to_thread(one.recv, 10) == b"hi\n"


@pytest.mark.real_time
async def test_a_connection_on_which_an_answer_is_due_is_not_reset(tree):
    with tree.client() as busy:
        answer = await tree.works_for(busy)
        report = await tree.freeze(doubt=5.0)
        assert report.ended == 0
        assert len(report.unanswered) == 1
        await tree.nothing_comes(0.05)
        tree.thaw()
        await answer()


@pytest.mark.real_time
async def test_another_agent_sees_what_arrived_while_there_was_none(tree):
    with tree.client(socket.AF_UNIX) as one:
        await tree.freeze()
        await tree.nothing_comes(0.05)
        tree.arrivals.close()
        one.sendall(b"hello?\n")
        tree.arrivals = SocketArrivals(tree.freezer.pids, settle=0.0)
        await tree.watch(again=True)
        await tree.until_told()
        tree.thaw()
        assert await asyncio.to_thread(one.recv, 10) == b"hello?\n"


@pytest.mark.real_time
async def test_who_waits_for_a_look_need_not_wait_until_all_has_settled(tree):
    tree.arrivals = SocketArrivals(tree.freezer.pids, settle=60.0)
    await tree.freezer.freeze(tree.handle, 30)
    watching = asyncio.create_task(tree.watch())
    await asyncio.sleep(0)
    assert tree.reports == []
    tree.arrivals.hasten(tree.handle)
    assert (await watching).watched > 0
    tree.arrivals.hasten(tree.handle)
    tree.thaw()
    tree.arrivals.hasten(tree.handle)


@pytest.mark.real_time
async def test_no_duplicate_outlives_the_watch(tree):
    await tree.freeze()
    tree.thaw()
    before = descriptors()
    with tree.client(), tree.client(socket.AF_UNIX):
        for end_idle in (False, True):
            await tree.freeze(end_idle=end_idle)
            tree.thaw()
    assert descriptors() == before
    tree.arrived.clear()
    await tree.freeze()
    with socket.create_connection(tree.tcp, 5):
        await tree.until_told()
        # Closed as soon as it was told: nothing has to call unwatch for that.
        assert descriptors() == before + 1
    tree.thaw()


@pytest.mark.real_time
async def test_a_thaw_during_the_look_leaves_nothing_open(tree):
    clients = [tree.client() for _ in range(150)]
    before = descriptors()
    for steps in range(8):
        await tree.freezer.freeze(tree.handle, 30)
        terms = WatchTerms(end_idle=False)
        tree.arrivals.watch(tree.handle, terms, tree.arrived.append, tree.reports.append)
        for _ in range(steps):
            await asyncio.sleep(0.001)
        tree.thaw()
        # The look that the thaw met ends a moment later.
        async with asyncio.timeout(60):
            while descriptors() != before:  # noqa: ASYNC110 - the kernel sends no event
                await asyncio.sleep(0.01)
    for one in clients:
        ask(one)
        one.close()


@pytest.mark.real_time
async def test_too_few_descriptors_are_told_and_listeners_come_first(tree):
    clients = [tree.client() for _ in range(45)]
    tree.arrivals = SocketArrivals(tree.freezer.pids, settle=0.0, limit=lambda: 40)
    report = await tree.freeze(end_idle=False)
    assert report.watched == 40
    assert report.unwatched >= 3
    assert "ulimit -n" in report.problem
    with socket.create_connection(tree.tcp, 5):
        await tree.until_told()
    tree.thaw()
    for one in clients:
        one.close()


def test_the_limit_leaves_descriptors_for_all_else():
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < descriptor_limit() < max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@pytest.mark.real_time
async def test_two_thousand_connections(tree):
    clients = [tree.client() for _ in range(2000)]
    # Processor time: what else runs on this machine doesn't stretch it.
    began = time.process_time()
    report = await tree.freeze(end_idle=False)
    kept = time.process_time() - began
    assert report.watched >= 2000
    clients[777].sendall(b"me\n")
    began = time.process_time()
    await tree.until_told()
    noticed = time.process_time() - began
    tree.thaw()
    assert await asyncio.to_thread(clients[777].recv, 10) == b"me\n"
    began = time.process_time()
    tree.arrived.clear()
    report = await tree.freeze()
    ended = time.process_time() - began
    assert report.ended == 2000
    assert report.watched < 20
    tree.thaw()
    for one in clients:
        one.close()
    print(f"2000 kept {kept:.3f} s, noticed {noticed:.4f} s, ended {ended:.3f} s (CPU)")
    assert kept < 3
    assert noticed < 0.5
    assert ended < 3


@pytest.mark.real_time
async def test_names_that_a_workload_chose_become_plain_text(make_tree, tmp_path):
    tree = make_tree(unix=os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xffa\nb"))
    await tree.freeze()
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(tree.unix)
        words = await tree.until_told()
    tree.thaw()
    assert words.endswith("/?a?b")
    assert words.encode("ascii")


@pytest.mark.real_time
async def test_a_tree_that_is_gone_is_not_watched_and_no_error(tree):
    tree.arrivals.watch("/nowhere", WatchTerms(), tree.arrived.append, tree.reports.append)
    await asyncio.sleep(0.1)
    assert tree.reports == []
    assert (await tree.arrivals.traffic("/nowhere", 1.0)).connections == ()


@pytest.mark.real_time
async def test_traffic_of_a_running_tree(tree):
    quiet = await tree.arrivals.traffic(tree.handle, 2.0)
    assert quiet.connections == ()
    with tree.client() as one, tree.client() as idle:
        answer = await tree.works_for(one)
        busy = await tree.arrivals.traffic(tree.handle, 2.0)
        assert len(busy.connections) == 2
        assert all(c.inbound for c in busy.connections)
        assert busy.outstanding(0.0) == 1
        began = time.monotonic()
        await answer()
        await asyncio.sleep(0.05)
        after = await tree.arrivals.traffic(tree.handle, 2.0)
        assert after.outstanding(0.0) == 0
        tick = 0.01  # in which the kernel counts at most
        assert 0.04 <= after.quiet() < time.monotonic() - began + tick
        del idle


@pytest.mark.real_time
async def test_traffic_leaves_the_trees_own_connections_out(chatty):
    looks = [await chatty.arrivals.traffic(chatty.handle, 2.0) for _ in range(5)]
    assert [look.connections for look in looks] == [()] * 5
    # A connection that the tree begins while it is looked at may pass for a stranger's.
    assert min(look.queued for look in looks) == 0


def unread_and_lingering(stack):
    """A connection whose close would wait for 5 s for the peer, who reads nothing."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    one = stack.enter_context(socket.create_connection(server.getsockname()))
    stack.enter_context(server.accept()[0])
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    one.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            one.send(b"x" * 65536)
    return one


@pytest.mark.parametrize("owned", [True, False])
def test_letting_go_of_a_socket_waits_for_nobody(owned):
    with ExitStack() as stack:
        one = unread_and_lingering(stack)
        place = os.getpid(), one.fileno()
        duplicator = Duplicator()
        duplicate = duplicator.duplicate(place)
        duplicator.close()
        if not owned:
            # Another file comes to its place.
            os.dup2(stack.enter_context(open(os.devnull)).fileno(), one.fileno())
        began = time.monotonic()
        let_go(duplicate, place)
        assert time.monotonic() - began < 4, "it lingered for five seconds"
        if owned:
            left = one.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
            assert struct.unpack("ii", left) == (1, 5)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))


@pytest.mark.real_time
async def test_one_that_makes_events_without_end_does_not_keep_the_loop():
    left, right = socket.socketpair()
    watch = _Watch(WatchTerms(end_idle=False), 10)
    with left, right:
        watch._sockets[right.fileno()] = right
        watch._epoll.register(right.fileno(), select.EPOLLOUT)  # level-triggered: for ever
        watch._ready(lambda _: pytest.fail("nothing has arrived"))
        watch._sockets.clear()
        watch.close()
