"""What can't be dumped is told before anything is stopped, and nothing of it is lost by asking."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from kybernate.errors import DumpError, DumpRefusedError
from tests.integration.criu.rules import HELP, RULES, with_sleep
from tests.kit.node.containers import wait_for
from tests.kit.node.programs import nginx, python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration

DONE = """
import time
why = ""
try:
    exec({script!r})
except Exception as error:
    why = repr(error)
print("refused:" + why if why else "done:", "ready", flush=True)
while True:
    time.sleep(1)
"""
"""A script that stays, also if the kernel refuses it: what it made would be gone with it."""

SYSCALL = "import ctypes, os, socket, mmap\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.mark.parametrize("name", RULES)
def test_it_is_told(seat: Callable[..., Seat], tmp_path: Path, name: str) -> None:
    rule = RULES[name]
    with_sleep(tmp_path)
    with listening(tmp_path / "foreign.sock"):
        script = DONE.format(script=SYSCALL + HELP + rule.told)
        one = python(seat, tmp_path, script, flags=rule.flags, user=rule.user)
        if (log := one.container.log).startswith("refused:"):
            pytest.skip(f"this kernel refuses it itself: {log[-200:]}")
        found = one.check()
        assert any(rule.said in sentence for sentence in found), found
        assert all(sentence.endswith(".") for sentence in found)
        one.freeze()
        refused_or_done(one)
        one.thaw()
        assert one.container.comm == "kyb-run"
        wait_for(lambda: one.container.below(one.container.tree), "the tree is gone")


def refused_or_done(one: Seat) -> None:
    """A dump that nobody should have asked for ends with the tree as it was, too."""
    with suppress(DumpRefusedError, DumpError):
        one.dump()
        one.keep()
    assert one.handle in one.freezer.frozen()


class listening:  # noqa: N801 - a context
    """A unix socket of the host's at a path that the container sees."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        script = (
            "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\n"
            "s.listen()\nprint('up', flush=True)\nkept = [s.accept() for _ in range(9)]\n"
        )
        argv = ["python3", "-c", script, str(self._path)]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "up\n"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def test_ordinary_servers_can_be_dumped(seat: Callable[..., Seat]) -> None:
    assert nginx(seat).check() == ()


def test_a_traced_process_is_told(seat: Callable[..., Seat]) -> None:
    one = nginx(seat)
    worker = one.container.below(one.container.tree)[-1]
    tracer = subprocess.Popen(
        ["python3", "-c", TRACE, str(worker)], stdout=subprocess.PIPE, text=True
    )
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == "traced\n"
    try:
        assert any("is traced by" in sentence for sentence in one.check())
    finally:
        tracer.kill()
        tracer.communicate()


TRACE = """
import ctypes, sys, time
assert ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, None) == 0
print("traced", flush=True)
time.sleep(60)
"""


def test_watched_folders_are_found(seat: Callable[..., Seat], tmp_path: Path) -> None:
    script = (
        SYSCALL + "at = libc.inotify_init1(0)\n"
        "assert libc.inotify_add_watch(at, b'/etc', 0x100) >= 0\n"
        "assert libc.inotify_add_watch(at, b'/data', 0x100) >= 0\n"
        "print('ready', flush=True)\n"
        "while True:\n    for _ in range(len(os.read(at, 4096)) // 32):\n"
        "        print('changed', flush=True)\n"
    )
    one = python(seat, tmp_path, script)
    assert one.check() == ()
    for cycle in range(3):
        one.park()
        one.resume()
        one.container.inside("touch", f"/etc/new{cycle}", f"/data/new{cycle}")
        wait_for(
            lambda n=cycle: one.container.log.count("changed") >= 2 * (n + 1),  # type: ignore[misc]
            lambda: one.container.log,
        )


