"""Trees that run before their memory is in, and what becomes of them if it never comes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.container.inits import KernelInits
from kybernate.adapters.criu import holders, pages, running
from kybernate.adapters.criu.container import Container
from kybernate.errors import DeadlineError, DumpError, NotFoundError, RestoreError
from kybernate.lib.deadline import Deadline
from tests.kit.node import mortal
from tests.kit.node.containers import wait_for
from tests.kit.node.parking import LIMIT, held
from tests.kit.node.programs import ask, digest, python, redis

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration


def test_all_memory_comes_in_by_and_by_and_then_nothing_is_held(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000)
    before = digest(one)
    one.park()
    one.resume(lazy=True)
    # On the loop: once all is in the agent lets go, and a page that never was there waits for that.
    assert b"PONG" in one.run(asyncio.to_thread(ask, one, "PING"))
    one.pages_done()
    assert digest(one) == before
    assert held() == 0
    one.park()
    one.resume()
    assert digest(one) == before


def test_who_asks_for_no_last_page_is_served_all_the_same(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=50_000)
    before = digest(one)
    one.park()
    one.resume(lazy=True)
    # Nobody has asked for it, but that the loop goes on.
    one.run(asyncio.to_thread(wait_for, lambda: not held(), "its memory is held for ever", LIMIT))
    assert digest(one) == before
    one.pages_done()
    one.park()
    one.resume()
    assert digest(one) == before


def test_an_agent_may_have_many_descriptors(
    seat: Callable[..., Seat], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lends to kyb-enter has a number then that something of CRIU's gets."""
    one = redis(seat, keys=200_000)
    before = digest(one)
    one.park()
    pair = socket.socketpair

    def moved() -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair()
        with theirs:
            found = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, running.LOCK)
        assert found == running.LOCK, "something else has it here"
        return ours, socket.socket(fileno=found)

    monkeypatch.setattr(pages.socket, "socketpair", moved)
    one.resume(lazy=True)
    one.pages_done()
    assert digest(one) == before


def test_a_tree_whose_server_died_ends_rather_than_see_zeros(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000)
    one.park()
    server = mortal.restore_stopped(one)
    assert held() > 0
    os.kill(server, signal.SIGKILL)
    one.thaw()
    _see_waiting(one)
    _see_ended(one)


def test_nothing_is_dumped_before_all_memory_is_in(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000)
    before = digest(one)
    one.park()
    server = mortal.restore_stopped(one)
    with pytest.raises(DumpError, match="on its way in"):
        one.run(one.criu.dump(one.container.init, one.handle, one.images, LIMIT))
    os.kill(server, signal.SIGCONT)
    one.thaw()
    one.pages_done()
    assert digest(one) == before


def test_the_next_agent_holds_on_to_what_a_server_does_not_bring(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000)
    one.park()
    with mortal.agent(one):
        pass
    one.criu = one.another_agent()
    assert held() > 0
    # kyb-enter, too: what the agent holds must do.
    for pid in _serving(one):
        os.kill(pid, signal.SIGKILL)
    one.thaw()
    _see_waiting(one)
    _see_ended(one)


@pytest.mark.parametrize("after", ["agent", "server"])
def test_a_tree_waits_whose_server_died_while_no_agent_was_there(
    seat: Callable[..., Seat], after: str
) -> None:
    one = redis(seat, keys=200_000)
    one.park()
    with mortal.agent(one) as server:
        if after == "server":
            os.kill(server, signal.SIGKILL)
    if after == "agent":
        os.kill(server, signal.SIGKILL)
    one.thaw()
    _see_waiting(one)
    one.criu = one.another_agent()
    _see_waiting(one)
    _see_ended(one)


def test_a_tree_is_not_trusted_of_whose_server_nobody_tells(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000)
    one.park()
    with mortal.agent(one):
        pass
    for pid in _serving(one):
        os.kill(pid, signal.SIGKILL)
    one.criu = one.another_agent()
    one.thaw()
    _see_ended(one)


def test_a_server_that_has_ended_well_meanwhile_is_known_to_have(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000)
    before = digest(one)
    one.park()
    with mortal.agent(one) as server:
        pass
    os.kill(server, signal.SIGCONT)
    one.thaw()
    assert digest(one) == before, "it is served without an agent"
    wait_for(lambda: not _serving(one), "its memory never comes")
    one.criu = one.another_agent()
    one.pages_done()
    assert held() == 0
    assert digest(one) == before
    one.park()
    one.resume()
    assert digest(one) == before


