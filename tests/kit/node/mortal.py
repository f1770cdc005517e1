"""An agent that restores one tree lazily, and does nothing more until its input ends.

python -m tests.kit.node.mortal KYB-ENTER CRIU WORK INIT HANDLE IMAGES [half] [lent]: says
"restored" then. What serves the memory has been stopped by a signal by then, and has read slowly
before: it is never done sooner than this sees the restore's end.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.criu import Criu, Tools, holders, pages
from kybernate.adapters.kernel.freezer import CgroupFreezer
from tests.cluster.layout import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kybernate.lib.deadline import Deadline
    from tests.kit.node.parking import Seat

_LIMIT = 60.0

_APART = 0.05
"""Memory of 100 MB is some 30 reads."""

_CONTENT, _AT_ONCE, _ADD, _READS, _HERE = 0x4, 0x2, 0x1, ctypes.c_uint64(0x20000), -100
"""FAN_CLASS_CONTENT, FAN_NONBLOCK, FAN_MARK_ADD, FAN_ACCESS_PERM and AT_FDCWD."""
_EVENT, _ANSWER, _YES = struct.Struct("IBBHQii"), struct.Struct("iI"), 1

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def agent(
    seat: Seat, *, stops: bool = False, half: bool = False, lent: bool = False
) -> Iterator[int]:
    """The seat's parked tree, restored and frozen by an agent that is alive until the end of the
    block; the stopped server's PID. `stops`: it is not killed then, but stops by itself; `half`: it
    never gets to say that the tree is back; `lent`: its images are filled by somebody who never
    ends, so that neither does the server, however quickly it reads."""
    tools, work = seat.node.tools, seat.node.work / "criu"
    words = (tools.enter, tools.criu, work, seat.container.init, seat.handle, seat.images)
    how = [word for word, given in (("half", half), ("lent", lent)) if given]
    argv = [sys.executable, "-m", __name__, *map(str, words), *how]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert said[:1] == ["restored"], "it restores nothing"
        yield int(said[1])
        if stops:
            process.communicate(timeout=_LIMIT)
    finally:
        process.kill()
        process.communicate()


class SlowReads:
    """Files that CRIU's lazy-pages reads by one call in `_APART` seconds, and others as they like:
    by fanotify, whose answers the event loop gives."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._asked = _libc.fanotify_init(_CONTENT | _AT_ONCE, os.O_RDONLY)
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        for file in files:
            if _libc.fanotify_mark(self._asked, _ADD, _READS, _HERE, os.fsencode(file)):
                raise OSError(ctypes.get_errno(), f"{file} can't be watched")
        asyncio.get_running_loop().add_reader(self._asked, self._answer)

    def close(self) -> None:
        """Nobody is slowed down any more: the kernel allows what was asked."""
        asyncio.get_running_loop().remove_reader(self._asked)
        os.close(self._asked)
        while self._waiting:
            file, later = self._waiting.popitem()
            later.cancel()
            os.close(file)

    def _answer(self) -> None:
        later = asyncio.get_running_loop().call_later
        for *_, file, pid in _EVENT.iter_unpack(os.read(self._asked, 1 << 16)):
            serves = b"lazy-pages" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            self._waiting[file] = later(_APART if serves else 0, self._allow, file)

    def _allow(self, file: int) -> None:
        del self._waiting[file]
        os.write(self._asked, _ANSWER.pack(file, _YES))
        os.close(file)


async def restore_and_stop(
    engine: Criu,
    tree: tuple[int, str, Path],
    slow: Iterable[Path],
    then: Callable[[int], None] = lambda _: None,
) -> int:
    """Lazily from parked to frozen; the PID of what serves the memory, which is stopped. `tree`:
    its init, handle and images, of which `slow` are read slowly. `then` is called with the PID once
    the memory is held, before anything else is done."""
    stopped: list[int] = []
    hold = pages.Served.hold

    async def hold_and_stop(served: pages.Served, clock: Deadline) -> bool:
        (server,) = holders.descendants(served.enter)
        os.kill(server, signal.SIGSTOP)
        stopped.append(server)
        well = await hold(served, clock)
        then(server)
        return well

    reads = SlowReads(slow)
    pages.Served.hold = hold_and_stop  # type: ignore[method-assign, assignment]
    try:
        await engine.restore(*tree, _LIMIT, lazy=True)
    finally:
        pages.Served.hold = hold  # type: ignore[method-assign]
        reads.close()
    return stopped[0]


def restore_stopped(seat: Seat) -> int:
    """As the seat's own `restore`, by its own agent."""
    tree = seat.container.init, seat.handle, seat.images
    return seat.run(restore_and_stop(seat.criu, tree, seat.images.glob("pages-*.img")))


def main(enter: str, criu: str, work: str, init: str, handle: str, images: str, *how: str) -> None:
    """Restores it, and waits for its own end."""

    def wait(server: int) -> None:
        print("restored", server, flush=True)
        sys.stdin.read()

    engine = Criu(Tools(Path(enter), Path(criu)), CgroupFreezer(), Path(work))
    memory = [] if "lent" in how else list(Path(images).glob("pages-*.img"))
    tree = int(init), handle, Path(images)
    half = (wait,) if "half" in how else ()

    async def restore() -> None:
        wait(await restore_and_stop(engine, tree, memory, *half))

    asyncio.run(restore())


if __name__ == "__main__":
    main(*sys.argv[1:])
