"""Connections outlive a parked tree: nobody is reset, and who asks is heard."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.arrivals.gate import NetworkGate
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.errors import NotFoundError
from tests.kit.node.programs import GET, nginx

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration
LIMIT = 10.0


async def heard_within(heard: list[str], limit: float) -> bool:
    for _ in range(int(limit / 0.01)):
        if heard:
            break
        await asyncio.sleep(0.01)
    return bool(heard)


def gate_of(seat: Seat) -> NetworkGate:
    """As an agent that has just been started has it."""
    return NetworkGate(seat.node.work / "gates", Procfs().descendants)


def answered(link: socket.socket) -> bool:
    return b"nginx is here" in link.recv(4096)


@pytest.fixture
def asked(seat: Callable[..., Seat]) -> tuple[Seat, socket.socket]:
    """nginx, and a connection on which it has answered once."""
    one = nginx(seat)
    link = one.container.connect(8080)
    link.sendall(GET)
    assert answered(link)
    return one, link


def test_an_old_connection_is_answered_after_the_wake(asked: tuple[Seat, socket.socket]) -> None:
    one, link = asked
    gate, heard = gate_of(one), list[str]()

    async def shut_and_ask() -> None:
        await gate.shut(one.container.init, heard.append, LIMIT)
        await one.park_inside()
        assert not await heard_within(heard, 0.3), heard
        link.sendall(GET)
        assert await heard_within(heard, LIMIT)
        await asyncio.sleep(0.3)
        await one.resume_inside()
        await gate.open(one.container.init, LIMIT)
        await gate.open(one.container.init, LIMIT)

    one.run(shut_and_ask())
    assert len(heard) == 1
    assert "8080" in heard[0]
    assert answered(link), "it was reset"
    link.close()


def test_a_new_connection_waits_for_the_wake(asked: tuple[Seat, socket.socket]) -> None:
    one, link = asked
    gate, heard = gate_of(one), list[str]()

    async def shut_and_connect() -> socket.socket:
        await gate.shut(one.container.init, heard.append, LIMIT)
        await one.park_inside()
        connecting = asyncio.create_task(asyncio.to_thread(one.container.connect, 8080))
        assert await heard_within(heard, LIMIT)
        await one.resume_inside()
        await gate.open(one.container.init, LIMIT)
        return await connecting

    with one.run(shut_and_connect()) as new:
        assert sent_again(new) == 0, "its first packet was lost"
        new.sendall(GET)
        assert answered(new)
    link.close()


def sent_again(link: socket.socket) -> int:
    """Packets, by the kernel's count."""
    told = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int.from_bytes(told[100:104], sys.byteorder)


def test_a_new_agent_finds_the_gate_shut(asked: tuple[Seat, socket.socket]) -> None:
    one, link = asked
    heard: list[str] = []

    async def with_two_agents() -> None:
        first, second = gate_of(one), gate_of(one)
        await first.shut(one.container.init, lambda _: None, LIMIT)
        await one.park_inside()
        # The tree is gone by now, and with it the word on its ports.
        await second.shut(one.container.init, heard.append, LIMIT)
        link.sendall(GET)
        assert await heard_within(heard, LIMIT)
        await one.resume_inside()
        await second.open(one.container.init, LIMIT)
        await first.open(one.container.init, LIMIT)

    one.run(with_two_agents())
    assert answered(link)
    link.close()


def test_what_only_ends_wakes_nobody(asked: tuple[Seat, socket.socket]) -> None:
    one, link = asked
    heard: list[str] = []

    async def close_while_shut() -> None:
        gate = gate_of(one)
        await gate.shut(one.container.init, heard.append, LIMIT)
        link.close()
        assert not await heard_within(heard, 0.5), heard
        await gate.open(one.container.init, LIMIT)

    one.run(close_while_shut())


def test_a_gate_of_nobody(asked: tuple[Seat, socket.socket]) -> None:
    one, link = asked
    link.close()

    async def ask() -> None:
        gate = gate_of(one)
        await gate.open(one.container.init, LIMIT)
        await gate.open((1 << 22) - 1, LIMIT)
        with pytest.raises(NotFoundError):
            await gate.shut((1 << 22) - 1, lambda _: None, LIMIT)

    one.run(ask())