@pytest.mark.parametrize("stops", [False, True], ids=["killed", "stopped"])
def test_the_next_agent_sees_all_memory_come_in(seat: Callable[..., Seat], stops: bool) -> None:
    one = redis(seat, keys=200_000)
    before = digest(one)
    one.park()
    with mortal.agent(one, stops=stops) as server:
        pass
    one.criu = one.another_agent()
    assert held() > 0
    with pytest.raises(DeadlineError):
        one.run(one.criu.pages_done(one.container.init, 0.0))
    os.kill(server, signal.SIGCONT)
    one.thaw()
    one.pages_done()
    assert held() == 0
    assert digest(one) == before


def test_a_server_that_a_dead_agent_has_started_for_no_tree_is_ended(
    seat: Callable[..., Seat],
) -> None:
    one = redis(seat, keys=1_000)
    before = digest(one)
    one.park()
    inits, work = KernelInits(one.node.tools.enter.parent), one.node.work / "criu"
    with Container.opened(inits, one.container.init, one.handle, work) as container:
        served, _ = one.run(pages.serve(one.node.tools, container, one.images, (), Deadline(LIMIT)))
    served.let_go()
    assert len(_serving(one)) == 2
    one.resume()
    assert _serving(one) == []
    assert digest(one) == before


FAMILY = """
import mmap, os, hashlib, time
if os.fork() == 0:
    data = os.urandom(400 << 20)
    told = hashlib.sha256(data).hexdigest()
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        if os.path.exists("/app/look"):
            right = hashlib.sha256(data).hexdigest() == told
            with open("/app/seen", "w") as seen:
                seen.write(f"{right}\\n")
            os.remove("/app/look")
room = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
room[0] = 1
with open("/app/count", "w+b") as file:
    file.write(bytes(8))
    file.flush()
    count = mmap.mmap(file.fileno(), 8)
for at in range(mmap.PAGESIZE, len(room), mmap.PAGESIZE):
    room[at] = 1
    count[:8] = at.to_bytes(8, "little")
    time.sleep(0.0005)
"""


def test_one_that_has_all_its_memory_goes_on_while_others_wait(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    one = python(seat, tmp_path, FAMILY)
    one.park()
    one.resume(lazy=True)
    one.pages_done()
    _see_right(tmp_path)


def test_what_a_dead_agent_began_to_restore_is_restored_anew(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    one = python(seat, tmp_path, FAMILY)
    one.park()
    with mortal.agent(one, half=True):
        pass
    one.criu = one.another_agent()
    one.resume(lazy=True)
    one.pages_done()
    assert held() == 0
    _see_right(tmp_path)


def test_who_waits_too_short_may_wait_again(seat: Callable[..., Seat]) -> None:
    one = redis(seat, keys=200_000)
    one.park()
    server = mortal.restore_stopped(one)
    with pytest.raises(DeadlineError):
        one.run(one.criu.pages_done(one.container.init, 0.0))
    os.kill(server, signal.SIGCONT)
    one.thaw()
    one.pages_done()
    assert b"PONG" in ask(one, "PING")


def _see_right(folder: Path) -> None:
    """The family's memory is as it was."""
    (folder / "look").touch()
    wait_for((folder / "seen").exists, "it doesn't answer", LIMIT)
    wait_for(lambda: (folder / "seen").read_text() == "True\n", "its memory is wrong")


def _see_waiting(one: Seat) -> None:
    """It runs on no memory that isn't there."""
    assert b"PONG" not in ask(one, "PING", limit=1.0), "it runs on memory that isn't there"


def _see_ended(one: Seat) -> None:
    """It is ended, perhaps before anybody asks, and nothing is held any more."""
    with pytest.raises((RestoreError, NotFoundError), match=r"ended too soon|There is no process"):
        one.pages_done()
    one.run(asyncio.to_thread(wait_for, lambda: not held(), "its memory is held for ever", LIMIT))
    wait_for(lambda: not Path(f"/proc/{one.container.init}/fd/0").exists(), "it lives on")
    wait_for(lambda: not _serving(one), "what served it stays")


def _serving(one: Seat) -> list[int]:
    """What serves the tree's memory: CRIU, and its kyb-enter."""
    (work,) = (one.node.work / "criu").glob(f"{one.container.init}-*")
    return list(holders.find(work / running.PAGES))
