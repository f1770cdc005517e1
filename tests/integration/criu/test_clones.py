"""A copy beside the original: cut off, stopped if asked, and open to debuggers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.arrivals.gate import NetworkGate
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.errors import RefusedError
from tests.kit.node.containers import wait_for
from tests.kit.node.programs import ask, python, redis

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration
LIMIT = 10.0
PY_SPY = Path(sys.executable).with_name("py-spy")
TURN = """
import time

def turn(count):
    while True:
        count += 1
        print("turn", count)
        time.sleep(0.01)

print("ready")
turn(41)
"""


def clone_of(old: Seat, seat: Callable[..., Seat], **wish: object) -> Seat:
    """Another container with the images of a tree that goes on, and its network down."""
    old.freeze()
    number = old.container.number_inside(old.container.tree)
    old.dump()
    old.keep()
    old.thaw()
    new = seat(init=("--parked", str(number)), **wish)
    shutil.copytree(old.images, new.images)
    gate = NetworkGate(new.node.work / "gates", Procfs().descendants)
    new.run(gate.cut(new.container.init, LIMIT))
    new.run(gate.cut(new.container.init, LIMIT))
    return new


def test_a_clone_reaches_nobody_but_itself_and_the_original_goes_on(
    seat: Callable[..., Seat],
) -> None:
    old = redis(seat, keys=1000)
    assert b"OK" in ask(old, "SET", "who", "both")
    new = clone_of(old, seat)
    new.resume()
    links = new.container.inside("ip", "-o", "link")
    up = [line.split(":")[1].strip() for line in links.splitlines() if ",UP" in line]
    assert up == ["lo"], links
    said = new.container.inside(
        "python3",
        "-c",
        "import socket\n"
        "one = socket.create_connection(('127.0.0.1', 6379), 5)\n"
        "one.sendall(b'GET who\\r\\n')\n"
        "print(one.recv(100))\n"
        f"try: socket.create_connection(('{old.container.ip}', 6379), 2); print('reached')\n"
        "except OSError as error: print('cut off')\n",
    )
    assert "both" in said
    assert "cut off" in said
    assert b"PONG" not in ask(new, "PING", limit=1.0)
    assert b"OK" in ask(old, "SET", "who", "the original")


def test_who_is_connected_to_the_original_is_not_to_its_clone(seat: Callable[..., Seat]) -> None:
    old = redis(seat, keys=10)
    with old.container.connect(6379) as client:
        client.sendall(b"CLIENT SETNAME outside\r\n")
        assert client.recv(100) == b"+OK\r\n"
        new = clone_of(old, seat)
        before = network_of(new)
        new.resume()
        assert network_of(new) == before, "what was lent for the restore stayed"
        said = new.container.inside("redis-cli", "CLIENT", "LIST")
        assert "addr=127.0.0.1" in said
        assert "name=outside" not in said
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n", "the original's connection goes on"


def network_of(one: Seat) -> str:
    """Addresses and routes of its network."""
    asked = "ip -o address; ip route show table all; ip -6 route show table all"
    return one.container.inside("sh", "-c", asked)


def test_the_nodes_own_network_is_never_cut(tmp_path: Path) -> None:
    one = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(RefusedError, match="hostNetwork"):
            asyncio.run(NetworkGate(tmp_path, lambda _: ()).cut(one.pid, LIMIT))
    finally:
        one.kill()
        one.wait()


@pytest.fixture
def stopped(seat: Callable[..., Seat], tmp_path: Path) -> Seat:
    """A clone of a program that prints all the time, restored and thawed."""
    old = python(seat, tmp_path, TURN)
    new = clone_of(old, seat, mounts={tmp_path: "/app"})
    new.restore(stopped=True)
    new.thaw()
    return new


def test_a_stopped_clone_executes_nothing_until_it_is_told_to(stopped: Seat) -> None:
    main = _main(stopped)
    time.sleep(0.3)
    assert "turn" not in stopped.container.log
    assert _state(main) == "T"
    for pid in Procfs().descendants(stopped.container.init):
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: "turn" in stopped.container.log, "it doesn't go on")


@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")
def test_gdb_reads_a_stopped_clone_which_stays_stopped(stopped: Seat) -> None:
    main = _main(stopped)
    words = ["gdb", "--batch", "--nx", "-p", str(main), "-ex", "info registers rip"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    print(done.stdout, done.stderr)
    assert "rip " in done.stdout, done.stderr
    wait_for(lambda: _state(main) in "Tt", "it runs")
    assert "turn" not in stopped.container.log


def test_py_spy_shows_where_a_stopped_clone_is(stopped: Seat) -> None:
    words = [PY_SPY, "dump", "--nonblocking", "--locals", "--pid", str(_main(stopped))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    print(done.stdout, done.stderr)
    assert "turn (app.py" in done.stdout, done.stderr
    assert "count: " in done.stdout
    assert "turn" not in stopped.container.log


def _main(one: Seat) -> int:
    """The Python program below kyb-tree."""
    found = Procfs().descendants(one.container.init)
    return next(pid for pid in found if Path(f"/proc/{pid}/comm").read_text().startswith("python"))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
