"""A dump and a restore that go wrong: nothing is lost, and nothing runs that should stand still."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.adapters.container.inits import KernelInits
from kybernate.adapters.criu import limits, running
from kybernate.adapters.criu.container import Container
from kybernate.adapters.criu.engine import forget_pages
from kybernate.errors import DeadlineError, DumpError, RestoreError, UnfitError
from kybernate.lib.deadline import Deadline
from kybernate.ports import DumpState
from tests.cluster.parts.host import run
from tests.kit.node.containers import wait_for
from tests.kit.node.parking import LIMIT
from tests.kit.node.programs import ask, counter, digest, progress, redis, stands_still

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration

_TRIES = 6


class Striker(threading.Thread):
    """Sends CRIU a signal, so many seconds after it has come into the container."""

    def __init__(self, seat: Seat, after: float, signum: int = signal.SIGKILL) -> None:
        super().__init__()
        self._seat, self._after, self._signum = seat, after, signum
        self._over = threading.Event()
        self.struck = 0
        self.start()

    def run(self) -> None:
        end = time.monotonic() + 10
        while (pid := self._seat.criu_pid()) is None:
            if time.monotonic() > end or self._over.is_set():
                return
        time.sleep(self._after)
        with suppress(ProcessLookupError):
            os.kill(pid, self._signum)
        self.struck = pid

    def done(self) -> int:
        self.join()
        assert self.struck
        return self.struck

    def over(self) -> bool:
        """CRIU has ended: whether it was seen, and struck, before it had."""
        self._over.set()
        self.join()
        return bool(self.struck)


def test_nothing_executes_around_a_dump(seat: Callable[..., Seat], tmp_path: Path) -> None:
    one = counter(seat, tmp_path)
    one.freeze()
    before = progress(tmp_path)
    one.dump()
    assert progress(tmp_path) == before
    one.keep()
    assert stands_still(tmp_path), "kept, it must stand frozen"
    assert one.container.comm == "kyb-run"
    one.keep()
    one.thaw()
    wait_for(lambda: progress(tmp_path) > before, "it doesn't continue")
    one.freeze()
    last = progress(tmp_path)
    one.dump()
    one.end()
    one.end()
    assert one.criu.state(one.container.init) is DumpState.PARKED
    one.restore()
    assert progress(tmp_path) == last, "restored, it must stand frozen"
    one.thaw()
    wait_for(lambda: progress(tmp_path) > last, "it doesn't continue")


def goes_on(one: Seat) -> bool:
    """Whether it answers, thawed; not if it dies of what CRIU had in its registers."""
    served: list[bool] = []

    def told() -> bool:
        if b"PONG" in ask(one, "PING"):
            served.append(True)
        return bool(served) or not one.container.children(one.container.init)

    wait_for(told, "it neither answers nor ends")
    return bool(served)


def heals(one: Seat, after: float) -> bool:
    """Whether a tree goes on as before whose dump was killed. False if CRIU ended before anybody
    saw it, and if the tree died with it: its code lay there just then (docs/concepts/criu.md).
    """
    before = digest(one)
    with one.container.connect(6379) as link:
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n"
        one.freeze()
        striker = Striker(one, after)
        with suppress(DumpError):
            one.dump()
        striker.join()
        time.sleep(0.1)
        if not striker.struck or one.container.comm == "kyb-parked":
            return False
        one.keep()
        assert one.handle in one.freezer.frozen(), "it runs, and nobody has let it"
        assert one.container.comm == "kyb-run"
        one.thaw()
        if not goes_on(one):
            return False
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n", "the connection was left in repair mode"
        assert digest(one) == before
        one.park()
        one.resume()
        assert digest(one) == before
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n"
    return True


@pytest.mark.parametrize("after", [0.0, 0.01, 0.03, 0.1])
def test_a_killed_dump_is_healed(seat: Callable[..., Seat], after: float) -> None:
    """One of so many is killed, and at a moment at which its tree does not die with it."""
    assert any(heals(redis(seat, keys=100_000), after) for _ in range(_TRIES))


def orphan(seat: Seat) -> int | None:
    """A CRIU that process 1 has inherited: the child on which one that was killed tried things."""
    program = seat.node.tools.criu
    for child in seat.container.children(seat.container.init):
        with suppress(OSError):
            if os.path.samefile(f"/proc/{child}/exe", program):
                return child
    return None


async def leave_behind(seat: Seat) -> None:
    """A CRIU whose child goes on without it, as one does whose parent is killed at a bad moment."""
    inits, work = KernelInits(seat.node.tools.enter.parent), seat.node.work / "criu"
    opened = Container.opened(inits, seat.container.init, seat.handle, work)
    with opened as container:
        run = running.Run(argv=["service", "--daemon"], images=seat.images, log="service.log")
        process = await running.start(seat.node.tools, container, run)
        await running.ended(process, Deadline(LIMIT), "service")


def test_what_a_killed_criu_leaves_behind_is_ended(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=10)
    one.freeze()
    one.renew()
    one.run(leave_behind(one))
    wait_for(lambda: orphan(one), "nothing is left behind")
    one.dump()
    assert orphan(one) is None
    one.keep()
    one.thaw()
    assert b"PONG" in ask(one, "PING")


@pytest.mark.parametrize("after", [0.0, 0.02, 0.06])
def test_a_killed_restore_is_repeated(seat: Callable[..., Seat], after: float) -> None:
    """One of so many is struck: on a busy machine it may have ended before it is seen."""
    one = redis(seat, keys=100_000)
    before = digest(one)
    assert any(is_repeated(one, after, before) for _ in range(_TRIES))


def is_repeated(one: Seat, after: float, before: bytes) -> bool:
    """Whether the restore was killed; it comes back whole either way."""
    one.park()
    striker = Striker(one, after)
    try:
        one.restore()
    except RestoreError:
        assert one.criu.state(one.container.init) is DumpState.PARKED
        one.restore()
    finally:
        killed = striker.over()
    one.thaw()
    assert digest(one) == before
    return killed


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=8m", "kyb", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_tree_as_it_was(seat: Callable[..., Seat], small: Path) -> None:
    one = redis(seat, keys=100_000)
    before = digest(one)
    one.freeze()
    images, one.images = one.images, small / "images"
    with pytest.raises(DumpError) as caught:
        one.dump()
    assert not caught.value.suspect
    assert one.container.comm == "kyb-run"
    one.images = images
    one.thaw()
    assert digest(one) == before
    one.park()
    one.resume()
    assert digest(one) == before


def test_out_of_memory_on_restore_can_be_repeated(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=600_000, size=600, memory=900 << 20)
    before = digest(one)
    one.park()
    limit = next(one.node.cgroup(one.container, "memory"))
    limit.write_text(str(20 << 20))
    with pytest.raises(RestoreError) as caught:
        one.restore()
    assert caught.value.starved
    assert one.criu.state(one.container.init) is DumpState.PARKED
    assert limit.read_text().strip() == str(20 << 20), "the limit must be put back"
    limit.write_text(str(900 << 20))
    one.resume()
    assert digest(one) == before


def test_limits_are_lifted_and_put_back(
    seat: Callable[..., Seat], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = redis(seat, keys=20_000, memory=200 << 20, cpus=0.2)
    memory, cpu = (tuple(one.node.cgroup(one.container, name)) for name in ("memory", "cpu"))
    files, during = [*memory, *cpu], list[tuple[int, str]]()
    before = [file.read_text() for file in files]
    ended = running.ended

    async def looked(*what: Any) -> int:
        during.append((int(memory[0].read_text()), cpu[0].read_text().split()[0]))
        return await ended(*what)

    one.park()
    with monkeypatch.context() as patched:
        patched.setattr(running, "ended", looked)
        one.resume()
    ((room, quota),) = during
    assert room == (200 << 20) + limits.ROOM
    assert quota in ("-1", "max")
    assert [file.read_text() for file in files] == before
    assert not list((one.node.work / "criu").glob("*/limits.json"))


def in_cache(seat: Seat) -> int:
    """Bytes of files that count as the container's memory."""
    group = next(seat.node.cgroup(seat.container, "memory")).parent
    lines = (group / "memory.stat").read_text().splitlines()
    sizes = dict(line.split() for line in lines)
    return int(sizes["file"] if "file" in sizes else sizes["total_cache"])


