"""Files that travel with a tree: a disk that doesn't answer holds up no seat for ever."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from kybernate.adapters import treefiles
from kybernate.adapters.treefiles import ARCHIVE, NOTE, Note
from kybernate.errors import DeadlineError, DumpError
from nodeagent.offload.images.carried import Carried
from nodeagent.offload.images.dumper import AgentDumper

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from kybernate.ports import Phases

MIB = 1 << 20
SHORT, LONG = 0.1, 60.0


class Dumper:
    """The part of `ports.Dumper` that the files come before or after; how long each call had."""

    def __init__(self) -> None:
        self.had: list[float] = []

    async def dump(
        self, init: int, handle: str, images: Path, deadline: float, **how: bool
    ) -> Phases:
        self.had.append(deadline)
        return {}

    async def restore(
        self, init: int, handle: str, images: Path, deadline: float, **how: bool
    ) -> Phases:
        self.had.append(deadline)
        return {}


def with_files(dumper: Dumper, carried: Carried | None = None) -> AgentDumper:
    return AgentDumper(cast("Any", dumper), lambda _: None, carried or Carried(MIB))


async def late(call: Awaitable[Phases], stuck: Path, way_out: int) -> None:
    """The call raises though its thread hangs at a pipe, which ends when the pipe gets an end."""
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    try:
        with pytest.raises(DeadlineError):
            await call
    finally:
        behind = threads.submit(int)
        while not behind.done():
            with suppress(OSError):
                os.close(os.open(stuck, way_out | os.O_NONBLOCK))
            await asyncio.sleep(0.001)


def test_a_dump_is_not_held_up_by_files_that_can_not_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ARCHIVE)
    carrying = with_files(Dumper())
    call = carrying.dump(os.getpid(), "", tmp_path, SHORT)
    asyncio.run(late(call, tmp_path / ARCHIVE, os.O_RDONLY))
    assert not (tmp_path / NOTE).exists()


def test_a_restore_is_not_held_up_by_files_that_can_not_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NOTE)
    dumper = Dumper()
    call = with_files(dumper).restore(os.getpid(), "", tmp_path, SHORT)
    asyncio.run(late(call, tmp_path / NOTE, os.O_WRONLY))
    assert dumper.had == [], "nothing is recreated without its files"


def test_files_are_gathered_while_the_tree_is_dumped(tmp_path: Path) -> None:
    class Waiting(Dumper):
        async def dump(
            self, init: int, handle: str, images: Path, deadline: float, **how: bool
        ) -> Phases:
            async with asyncio.timeout(deadline):
                while not (images / NOTE).exists():  # noqa: ASYNC110 - a thread's work
                    await asyncio.sleep(0.001)
            return {"criu": 1.0}

    carrying = with_files(Waiting())
    phases = asyncio.run(carrying.dump(os.getpid(), "", tmp_path, LONG))
    assert phases.keys() == {"criu", "files"}


class Cut(Dumper):
    """A dump that is cut short once the files are being gathered: it fails, or is cancelled."""

    def __init__(self, files: Files, how: BaseException) -> None:
        super().__init__()
        self._files, self._how = files, how

    async def dump(
        self, init: int, handle: str, images: Path, deadline: float, **how: bool
    ) -> Phases:
        assert await asyncio.to_thread(self._files.begun.wait, LONG)
        raise self._how


class Files:
    """In place of the gathering: it goes on till it is told to stop, and then has one more piece to
    write, when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.stopped = self.ended = False

    def gather(
        self, init: int, images: Path, limit: int, deadline: float, stop: threading.Event
    ) -> Note:
        self.begun.set()
        self.stopped = stop.wait(LONG)
        assert self.may_end.wait(LONG)
        (images / NOTE).touch()
        self.ended = True
        return Note("")


@pytest.mark.real_time
@pytest.mark.parametrize("how", [DumpError("CRIU says no"), asyncio.CancelledError()])
async def test_who_removes_the_images_of_a_dump_that_was_cut_short_is_alone_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: BaseException
) -> None:
    files = Files()
    monkeypatch.setattr(treefiles, "gather", files.gather)

    carried = Carried(MIB)
    carrying = with_files(Cut(files, how), carried)
    with pytest.raises(type(how)):
        await carrying.dump(os.getpid(), "", tmp_path, LONG)
    removing = asyncio.create_task(carried.left(tmp_path))
    await asyncio.sleep(0)
    assert not files.ended, "the dump's end doesn't wait for the files"
    assert not removing.done()
    files.may_end.set()
    await removing
    assert files.stopped
    assert files.ended


@pytest.mark.real_time
async def test_images_that_nobody_is_at_work_on_are_left_at_once(tmp_path: Path) -> None:
    carried = Carried(MIB)
    await carried.left(tmp_path)
    await with_files(Dumper(), carried).dump(os.getpid(), "", tmp_path, LONG)
    await carried.left(tmp_path)
    assert (tmp_path / NOTE).exists()


def test_what_the_files_took_is_not_had_again(tmp_path: Path) -> None:
    dumper = Dumper()
    asyncio.run(with_files(dumper).restore(os.getpid(), "", tmp_path, LONG))
    assert 0 < dumper.had[0] < LONG
