"""A copy beside the original: cut off, stopped if asked, and open to debuggers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        assert client.recv(100) == b"+PONG\r\n", "the original's connection continues"


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
    wait_for(lambda: "turn" in stopped.container.log, "it doesn't continue")


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


IDENTITY = """
import json, os, random, secrets, socket, ssl, threading, time

called = socket.gethostname()
drawn, token, began = secrets.token_hex(8), open("/app/token").read(), time.time()
random.seed()
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain("/app/cert.pem", "/app/key.pem")

def tell():
    return {
        "drawn": drawn,
        "random": random.random(),
        "secret": secrets.token_hex(8),
        "called": called,
        "variable": os.environ["HOSTNAME"],
        "called_now": socket.gethostname(),
        "in_proc": open("/proc/sys/kernel/hostname").read().strip(),
        "token": token,
        "token_now": open("/app/token").read(),
        "age": time.time() - began,
    }

def serve(port, wrap):
    server = socket.create_server(("", port))
    while True:
        one = server.accept()[0]
        try:
            one = wrap(one)
            one.sendall(json.dumps(tell()).encode())
        except OSError as error:
            print(error)
        one.close()

threading.Thread(target=serve, args=(8000, lambda one: one)).start()
threading.Thread(target=serve, args=(8443, lambda one: tls.wrap_socket(one, True))).start()
print("ready")
"""


def test_what_two_copies_have_in_common_and_what_each_has_of_its_own(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    """As docs/concepts/templates.md has it."""
    here, there = tmp_path / "one", tmp_path / "two"
    here.mkdir()
    words = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=toy", "-days", "2"]
    files = ["-keyout", str(here / "key.pem"), "-out", str(here / "cert.pem")]
    subprocess.run(["openssl", "req", "-x509", *words, *files], check=True, capture_output=True)
    (here / "token").write_text("the first pod's")
    for file in here.iterdir():
        file.chmod(0o644)
    old = python(seat, here, IDENTITY, flags=named("toy-0"))
    first = tell(old)
    shutil.copytree(here, there)
    (there / "token").write_text("the copy's")
    old.freeze()
    number = old.container.number_inside(old.container.tree)
    old.dump()
    old.keep()
    old.thaw()
    new = seat(init=("--parked", str(number)), mounts={there: "/app"}, flags=named("toy-1"))
    shutil.copytree(old.images, new.images)
    time.sleep(1.0)
    new.resume()
    one, other = tell(old), tell(new)
    # What was drawn, read or seeded before is the same, also what a seeded generator draws next.
    assert (one["drawn"], one["random"]) == (other["drawn"], other["random"])
    assert first["random"] != one["random"]
    assert other["token"] == "the first pod's"
    assert (other["called"], other["variable"]) == ("toy-0", "toy-0")
    # What the kernel is asked for is its own: random bytes, its volumes, its name, the time.
    assert (one["called_now"], one["in_proc"]) == ("toy-0", "toy-0")
    assert (other["called_now"], other["in_proc"]) == ("toy-1", "toy-1")
    assert one["secret"] != other["secret"]
    assert other["token_now"] == "the copy's"
    assert other["age"] > first["age"] + 1.0
    # Keys of TLS tickets are in memory: each copy takes the others' sessions up.
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    _, session = handshake(client, old)
    resumed, _ = handshake(client, new, session)
    assert resumed


def named(name: str) -> tuple[str, ...]:
    """A pod's name, as a runtime gives it to the pod's containers."""
    return ("--hostname", name, "--env", f"HOSTNAME={name}")


def tell(one: Seat) -> dict[str, Any]:
    with socket.create_connection((one.container.ip, 8000), LIMIT) as link:
        found: dict[str, Any] = json.loads(b"".join(iter(lambda: link.recv(4096), b"")))
        return found


def handshake(
    client: ssl.SSLContext, one: Seat, session: ssl.SSLSession | None = None
) -> tuple[bool, ssl.SSLSession | None]:
    """Whether the session was taken up, and the one to take up next."""
    with (
        socket.create_connection((one.container.ip, 8443), LIMIT) as plain,
        client.wrap_socket(plain, session=session) as link,
    ):
        while link.recv(4096):
            pass
        return bool(link.session_reused), link.session