def test_the_images_do_not_stay_in_the_containers_memory(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000, size=600)
    one.park()
    for path in one.images.iterdir():
        with path.open() as file:
            os.fsync(file.fileno())  # what is dirty can't be dropped
    forget_pages(one.images)
    before = in_cache(one)
    one.resume()
    assert one.size() > 100 << 20
    assert in_cache(one) - before < 16 << 20


def test_a_dump_that_takes_too_long_is_left_to_end(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=600_000, size=600)
    before = digest(one)
    one.freeze()
    striker = Striker(one, 0.0, signal.SIGSTOP)
    with pytest.raises(DeadlineError, match="dump took too long"):
        one.dump(deadline=2.0)
    stopped = striker.done()
    assert one.criu_pid() is not None, "it must not be killed"
    os.kill(stopped, signal.SIGCONT)
    one.keep()
    assert one.criu_pid() is None
    one.thaw()
    assert digest(one) == before


def test_images_of_another_format_are_refused(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=10)
    one.park()
    record = one.images / "kybernate.json"
    whole = record.read_text()
    for spoiled in ("", "{}", "[]"):
        record.write_text(spoiled)
        with pytest.raises(RestoreError):
            one.restore()
    record.write_text('{"format": 99}')
    with pytest.raises(UnfitError, match="it is kept"):
        one.restore()
    record.write_text(whole)
    one.resume()
    assert b"PONG" in ask(one, "PING")


def test_a_tree_that_runs_is_not_dumped(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=10)
    with pytest.raises(DumpError, match="isn't frozen"):
        one.dump()
    with pytest.raises(DumpError, match="was not dumped"):
        one.end()
    assert b"PONG" in ask(one, "PING")
    assert os.path.exists(f"/proc/{one.container.init}")
