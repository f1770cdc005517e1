"""nginx and Redis, parked to disk and back, three times over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.ports import DumpState
from tests.kit.node.containers import wait_for
from tests.kit.node.parking import LIMIT
from tests.kit.node.programs import GET, ask, digest, nginx, python, redis, serves
from tests.workloads import kitchen

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration

RESTRICTED = ("--read-only", "--seccomp", *(f"--cap-drop={name}" for name in (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW",
    "CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
)))  # fmt: skip


def test_nginx_keeps_serving(seat: Callable[..., Seat]) -> None:
    one = nginx(seat)
    pids = one.container.below(one.container.init)
    kept = one.container.connect(8080)
    kept.sendall(GET)
    assert b"nginx is here" in kept.recv(4096)
    for _ in range(3):
        one.park()
        assert one.container.comm == "kyb-parked"
        assert not one.container.below(one.container.init)
        one.resume()
        assert one.container.comm == "kyb-run"
        assert serves(one)
        kept.sendall(GET)
        assert b"nginx is here" in kept.recv(4096), "the old connection must continue"
    assert len(one.container.below(one.container.init)) == len(pids)
    kept.close()
    wait_for(lambda: one.container.log.count("GET / HTTP") >= 8, "the log must continue")


async def asked_while_pages_come(one: Seat) -> bytes:
    """As the agent does: whoever waits for the last page lets go of the memory then, and a page
    that was never there is held up until that."""
    done = asyncio.create_task(one.criu.pages_done(one.container.init, LIMIT))
    said = await asyncio.to_thread(ask, one, "GET", "here")
    await done
    return said


@pytest.mark.parametrize("lazy", [False, True])
def test_redis_keeps_every_key(seat: Callable[..., Seat], lazy: bool) -> None:
    one = redis(seat, keys=50_000)
    ask(one, "SET", "here", "since before")
    before = digest(one)
    for _ in range(3):
        one.park()
        one.resume(lazy=lazy)
        assert b"since before" in one.run(asked_while_pages_come(one))
        assert digest(one) == before
    assert one.criu.state(one.container.init) is DumpState.RUNNING


@pytest.mark.parametrize("restricted", [False, True])
def test_a_bit_of_everything(seat: Callable[..., Seat], restricted: bool, tmp_path: Path) -> None:
    source = tmp_path / "app"
    source.mkdir()
    writable = tmp_path / "tmp"
    writable.mkdir(mode=0o777)
    writable.chmod(0o777)
    wish: dict[str, object] = {"mounts": {writable: "/tmp"}}
    if restricted:
        wish |= {"user": "1000:1000", "flags": RESTRICTED}
    one = python(seat, source, Path(kitchen.__file__).read_text(), **wish)
    status = privileges(one)
    with one.container.connect(kitchen.PORT) as link:
        for cycle in range(4):
            link.sendall(b"check\n")
            found = json.loads(link.recv(65536))
            assert all(found.values()), (cycle, found)
            one.park()
            one.resume()
    assert privileges(one) == status


def privileges(seat: Seat) -> dict[int, list[str]]:
    """What the kernel says of each process's rights, by its number in the container."""
    wanted = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:")
    found = {}
    for pid in seat.container.below(seat.container.init):
        lines = seat.container.status(pid).splitlines()
        if "State:\tZ (zombie)" not in lines:
            rights = [line for line in lines if line.startswith(wanted)]
            found[seat.container.number_inside(pid)] = rights
    return found
