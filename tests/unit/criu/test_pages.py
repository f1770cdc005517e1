"""What is held of a tree's memory: as long as its server may still die, and no longer."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu import Criu, Tools, holders, pages, running
from kybernate.adapters.criu.container import Container, is_free
from kybernate.adapters.kernel.freezer import CgroupFreezer
from kybernate.errors import DeadlineError, NotFoundError
from kybernate.lib.deadline import Deadline
from tests.kit.inits import EveryInit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMIT = 60.0
SERVER = f"""
import ctypes, os, sys
assert ctypes.CDLL(None).syscall(323, 0o2000000) >= 0, "no userfaultfd here"
os.dup2(int(sys.argv[1]), {running.LOCK})
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stands for its kyb-enter, too: this process has other children, which live on."""
    monkeypatch.setattr(holders, "descendants", lambda pid: iter((pid,)))


class Server:
    """A process with a userfaultfd and the lock, as CRIU has them."""

    def __init__(self, process: asyncio.subprocess.Process, work: Path) -> None:
        self.process = process
        self.served = pages.Served(work, enter=process.pid)

    async def end(self, told: str) -> None:
        """It ends, after which kyb-enter has told so, or not."""
        (self.served.work / pages.STATUS).write_text(told)
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def server(work: Path, lock: Path | None = None) -> AsyncIterator[Server]:
    os.makedirs(work, exist_ok=True)
    (work / pages.STATUS).write_text("-")
    opened = os.open(lock or work / running.PAGES, os.O_RDWR | os.O_CREAT)
    fcntl.flock(opened, fcntl.LOCK_EX)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, str(opened)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=(opened,),
    )
    os.close(opened)
    assert process.stdout is not None
    if await process.stdout.readline() != b"ready\n":
        await process.wait()
        pytest.skip("needs userfaultfd (root, or vm.unprivileged_userfaultfd)")
    made = Server(process, work)
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        made.served.let_go()


def is_userfaultfd(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[userfaultfd]"


@pytest.mark.real_time
async def test_who_serves_well_to_the_end_is_let_go_of_by_itself(tmp_path: Path) -> None:
    async with server(tmp_path / "1-2") as one:
        seen = asyncio.ensure_future(one.served.seen_out())
        assert await one.served.hold(Deadline(LIMIT))
        assert [is_userfaultfd(held) for held in one.served.held] == [True]
        await one.end("0")
        await asyncio.wait_for(seen, LIMIT)
        assert one.served.held == []


@pytest.mark.real_time
@pytest.mark.parametrize("told", ["1", "-", ""])
async def test_what_a_dead_server_did_not_bring_is_held_on_to(tmp_path: Path, told: str) -> None:
    async with server(tmp_path / "1-2") as one:
        await one.served.hold(Deadline(LIMIT))
        seen = asyncio.ensure_future(one.served.seen_out())
        await one.end(told)
        await asyncio.wait_for(seen, LIMIT)
        assert not await one.served.ended(Deadline(LIMIT))
        assert [is_userfaultfd(held) for held in one.served.held] == [True]


@pytest.mark.real_time
@pytest.mark.parametrize(("told", "well"), [("0", True), ("1", False), ("-", False)])
async def test_a_server_that_has_ended_before_it_could_be_held_says_how(
    tmp_path: Path, told: str, well: bool
) -> None:
    async with server(tmp_path / "1-2") as one:
        await one.end(told)
        assert await one.served.hold(Deadline(LIMIT)) is well
        assert one.served.held == []


@pytest.mark.real_time
async def test_it_is_waited_for_who_tells_how_a_server_ended(tmp_path: Path) -> None:
    async with server(tmp_path / "1-2") as one:
        lock = os.open(one.served.lock, os.O_RDWR)
        one.process.kill()
        await one.process.wait()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DeadlineError, match="nobody tells"):
            await one.served.hold(Deadline(0.0))
        holding = asyncio.ensure_future(one.served.hold(Deadline(LIMIT)))
        (one.served.work / pages.STATUS).write_text("1")
        assert not await holding
        os.close(lock)


@pytest.mark.real_time
async def test_what_is_closed_while_it_is_looked_at_hides_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["999999", *real(path)])

    async with server(tmp_path / "1-2") as one:
        assert await one.served.hold(Deadline(LIMIT))
        assert len(one.served.held) == 1


@pytest.mark.real_time
async def test_what_is_lent_to_kyb_enter_stays_open_without_server_and_agent(
    tmp_path: Path,
) -> None:
    async with server(tmp_path / "1-2") as one:
        one.served.keeper, theirs = socket.socketpair()
        await one.served.hold(Deadline(LIMIT))
        await one.end("1")
        one.served.let_go()
        with theirs:
            _, lent, _, _ = socket.recv_fds(theirs, 16, 16)
        assert [is_userfaultfd(one) for one in lent] == [True]
        os.close(lent[0])


@pytest.mark.real_time
@pytest.mark.parametrize(("told", "well"), [("0", True), ("1", False), ("-", False)])
async def test_a_kyb_enter_that_ended_just_before_it_is_lent_anything_has_told(
    tmp_path: Path, told: str, well: bool
) -> None:
    async with server(tmp_path / "1-2") as one:
        one.served.keeper, theirs = socket.socketpair()
        theirs.close()
        (one.served.work / pages.STATUS).write_text(told)
        assert await one.served.hold(Deadline(LIMIT)) is well
        assert one.served.held == []


def myself(root: Path) -> Path:
    """The folder of a container whose process 1 is this one."""
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return root / f"{os.getpid()}-{start}"


@pytest.mark.real_time
async def test_the_next_agent_holds_the_same_again_and_nothing_of_others(tmp_path: Path) -> None:
    root, other = tmp_path / "work", tmp_path / "other"
    root.mkdir()
    imitated = other / myself(root).name / running.PAGES
    imitated.parent.mkdir(parents=True)
    async with server(myself(root)), server(other, imitated):
        (found,) = pages.left_by_another(root, Path("/proc"))
        assert found.work == myself(root)
        assert [is_userfaultfd(held) for held in found.held] == [True]
        found.let_go()


@pytest.mark.real_time
@pytest.mark.parametrize("told", ["0", "1", "-"])
async def test_the_next_agent_holds_nothing_where_nobody_serves(tmp_path: Path, told: str) -> None:
    async with server(myself(tmp_path)) as one:
        await one.end(told)
        assert list(pages.left_by_another(tmp_path, Path("/proc"))) == []


@pytest.mark.real_time
async def test_the_next_agent_holds_nothing_for_a_container_that_is_gone(tmp_path: Path) -> None:
    async with server(tmp_path / f"{os.getpid()}-1"):
        assert list(pages.left_by_another(tmp_path, Path("/proc"))) == []


@pytest.mark.real_time
async def test_a_server_whose_tree_is_gone_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    async with server(tmp_path / "1-2") as one:
        await pages.clear(one.served.work, Deadline(LIMIT))
        assert await asyncio.wait_for(one.process.wait(), LIMIT) == -signal.SIGKILL
        assert is_free(one.served.lock)
        assert not one.served.begun


@pytest.mark.real_time
async def test_it_is_held_on_to_until_the_container_has_ended(tmp_path: Path) -> None:
    container = await asyncio.create_subprocess_exec("sleep", "1000")
    async with server(tmp_path / "1-2") as one:
        await one.served.hold(Deadline(LIMIT))
        pidfd = os.pidfd_open(container.pid)
        outliving = asyncio.ensure_future(one.served.outlive(pidfd))
        await asyncio.sleep(0.05)
        assert len(one.served.held) == 1
        container.kill()
        await asyncio.wait_for(outliving, LIMIT)
        assert one.served.held == []
    await container.wait()


@pytest.mark.real_time
async def test_the_memory_of_a_container_that_is_gone_is_let_go_of(tmp_path: Path) -> None:
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    tools = Tools(tmp_path / "enter", tmp_path / "criu", tmp_path / "cache")
    engine = Criu(tools, CgroupFreezer(), tmp_path / "work")
    async with server(tmp_path / "work" / f"{gone.pid}-5") as one:
        await one.served.hold(Deadline(LIMIT))
        engine._served[one.served.work] = one.served
        with pytest.raises(NotFoundError):
            await engine.pages_done(gone.pid, LIMIT)
        assert one.served.held == []
        await asyncio.wait_for(one.process.wait(), LIMIT)


@pytest.mark.real_time
async def test_a_container_that_ends_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    """Its server may wait for memory, and notice nothing."""
    (tmp_path / "kyb-run").symlink_to("/bin/sleep")

    tools = Tools(tmp_path / "enter", tmp_path / "criu", tmp_path / "cache")
    engine = Criu(tools, CgroupFreezer(), tmp_path / "work", inits=EveryInit())
    container = await asyncio.create_subprocess_exec(tmp_path / "kyb-run", "1000")
    with Container.opened(EveryInit(), container.pid, "", tmp_path / "work") as opened:
        work = opened.work
    async with server(work) as one:
        engine._served[work] = one.served
        await one.served.hold(Deadline(LIMIT))
        done = asyncio.ensure_future(engine.pages_done(container.pid, 1e9))
        await asyncio.sleep(0.05)
        assert not done.done()
        container.kill()
        with pytest.raises(NotFoundError):
            await asyncio.wait_for(done, LIMIT)
        assert one.served.held == []
        await asyncio.wait_for(one.process.wait(), LIMIT)
    await container.wait()


@pytest.mark.parametrize(
    "before", [b"", b"@\xff\xfe", b"x\n lazy-pages.socket", b"/run/my lazy-pages.socket"]
)
@pytest.mark.parametrize(("flags", "listens"), [(b"00000000", False), (b"00010000", True)])
def test_it_is_seen_to_listen_whatever_others_call_their_sockets(
    tmp_path: Path, before: bytes, flags: bytes, listens: bool
) -> None:
    others = (b"00010000", 41, before) if before else None
    container = _in_a_network(tmp_path, others, (flags, 4242, b"lazy-pages.socket"))
    assert pages._is_open(container, _with_socket(tmp_path, 4242)) is listens


def test_another_trees_server_on_the_same_network_is_not_taken_for_it(tmp_path: Path) -> None:
    """As with pods on the node's own network."""
    name, listens = b"lazy-pages.socket", b"00010000"
    container = _in_a_network(tmp_path, (listens, 41, name), (b"00000000", 4242, name))
    assert not pages._is_open(container, _with_socket(tmp_path, 4242))
    assert not pages._is_open(container, _with_socket(tmp_path, 4243))
    assert pages._is_open(container, _with_socket(tmp_path, 41))


def _in_a_network(root: Path, *sockets: tuple[bytes, int, bytes] | None) -> Container:
    """Process 7's, with these flags, inodes and names."""
    line = b"0000000000000000: 00000002 00000000 %s 0001 01 %5d %s\n"
    table = root / "7" / "net" / "unix"
    table.parent.mkdir(parents=True)
    head = b"Num       RefCount Protocol Flags    Type St Inode Path\n"
    table.write_bytes(head + b"".join(line % one for one in sockets if one))
    return Container(7, Path(), -1, root, root)


def _with_socket(root: Path, inode: int) -> int:
    """A process that has it open."""
    folder = root / str(inode) / "fd"
    folder.mkdir(parents=True)
    (folder / "5").symlink_to(f"socket:[{inode}]")
    return inode
