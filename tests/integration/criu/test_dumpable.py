"""What stands close to a refusal and is none: it is dumped, and goes on as it was."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.criu.rules import HELP, LOST, RULES, Beside, with_sleep
from tests.kit.node.containers import wait_for
from tests.kit.node.programs import python

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration
LIMIT = 10.0

GOES_ON = """
{help}
{script}
print("ready", flush=True)
while not os.path.exists("/app/look"):
    time.sleep(0.01)
{look}
print("as it was", flush=True)
while True:
    time.sleep(1)
"""
SCRIPTS = {
    f"{name}, {number}": beside
    for name, rule in RULES.items()
    for number, beside in enumerate(rule.beside)
} | {
    "a process that is a thread's, and not its leader's": Beside(
        (
            "made = []\ndef make():\n    made.append(subprocess.Popen(['sleep', '600']))\n"
            "    made[0].wait()\nthreading.Thread(target=make, daemon=True).start()\n"
            "while not made:\n    time.sleep(0.01)\n"
        ),
        "assert made[0].poll() is None\nmade[0].kill()\nassert made[0].wait() == -9\n",
    ),
}

SERVER = """
package main

import (
	"io"
	"net"
)

func main() {
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		panic(err)
	}
	println("ready")
	for {
		if one, err := listener.Accept(); err == nil {
			go io.Copy(one, one)
		}
	}
}
"""
"""As Go has it: by MPTCP, if there is any."""
WHEN_TOLD = "until [ -e /app/go ]; do sleep 0.05; done; exec /app/server"


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_is_not_refused_and_goes_on(
    seat: Callable[..., Seat], tmp_path: Path, name: str
) -> None:
    beside = SCRIPTS[name]
    with_sleep(tmp_path)
    script = GOES_ON.format(help=HELP, script=beside.script, look=beside.look)
    one = python(seat, tmp_path, script, flags=beside.flags, user=beside.user)
    for _ in range(2):
        assert one.check() == ()
        one.park()
        one.resume()
    (tmp_path / "look").touch()
    wait_for(lambda: "as it was" in one.container.log, lambda: one.container.log)


@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_is_lost_as_the_docs_say(
    seat: Callable[..., Seat], tmp_path: Path, name: str
) -> None:
    lost = LOST[name]
    one = python(seat, tmp_path, GOES_ON.format(help=HELP, script=lost.script, look=lost.look))
    if "missing" in one.container.log:
        pytest.skip("this kernel has none")
    assert one.check() == ()
    one.park()
    one.resume()
    (tmp_path / "look").touch()
    wait_for(lambda: "as it was" in one.container.log, lambda: one.container.log)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a server of Go's."""
    if shutil.which("go") is None:
        pytest.skip("needs Go")
    folder = tmp_path_factory.mktemp("go")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    (folder / "main.go").write_text(SERVER)
    command = ("go", "build", "-o", str(folder / "server"), str(folder / "main.go"))
    subprocess.run(command, check=True, timeout=240, cwd=folder)
    return folder


def echoes(one: Seat) -> bool:
    try:
        return one.container.ask(8080, b"x") == b"x"
    except OSError:
        return False


def test_a_go_server_leaves_ram_in_a_pod_without_mptcp(
    seat: Callable[..., Seat], server: Path
) -> None:
    (server / "go").unlink(missing_ok=True)
    one = seat("sh", "-c", WHEN_TOLD, mounts={server: "/app"})
    one.run(one.gate.plain(one.container.init, LIMIT))
    (server / "go").touch()
    wait_for(lambda: echoes(one), lambda: one.container.log)
    with one.container.connect(8080) as link:
        for _ in range(2):
            link.sendall(b"asked")
            assert link.recv(10) == b"asked"
            assert one.check() == ()
            one.park()
            link.sendall(b"asked again")
            one.resume()
            assert link.recv(20) == b"asked again"
    assert echoes(one)


def test_a_go_server_that_has_mptcp_already_is_told_with_a_remedy_that_helps(
    seat: Callable[..., Seat], server: Path
) -> None:
    if not Path("/proc/sys/net/mptcp/enabled").exists():
        pytest.skip("this kernel has no MPTCP")
    (server / "go").touch()
    one = seat("sh", "-c", WHEN_TOLD, mounts={server: "/app"})
    wait_for(lambda: echoes(one), lambda: one.container.log)
    (told,) = one.check()
    assert "GODEBUG=multipathtcp=0" in told
    other = seat("sh", "-c", WHEN_TOLD, mounts={server: "/app"}, flags=("--env", told_of(told)))
    wait_for(lambda: echoes(other), lambda: other.container.log)
    assert other.check() == ()
    other.park()
    other.resume()
    assert echoes(other)


def told_of(sentence: str) -> str:
    """The setting that a refusal names."""
    return next(word.strip("(),.") for word in sentence.split() if "=" in word)
