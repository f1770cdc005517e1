"""Trees that run before their memory is in, and what becomes of them if it never comes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.errors import DeadlineError, RestoreError
from tests.kit.containers import wait_for
from tests.kit.parking import LIMIT
from tests.kit.programs import ask, digest, redis

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.parking import Seat

pytestmark = pytest.mark.integration


def test_all_memory_comes_in_by_and_by_and_then_nothing_is_held(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000)
    before = digest(one)
    one.park()
    one.resume(lazy=True)
    assert b"PONG" in ask(one, "PING")
    one.pages_done()
    assert digest(one) == before
    assert _held() == 0
    one.park()
    one.resume()
    assert digest(one) == before


def test_who_asks_for_no_last_page_is_served_all_the_same(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=50_000)
    before = digest(one)
    one.park()
    one.resume(lazy=True)
    # Nobody has asked for it, but that the loop goes on.
    one.run(asyncio.to_thread(wait_for, lambda: not _held(), "its memory is held for ever", LIMIT))
    assert digest(one) == before
    one.pages_done()
    one.park()
    one.resume()
    assert digest(one) == before


def test_a_tree_whose_server_died_ends_rather_than_see_zeros(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=1_000_000)
    one.park()
    one.restore(lazy=True)
    assert _held() > 0
    os.kill(_server(one), signal.SIGKILL)
    one.thaw()
    assert b"PONG" not in ask(one, "PING", limit=1.0), "it runs on memory that isn't there"
    with pytest.raises(RestoreError, match="ended too soon"):
        one.pages_done()
    assert _held() == 0
    wait_for(lambda: not Path(f"/proc/{one.container.init}/fd/0").exists(), "it lives on")


def test_who_waits_too_short_may_wait_again(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=1_000_000)
    one.park()
    one.restore(lazy=True)
    with pytest.raises(DeadlineError):
        one.run(one.criu.pages_done(one.container.init, 0.0))
    one.thaw()
    one.pages_done()
    assert b"PONG" in ask(one, "PING")


def _held() -> int:
    """Userfaultfds that are open here."""
    found = 0
    for entry in os.scandir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(entry.path) == "anon_inode:[userfaultfd]"
    return found


def _server(one: Seat) -> int:
    """The CRIU that serves the tree's memory."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            program = os.readlink(entry / "exe") if entry.name.isdigit() else ""
            if program == str(one.node.tools.criu) and b"lazy-pages" in words:
                return int(entry.name)
    raise AssertionError("nobody serves it")
