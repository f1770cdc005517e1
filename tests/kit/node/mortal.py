"""An agent that restores one tree lazily, and does nothing more until its input ends.

python -m tests.kit.node.mortal KYB-ENTER CRIU WORK INIT HANDLE IMAGES [half]: says "restored" then.
What serves the memory has been stopped by a signal by then, so that nothing depends on how quick
it is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.criu import Criu, Tools, holders, pages
from kybernate.adapters.kernel.freezer import CgroupFreezer
from tests.cluster.layout import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.lib.deadline import Deadline
    from tests.kit.node.parking import Seat

_LIMIT = 60.0


@contextmanager
def agent(seat: Seat, *, stops: bool = False, half: bool = False) -> Iterator[int]:
    """The seat's parked tree, restored and frozen by an agent that is alive until the end of the
    block; the stopped server's PID. `stops`: it is not killed then, but stops by itself; `half`: it
    never gets to say that the tree is back."""
    tools, work = seat.node.tools, seat.node.work / "criu"
    words = (tools.enter, tools.criu, work, seat.container.init, seat.handle, seat.images)
    argv = [sys.executable, "-m", __name__, *map(str, words), *(["half"] if half else [])]
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


def main(enter: str, criu: str, work: str, init: str, handle: str, images: str, *how: str) -> None:
    """Restores it, and waits for its own end."""
    stopped: list[int] = []
    hold = pages.Served.hold

    def wait() -> None:
        print("restored", *stopped, flush=True)
        sys.stdin.read()

    async def hold_and_stop(served: pages.Served, clock: Deadline) -> bool:
        well = await hold(served, clock)
        (server,) = holders.descendants(served.enter)
        os.kill(server, signal.SIGSTOP)
        stopped.append(server)
        if "half" in how:
            wait()
        return well

    pages.Served.hold = hold_and_stop  # type: ignore[method-assign, assignment]
    engine = Criu(Tools(Path(enter), Path(criu)), CgroupFreezer(), Path(work))

    async def restore() -> None:
        await engine.restore(int(init), handle, Path(images), _LIMIT, lazy=True)
        wait()

    asyncio.run(restore())


if __name__ == "__main__":
    main(*sys.argv[1:])
