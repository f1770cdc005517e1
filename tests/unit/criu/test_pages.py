"""What is held of a tree's memory: as long as its server may still die, and no longer."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu import Criu, Tools, pages
from kybernate.adapters.criu.container import Clock
from kybernate.adapters.freezer import CgroupFreezer
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LIMIT = 60.0
SERVER = """
import ctypes, sys
assert ctypes.CDLL(None).syscall(323, 0o2000000) >= 0, "no userfaultfd here"
print("ready", flush=True)
raise SystemExit(int(sys.stdin.readline()))
"""


class Server:
    """A process with a userfaultfd, which ends with the status that it is told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.served = pages.Served(process)

    def end(self, code: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{code}\n".encode())


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    if await process.stdout.readline() != b"ready\n":
        await process.wait()
        pytest.skip("needs userfaultfd (root, or vm.unprivileged_userfaultfd)")
    made = Server(process)
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        made.served.let_go()


def test_who_serves_well_to_the_end_is_let_go_of_by_itself() -> None:
    async def main() -> None:
        async with server() as one:
            seen = asyncio.ensure_future(one.served.seen_out())
            assert await one.served.hold(Clock(LIMIT)) == 0
            assert len(one.served.held) == 1
            one.end(0)
            assert await asyncio.wait_for(seen, LIMIT) == 0
            assert one.served.held == []

    asyncio.run(main())


def test_what_a_dead_server_did_not_bring_is_held_on_to() -> None:
    async def main() -> None:
        async with server() as one:
            seen = asyncio.ensure_future(one.served.seen_out())
            await one.served.hold(Clock(LIMIT))
            one.end(3)
            assert await asyncio.wait_for(seen, LIMIT) == 3
            (held,) = one.served.held
            os.fstat(held)

    asyncio.run(main())


@pytest.mark.parametrize("code", [0, 3])
def test_a_server_that_has_ended_before_it_could_be_held_says_how(code: int) -> None:
    async def main() -> None:
        async with server() as one:
            one.end(code)
            await one.process.wait()
            assert await one.served.hold(Clock(LIMIT)) == code
            assert one.served.held == []

    asyncio.run(main())


def test_what_is_closed_while_it_is_looked_at_hides_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["999999", *real(path)])

    async def main() -> None:
        async with server() as one:
            assert await one.served.hold(Clock(LIMIT)) == 0
            assert len(one.served.held) == 1

    asyncio.run(main())


def test_the_memory_of_a_container_that_is_gone_is_let_go_of(tmp_path: Path) -> None:
    async def main() -> None:
        gone = await asyncio.create_subprocess_exec("true")
        await gone.wait()
        tools = Tools(tmp_path / "enter", tmp_path / "criu", tmp_path / "cache")
        engine = Criu(tools, CgroupFreezer(), tmp_path / "work")
        async with server() as one:
            await one.served.hold(Clock(LIMIT))
            engine._served[tmp_path / "work" / f"{gone.pid}-5"] = one.served
            with pytest.raises(NotFoundError):
                await engine.pages_done(gone.pid, LIMIT)
            assert one.served.held == []
            await asyncio.wait_for(one.process.wait(), LIMIT)

    asyncio.run(main())