def test_a_connection_nobody_has_accepted_is_served_before_the_tree_is_ended(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    script = (
        "import socket, time\ns = socket.create_server(('0.0.0.0', 8080))\n"
        "print('ready', flush=True)\ntime.sleep(3)\n"
        "while True:\n    link, _ = s.accept()\n    link.sendall(b'served')\n    link.close()\n"
    )
    one = python(seat, tmp_path, script)
    with one.container.connect(8080) as link:
        one.freeze()
        with pytest.raises(DumpRefusedError, match="waits to be accepted"):
            one.dump()
        one.dump(continues=True)
        one.keep()
        one.thaw()
        assert link.recv(100) == b"served", "it is the tree's that continues"
    one.park()
    one.resume()
    assert one.container.ask(8080, b"x") == b"served"


def test_what_nobody_has_accepted_within_the_tree_is_served_before_it_is_ended(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    script = (
        "import os, socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('/tmp/s')\ns.listen()\n"
        "one = socket.socket(socket.AF_UNIX)\none.connect('/tmp/s')\none.sendall(b'x')\n"
        "print('ready', flush=True)\nwhile not os.path.exists('/app/go'):\n    time.sleep(0.01)\n"
        "other, _ = s.accept()\nprint('got', other.recv(10), flush=True)\ntime.sleep(600)\n"
    )
    one = python(seat, tmp_path, script)
    assert one.check() == ()
    one.freeze()
    with pytest.raises(DumpRefusedError, match="waits to be accepted"):
        one.dump()
    one.keep()
    one.thaw()
    (tmp_path / "go").touch()
    wait_for(lambda: "got b'x'" in one.container.log, lambda: one.container.log)
    one.park()
    one.resume()


SEGMENT = SYSCALL + (
    "import time\nat = libc.shmget(0x77, 1 << 20, 0o1600)\nassert at >= 0, ctypes.get_errno()\n"
    "libc.shmat.restype = ctypes.c_void_p\nassert libc.shmat(at, None, 0) not in (-1, None)\n"
    "print('ready', flush=True)\ntime.sleep(600)\n"
)


def segments(one: Seat) -> list[str]:
    """Keys of the System V shared memory in the container's own namespace."""
    table = one.container.inside("cat", "/proc/sysvipc/shm")
    return [line.split()[0] for line in table.splitlines()[1:]]


def test_shared_memory_that_another_has_too_is_told_and_the_trees_own_goes_with_it(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    one = python(seat, tmp_path, SEGMENT)
    until_told = SEGMENT.replace(
        "time.sleep(600)", "while not os.path.exists('/app/end'):\n    time.sleep(0.01)"
    )
    other = one.container.spawn("python3", "-u", "-c", until_told)
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    (told,) = one.check()
    assert "is not the tree's alone" in told
    (tmp_path / "end").touch()
    other.communicate()
    assert one.check() == ()
    assert len(segments(one)) == 1
    for _ in range(2):
        one.park()
        assert segments(one) == [], "its memory is not free"
        one.resume()
        assert segments(one) == [], "it has a namespace of its own"


CHECK = """
import asyncio, sys
from pathlib import Path
from kybernate.adapters.criu import Criu, Tools
from kybernate.adapters.kernel.freezer import CgroupFreezer
enter, criu, work, init, handle = sys.argv[1:]
agent = Criu(Tools(enter=Path(enter), criu=Path(criu)), CgroupFreezer(), Path(work))
print(*asyncio.run(agent.check(int(init), handle, 20)), sep="\\n")
"""
LESS = {
    "may gain rights": ("--no-new-privs", "--allow-new-privs", ""),
    "may have NET_RAW": ("--bounding-set=-net_raw", "", "--cap-drop=CAP_NET_RAW"),
}
"""What is said if the agent is started so and the container so; and how a container is like it."""


@pytest.mark.parametrize("said", LESS)
def test_what_an_agent_could_not_give_back_is_told_and_nothing_else(
    seat: Callable[..., Seat], tmp_path: Path, said: str
) -> None:
    agents, more, alike = LESS[said]
    for container, is_told in ((more, True), (alike, False)):
        one = nginx(seat, flags=(container,) if container else ())
        words = [
            one.node.tools.enter,
            one.node.tools.criu,
            tmp_path,
            one.container.init,
            one.handle,
        ]
        argv = ["setpriv", agents, sys.executable, "-c", CHECK, *map(str, words)]
        run = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        assert (said in run.stdout) is is_told, run.stdout
        assert is_told or not run.stdout.strip(), run.stdout


def test_a_terminal_of_the_containers_is_told(seat: Callable[..., Seat]) -> None:
    """Those that a program has made itself come back: `rules.py`, devices."""
    ours, theirs = os.openpty()
    before = os.dup(0)
    os.dup2(theirs, 0)  # ctr wants one of its own
    try:
        one = nginx(seat, flags=("--tty",))
    finally:
        os.dup2(before, 0)
        for each in (ours, theirs, before):
            os.close(each)
    assert one.check() == (
        "The container has a terminal, which can't be recreated: leave out `tty: true`.",
    )
