"""What a network has for a restore only: another pod's addresses, and a route where it has none."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from kybernate.adapters.criu import addresses, network
from kybernate.adapters.criu.container import Container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

REPAIR = 19
"""TCP_REPAIR: a socket is bound and connected as CRIU does it, and sends nothing."""
OLD = "10.7.0.1"
OWN = "10.9.0.2"
MADE = f"""set -e
ip link set lo up
ip link add eth0 type veth peer name eth1
ip address add {OWN}/24 dev eth0
echo up
exec sleep 100
"""


class Space:
    """A network namespace as a clone's pod has it: its one interface is down."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", MADE], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"
        pid = self.process.pid
        self.container = Container(pid, Path("/none"), 0, Path("/none"), Path("/proc"))

    def inside(self, call: Callable[[], T]) -> T:
        return network.inside(self.process.pid, call)

    def plug_in(self) -> None:
        self.inside(lambda: subprocess.run(["ip", "link", "set", "eth0", "up"], check=True))
        self.inside(lambda: subprocess.run(["ip", "link", "set", "eth1", "up"], check=True))

    def shown(self) -> str:
        """All of its addresses and routes."""
        asked = ("-o address", "route show table all", "-6 route show table all")
        script = "; ".join(f"ip {words}" for words in asked)
        return self.inside(lambda: subprocess.check_output(["sh", "-c", script], text=True))

    def connected(self, here: str, there: str) -> socket.socket:
        """As a restored connection is. Raises OSError."""

        def connect() -> socket.socket:
            family = socket.AF_INET6 if ":" in here else socket.AF_INET
            one = socket.socket(family)
            try:
                one.setsockopt(socket.IPPROTO_TCP, REPAIR, 1)
                one.bind((here, 0))
                one.connect((there, 80))
                one.setsockopt(socket.IPPROTO_TCP, REPAIR, 0)
            except OSError:
                one.close()
                raise
            return one

        return self.inside(connect)


@pytest.fixture
def space() -> Iterator[Space]:
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network of its own needs root, unshare(1) and ip(8)")
    made = Space()
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.mark.parametrize(("here", "there"), [(OLD, "203.0.113.9"), ("fd00::7", "2001:db8::9")])
def test_where_nothing_leads_out_a_connection_is_made_and_ended(
    space: Space, here: str, there: str
) -> None:
    before = space.shown()
    lent = addresses.lend(space.container, (here,))
    with closing(space.connected(here, there)) as one:
        one.settimeout(5.0)
        addresses.take_back(space.container, lent)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
    assert space.shown() == before


def test_nothing_leads_there_but_the_loan(space: Space) -> None:
    lent = addresses.lend(space.container, (OLD,))
    space.connected(OLD, "203.0.113.9").close()
    addresses.take_back(space.container, lent)
    space.inside(lambda: subprocess.run(["ip", "address", "add", OLD, "dev", "lo"], check=True))
    with pytest.raises(OSError, match="unreachable"):
        space.connected(OLD, "203.0.113.9")


def test_an_address_of_an_interface_that_is_down_is_lent(space: Space) -> None:
    """A clone may have got the very address that its original had."""
    lent = addresses.lend(space.container, (OWN,))
    space.connected(OWN, "203.0.113.9").close()
    addresses.take_back(space.container, lent)
    assert "lo    inet 10.9" not in space.shown()


def test_a_network_with_a_way_out_gets_no_route(space: Space) -> None:
    space.plug_in()
    lent = addresses.lend(space.container, (OLD, OWN))
    assert lent == addresses.Lent((OLD,))
    with pytest.raises(OSError, match="unreachable"):
        space.connected(OLD, "203.0.113.9")
    addresses.take_back(space.container, lent)


def test_a_route_that_a_dead_agent_has_left_goes_with_the_next_restore(space: Space) -> None:
    addresses.lend(space.container, (OLD,))
    assert "default dev lo" in space.shown()
    lent = addresses.lend(space.container, (OLD,))
    addresses.take_back(space.container, lent)
    assert "default dev lo" not in space.shown()


def test_a_loan_that_fails_half_way_leaves_nothing(space: Space) -> None:
    switch = Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
    space.inside(lambda: switch.write_text("1"))
    before = space.shown()
    with pytest.raises(OSError, match="can't be lent"):
        addresses.lend(space.container, (OLD, "fd00::7"))
    assert space.shown() == before
