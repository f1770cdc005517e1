"""What a network has for a restore only: another pod's addresses, and a route where it has none."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from kybernate.adapters.criu import Criu, Tools
from kybernate.adapters.criu.container import Container
from kybernate.adapters.criu.net import addresses, loans, network
from tests.kit.inits import EveryInit
from tests.kit.machine import FakeFreezer, Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

REPAIR = 19
"""TCP_REPAIR: a socket is bound and connected as CRIU does it, and sends nothing."""
OLD = "10.7.0.1"
OWN = "10.9.0.2"
MINE = "10.8.0.1"
"""The container's own, on lo."""
MADE = f"""set -e
ip link set lo up
ip link add eth0 type veth peer name eth1
ip address add {OWN}/24 dev eth0
echo up
exec {{kyb_init}} 100
"""


class Space:
    """A network namespace as a clone's pod has it: its one interface is down."""

    def __init__(self, folder: Path) -> None:
        # A process is called as its file is.
        kyb_init, self.work = folder / "kyb-parked", folder / "work"
        kyb_init.symlink_to(shutil.which("sleep") or "")
        self.process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", MADE.format(kyb_init=kyb_init)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"
        while Path(f"/proc/{self.process.pid}/comm").read_text() != "kyb-parked\n":
            time.sleep(0.001)

    @contextmanager
    def opened(self) -> Iterator[Container]:
        with Container.opened(EveryInit(), self.process.pid, "", self.work) as container:
            yield container

    def lend(self, *wanted: str) -> None:
        with self.opened() as container:
            loans.lend(container, wanted)

    def take_back(self) -> None:
        with self.opened() as container:
            loans.take_back(container)

    def inside(self, call: Callable[[], T]) -> T:
        return network.inside(self.process.pid, call)

    def plug_in(self) -> None:
        """No address comes by itself later, which `shown` would tell of."""
        for name in ("eth0", "eth1"):
            for words in (("addrgenmode", "none"), ("up",)):
                self.run("ip", "link", "set", name, *words)
        while self.run("ip", "-o", "link").count(" state UP ") < 2:
            time.sleep(0.01)

    def run(self, *words: str) -> str:
        return self.inside(lambda: subprocess.check_output(words, text=True))

    def shown(self) -> str:
        """All of its addresses and routes."""
        return self.shown_to(self.process.pid)

    @staticmethod
    def shown_to(pid: int) -> str:
        """The same, of a process's network."""
        asked = ("-o address", "route show table all", "-6 route show table all")
        script = "; ".join(f"ip {words}" for words in asked)
        return network.inside(pid, lambda: subprocess.check_output(["sh", "-c", script], text=True))

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
def space(tmp_path: Path) -> Iterator[Space]:
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network of its own needs root, unshare(1) and ip(8)")
    made = Space(tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.mark.parametrize(("here", "there"), [(OLD, "203.0.113.9"), ("fd00::7", "2001:db8::9")])
def test_where_nothing_leads_out_a_connection_is_made_and_ended(
    space: Space, here: str, there: str
) -> None:
    before = space.shown()
    space.lend(here)
    with closing(space.connected(here, there)) as one:
        one.settimeout(5.0)
        space.take_back()
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
    assert space.shown() == before


def test_nothing_leads_there_but_the_loan(space: Space) -> None:
    space.lend(OLD)
    space.connected(OLD, "203.0.113.9").close()
    space.take_back()
    space.inside(lambda: subprocess.run(["ip", "address", "add", OLD, "dev", "lo"], check=True))
    with pytest.raises(OSError, match="unreachable"):
        space.connected(OLD, "203.0.113.9")


def test_an_address_of_an_interface_that_is_down_is_lent(space: Space) -> None:
    """A clone may have got the very address that its original had."""
    space.lend(OWN)
    space.connected(OWN, "203.0.113.9").close()
    space.take_back()
    assert "lo    inet 10.9" not in space.shown()


def test_a_network_with_a_way_out_gets_no_route(space: Space) -> None:
    space.plug_in()
    with space.opened() as container:
        assert addresses.lacking(container, (OLD, OWN)) == addresses.Lent((OLD,))
    space.lend(OLD, OWN)
    with pytest.raises(OSError, match="unreachable"):
        space.connected(OLD, "203.0.113.9")
    space.take_back()


@pytest.mark.parametrize("plugged_in", [False, True])
def test_what_a_dead_agent_has_lent_goes_with_the_next_restore(
    space: Space, plugged_in: bool
) -> None:
    if plugged_in:
        space.plug_in()
    before = space.shown()
    space.lend(OLD)
    space.lend(OLD)
    space.take_back()
    assert space.shown() == before


@pytest.mark.parametrize("older", [False, True], ids=["this release", "older"])
def test_what_a_dead_agent_has_lent_is_taken_back_by_the_next(
    space: Space, tmp_path: Path, older: bool
) -> None:
    space.plug_in()
    space.inside(lambda: subprocess.run(["ip", "address", "add", MINE, "dev", "lo"], check=True))
    before = space.shown()
    space.lend(OLD)
    (written,) = (tmp_path / "work").glob(f"*/{loans.FILE}")
    note = json.loads(written.read_text())
    if older:
        written.write_text(json.dumps({name: note[name] for name in ("addresses", "routes")}))
    (tmp_path / "work" / "no-number").mkdir()
    (tmp_path / "work" / "no-number" / loans.FILE).touch()
    # Another container's, which had the number before.
    gone = tmp_path / "work" / f"{space.process.pid}-1"
    gone.mkdir()
    (gone / loans.FILE).write_text(json.dumps(note | {"addresses": [MINE], "network": "net:[1]"}))
    sleep = Path(shutil.which("sleep") or "")
    Criu(Tools(sleep, sleep), FakeFreezer(Machine({})), tmp_path / "work")
    assert space.shown() == before


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_lent_goes_though_the_container_has_ended(
    space: Space, tmp_path: Path, restarted: bool
) -> None:
    """Its pod's network lives on, and the next container would have it."""
    sandbox = space.inside(lambda: subprocess.Popen(["sleep", "100"]))
    try:
        before = space.shown()
        with space.opened() as container:
            loans.lend(container, (OLD,))
            assert OLD in space.shown()
            space.process.kill()
            space.process.wait()
            if not restarted:
                loans.take_back(container)
        if restarted:
            sleep = Path(shutil.which("sleep") or "")
            Criu(Tools(sleep, sleep), FakeFreezer(Machine({})), tmp_path / "work")
        assert Space.shown_to(sandbox.pid) == before
        assert not list((tmp_path / "work").glob(f"*/{loans.FILE}"))
    finally:
        sandbox.kill()
        sandbox.wait()


def listens() -> socket.socket:
    one = socket.socket()
    one.bind((OLD, 0))
    one.listen()
    return one


def test_an_address_that_is_listened_at_stays(space: Space) -> None:
    space.lend(OLD)
    with closing(space.inside(listens)):
        space.take_back()
        assert OLD in space.shown()


def test_one_that_half_a_tree_listens_at_goes_once_that_is_ended(
    space: Space, tmp_path: Path
) -> None:
    before = space.shown()
    space.lend(OLD)
    sleep = Path(shutil.which("sleep") or "")
    with closing(space.inside(listens)):
        Criu(Tools(sleep, sleep), FakeFreezer(Machine({})), tmp_path / "work")
        assert OLD in space.shown()
    space.take_back()
    assert space.shown() == before


def test_a_loan_that_fails_half_way_leaves_nothing(space: Space) -> None:
    switch = Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
    space.inside(lambda: switch.write_text("1"))
    before = space.shown()
    with pytest.raises(OSError, match="can't be lent"):
        space.lend(OLD, "fd00::7")
    assert space.shown() == before
    space.take_back()
