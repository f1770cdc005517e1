"""A tree that comes back in another container, and containers that live on while it is away."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kybernate.ports import DumpState
from tests.kit.node.containers import wait_for
from tests.kit.node.programs import PAIR, ask, digest, nginx, python, redis, serves

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration


def test_redis_goes_on_in_another_container(seat: Callable[..., Seat]) -> None:
    old = redis(seat, keys=20_000)
    before = digest(old)
    number = old.container.number_inside(old.container.tree)
    outside = old.container.connect(6379)
    outside.sendall(b"PING\r\n")
    assert outside.recv(100) == b"+PONG\r\n"
    old.park()
    new = seat(init=("--parked", str(number)))
    assert new.criu.state(new.container.init) is DumpState.PARKED
    assert new.container.ip != old.container.ip
    shutil.copytree(old.images, new.images)
    old.node.discard(old.container)
    new.resume()
    outside.close()
    assert new.container.comm == "kyb-run"
    assert ask(new, "CLIENT", "LIST").count(b" addr=") == 1, "the old client was not ended"
    assert old.container.ip not in new.container.inside("ip", "address"), "its address stayed"
    assert digest(new) == before
    new.park()
    new.resume()
    assert digest(new) == before
    assert b"OK" in ask(new, "SET", "more", "than before")
    assert new.container.end() == 0, "its end is the container's"


def test_its_own_two_ends_go_on_in_another_container(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    old = python(seat, tmp_path, PAIR)
    number = old.container.number_inside(old.container.tree)
    old.park()
    new = seat(init=("--parked", str(number)), mounts={tmp_path: "/app"})
    assert new.container.ip != old.container.ip
    shutil.copytree(old.images, new.images)
    old.node.discard(old.container)
    new.resume()
    wait_for(lambda: new.container.log.count("said") > 1, lambda: new.container.log)
    assert new.container.end() == 143


def test_the_container_lives_while_its_tree_is_away(seat: Callable[..., Seat]) -> None:
    one = nginx(seat)
    one.park()
    # ctr may end before it has read what a quick command said: seen once in hundreds of runs.
    wait_for(lambda: one.container.inside("echo", "still here") == "still here\n", lambda: "silent")
    assert "parked" in one.container.inside("/kyb/kyb-init", "status")
    one.container.door.close()
    said = one.container.inside("/kyb/kyb-init", "status")
    assert said == "parked: the tree was dumped and ended (the node agent is away)\n"
    one.resume()
    assert serves(one)


def test_a_parked_container_stops_at_once(seat: Callable[..., Seat]) -> None:
    one = nginx(seat)
    one.park()
    assert one.container.end() == 143


def test_an_exec_session_outlives_a_cycle(seat: Callable[..., Seat]) -> None:
    one = nginx(seat)
    session = one.container.spawn("sh", "-c", "sleep 1; echo survived")
    one.park()
    one.resume()
    out, _ = session.communicate(timeout=20)
    assert out == "survived\n"
