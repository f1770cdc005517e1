"""What models write, kept within bounds."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest

from kybernate.local import logs
from kybernate.local.logs import Log


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "logs" / "a.log")


async def whole(log: Log) -> bytes:
    return b"".join([piece async for piece in log.read(follow=False)])


async def test_what_was_written_is_read(log):
    descriptor = log.open()
    os.write(descriptor, b"one\ntwo\n")
    assert await whole(log) == b"one\ntwo\n"
    assert log.tail(4) == b"two\n"
    os.close(descriptor)


async def test_a_long_log_keeps_its_newest_half_and_goes_on(log, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 100)
    descriptor = log.open()
    os.write(descriptor, b"".join(b"line %02d\n" % number for number in range(50)))
    log.cut()
    assert log.path.stat().st_size == 0
    os.write(descriptor, b"after\n")
    kept = await whole(log)
    assert kept.endswith(b"line 49\nafter\n")
    assert kept.startswith(b"line ")
    assert len(kept) <= 106
    os.close(descriptor)


async def test_a_command_that_writes_faster_than_it_is_read_holds_nobody_up(log, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 100)
    descriptor = log.open()
    os.write(descriptor, b"line\n" * 40)
    opened = Path.open

    class Growing(io.FileIO):
        left = 100

        def readinto(self, buffer):
            os.write(descriptor, b"line\n" * 40)
            Growing.left -= 1
            assert Growing.left, "it is read without end"
            return super().readinto(buffer)

    def growing(path, mode="r", *others, **named):
        if path == log.path:
            return io.BufferedReader(Growing(path), 50)
        return opened(path, mode, *others, **named)

    monkeypatch.setattr(Path, "open", growing)
    log.cut()
    monkeypatch.undo()
    assert log.path.stat().st_size == 0
    assert len(await whole(log)) <= 100
    os.close(descriptor)


async def test_a_log_whose_newest_half_cant_be_kept_is_cut_all_the_same(log, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 100)
    descriptor = log.open()
    os.write(descriptor, b"line\n" * 40)
    log.path.with_name(f"{log.path.name}.1").mkdir()
    log.cut()
    assert log.path.stat().st_size == 0
    os.close(descriptor)


async def test_a_short_log_is_not_cut(log):
    descriptor = log.open()
    os.write(descriptor, b"short\n")
    log.cut()
    assert await whole(log) == b"short\n"
    os.close(descriptor)


async def test_a_reader_follows_also_over_a_cut(log, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 10)
    descriptor = log.open()
    os.write(descriptor, b"0123456789\nabc\n")
    reading = log.read(follow=True)
    got = await anext(reading)
    assert got.endswith(b"abc\n")
    log.cut()
    os.write(descriptor, b"new\n")
    async with asyncio.timeout(5):
        assert await anext(reading) == b"new\n"
    await reading.aclose()
    os.close(descriptor)


async def test_without_a_log_there_is_nothing_to_read(log):
    assert await whole(log) == b""
    log.cut()
