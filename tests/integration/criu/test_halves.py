"""Trees whose restore's agent died once CRIU was done with them: they are ended, and come back."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu.net import loans
from kybernate.ports import DumpState
from tests.kit.node.containers import wait_for
from tests.kit.node.programs import PAIR, ask, digest, python, redis

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration


class DiedError(BaseException):
    """Of the agent: nothing of it does anything more."""


def restore_and_die(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRIU is done, and the next thing was to freeze the tree; another agent is there then."""

    async def dies(*_: object) -> None:
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(seat.freezer, "freeze", dies)
        patched.setattr(loans, "take_back", lambda _: None)
        with pytest.raises(DiedError):
            seat.restore()
    assert seat.criu.state(seat.container.init) is DumpState.PARKED
    assert seat.freezer.pids(seat.handle), "there is no half of it"
    seat.criu = seat.another_agent()


def test_its_connections_go_on_in_its_own_container(
    seat: Callable[..., Seat], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = redis(seat, keys=10)
    before = digest(one)
    with one.container.connect(6379) as link:
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n"
        one.park()
        restore_and_die(one, monkeypatch)
        one.end()
        one.resume()
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n", "it was told of an end that was none"
    assert digest(one) == before


def test_half_a_tree_need_not_be_ended_before_it_is_restored_again(
    seat: Callable[..., Seat], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = redis(seat, keys=10)
    with one.container.connect(6379) as link:
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n"
        one.park()
        restore_and_die(one, monkeypatch)
        restore_and_die(one, monkeypatch)
        one.resume()
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n"


def test_its_own_two_ends_go_on(
    seat: Callable[..., Seat], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = python(seat, tmp_path, PAIR)
    one.park()
    restore_and_die(one, monkeypatch)
    one.end()
    one.resume()
    said = one.container.log
    wait_for(lambda: len(one.container.log) > len(said), "it doesn't continue")


def test_it_comes_back_in_another_container(
    seat: Callable[..., Seat], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = redis(seat, keys=10)
    before = digest(old)
    number = old.container.number_inside(old.container.tree)
    outside = old.container.connect(6379)
    outside.sendall(b"PING\r\n")
    assert outside.recv(100) == b"+PONG\r\n"
    old.park()
    new = seat(init=("--parked", str(number)))
    shutil.copytree(old.images, new.images)
    old.node.discard(old.container)
    restore_and_die(new, monkeypatch)
    new.end()
    new.resume()
    outside.close()
    assert ask(new, "CLIENT", "LIST").count(b" addr=") == 1, "the old client was not ended"
    assert old.container.ip not in new.container.inside("ip", "address"), "its address stayed"
    assert digest(new) == before
