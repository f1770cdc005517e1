"""A seat on the node's own network: what is done to a pod's network is not done there."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.arrivals import NetworkGate, nftables
from kybernate.adapters.criu.checks import undumpable
from kybernate.adapters.criu.container import Container
from kybernate.adapters.criu.net import addresses, loans
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
    ),
]
LIMIT = 10.0
OLD = "10.97.13.9"


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Container]:
    """Process 1 of a pod with hostNetwork, on the network of this test."""
    process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"])
    yield Container(process.pid, tmp_path / "handle", -1, tmp_path, Path("/proc"))
    process.kill()
    process.wait()
    subprocess.run(["ip", "address", "del", OLD, "dev", "lo"], capture_output=True, check=False)
    nftables.open_again()


def test_nothing_is_held_back_there(seat: Container, tmp_path: Path) -> None:
    gate = NetworkGate(tmp_path / "gates", lambda _: ())

    async def scene() -> None:
        with pytest.raises(RefusedError, match="hostNetwork"):
            await gate.shut(seat.init, print, LIMIT, 65000)
        assert await gate.open(seat.init, LIMIT) == 0
        gate.close()

    asyncio.run(scene())
    assert not nftables.is_shut()
    assert list((tmp_path / "gates").glob("*")) == []


def test_no_interface_of_it_goes_down(seat: Container, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="hostNetwork"):
        asyncio.run(NetworkGate(tmp_path, lambda _: ()).cut(seat.init, LIMIT))


def test_it_is_lent_no_address(seat: Container, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="hostNetwork"):
        loans.lend(seat, (OLD,))
    assert OLD not in subprocess.check_output(["ip", "-o", "address"], text=True)
    assert not (tmp_path / loans.FILE).exists()


def test_what_an_older_release_did_there_is_taken_back(seat: Container, tmp_path: Path) -> None:
    nftables.shut((65000,))
    subprocess.run(["ip", "address", "add", OLD, "dev", "lo"], check=True)
    asyncio.run(NetworkGate(tmp_path / "gates", lambda _: ()).open(seat.init, LIMIT))
    addresses.take_back(seat, addresses.Lent((OLD,), ()))
    assert not nftables.is_shut()
    assert OLD not in subprocess.check_output(["ip", "-o", "address"], text=True)


def test_its_seat_stays_in_ram_and_is_told_why(seat: Container) -> None:
    (said,) = undumpable._network(seat)
    assert "leave hostNetwork out" in said
