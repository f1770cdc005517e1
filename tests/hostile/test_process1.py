"""Whoever says that it is process 1 of a seat's container, and whoever is after the real one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.container.inits import KernelInits
from kybernate.adapters.container.seatsocket import SeatSockets
from kybernate.adapters.criu import engine
from kybernate.adapters.criu.container import Container
from kybernate.adapters.criu.record import Record
from kybernate.adapters.kernel.freezer import CgroupFreezer
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.errors import NotFoundError, RefusedError
from tests.unit.criu import test_enter
from tests.unit.kybinit import conftest as kyb_init_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.hostile, pytest.mark.always]
enter, show = test_enter.enter, test_enter.show
binaries = kyb_init_parts.binaries

LIMIT = 60.0
FREEZER = Path("/sys/fs/cgroup/freezer")
STRANGER = ("setpriv", "--reuid=65534", "--clear-groups", "--no-new-privs")
INSIDE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
OWN = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
FORGED = """
import os, socket, struct
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ['KYB_SEAT_SOCKET'])
p = b'hello\\x001\\x00waiting\\x000\\x00plain'
s.sendall(struct.pack('>I', len(p)) + p)
print(os.getpid(), s.recv(400)[4:].decode().replace('\\0', ' '), flush=True)
"""
TRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, call):
    try:
        print(what, 'open' if call() >= 0 else os.strerror(ctypes.get_errno()), flush=True)
    except OSError as error:
        print(what, error.strerror, flush=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
for pid in (1, 2):
    tried('attach', lambda: libc.ptrace(16, pid, 0, 0))
    tried('seize', lambda: libc.ptrace(0x4206, pid, 0, 0))
    tried('mem', lambda: os.open(f'/proc/{pid}/mem', os.O_RDWR))
    tried('fds', lambda: len(os.listdir(f'/proc/{pid}/fd')))
    tried('getfd', lambda: libc.syscall(438, os.pidfd_open(pid), 3, 0))
    tried('environ', lambda: os.open(f'/proc/{pid}/environ', os.O_RDONLY))
"""
STORM = """
import os, time
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.wait()
"""


class Pod:
    """Its cgroup and the agent's door; each container of it is a PID namespace of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.uid = program, str(uuid.uuid4())
        self.top = FREEZER / f"kyb-test-{uuid.uuid4().hex[:8]}"
        self.group = self.top / f"pod{self.uid}" / ("ab" * 32)
        self.group.mkdir(parents=True)
        self.hellos: list[int] = []
        self.inits = KernelInits(program.parent)
        self.doors = SeatSockets(folder, Procfs(), self.inits)
        self.doors.listen(self)  # type: ignore[arg-type]
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def on_hello(self, uid: str, hello: object) -> None:
        self.hellos.append(hello.peer_pid)  # type: ignore[attr-defined]

    def on_lost(self, uid: str) -> None: ...

    def on_exit(self, uid: str, code: int) -> None: ...

    def on_status(self, uid: str) -> tuple[str, str]:
        return "waiting", "for its turn"

    def run(self, *argv: object, **how: object) -> subprocess.Popen[str]:
        """In the pod's cgroup; what it says is read by the caller."""
        path = self.folder / self.uid / "seat.sock"
        process = subprocess.Popen(
            [str(word) for word in argv],
            env={
                "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
                "KYB_SEAT_SOCKET": str(path),
                "KYB_POD_SOCKET": str(self.folder / "init.sock"),
            },
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "text": True, **how},  # type: ignore[call-overload]
            preexec_fn=self._enter,  # noqa: PLW1509
        )
        self.started.append(process)
        return process

    def _enter(self) -> None:
        (self.group / "cgroup.procs").write_text("0")

    def container(self, *command: str, before: tuple[str, ...] = STRANGER) -> int:
        """The host's PID of a kyb-init that waits at the gate."""
        process = self.run(*INSIDE, *before, self.program, "--", *command)
        (init,) = until(lambda: children(process.pid))
        until(lambda: (name := comm(init)) and name.startswith("kyb-wait"))
        return init

    def beside(self, init: int, *command: str) -> subprocess.Popen[str]:
        """What a hook or `kubectl exec` is: the same user in the container's namespaces."""
        return self.run("nsenter", f"--target={init}", "--pid", "--mount", *STRANGER, *command)

    def close(self) -> None:
        for process in self.started:
            process.kill()
            for pid in (self.group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            process.communicate()
        for folder in (self.group / "kyb", self.group, self.group.parent, self.top):
            until(lambda one=folder: gone(one))


def gone(folder: Path) -> bool:
    with suppress(FileNotFoundError, OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        folder.rmdir()
    return not folder.exists()


def children(pid: int) -> list[int]:
    return kyb_init_parts.children(pid)


def comm(pid: int) -> str:
    with suppress(OSError):
        return kyb_init_parts.comm(pid)
    return ""


def until(condition: Callable[[], object], limit: float = LIMIT) -> object:
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)
    return found


@pytest.fixture
def play(binaries: dict[str, Path]) -> Callable[..., None]:
    """Runs a scene in a thread, while the pod's door is served."""
    if not os.access(FREEZER, os.W_OK):
        pytest.skip("needs a cgroup v1 freezer to write to")

    def run(scene: Callable[[Pod], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="kyb-") as folder:
            Path(folder).chmod(0o755)
            pod = Pod(binaries["plain"], Path(folder))

            async def serve() -> None:
                await pod.doors.open(pod.uid)
                try:
                    await asyncio.wait_for(asyncio.to_thread(scene, pod), LIMIT)
                finally:
                    await asyncio.to_thread(pod.close)
                    await pod.doors.close(pod.uid)

            asyncio.run(serve())

    return run


def say(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=LIMIT)
    return out


@pytest.mark.parametrize("spaces", [OWN, (*OWN, "unshare", "--pid", "--fork")])
def test_process_1_of_namespaces_of_its_own_is_no_gate(
    play: Callable[..., None], spaces: tuple[str, ...]
) -> None:
    def scene(pod: Pod) -> None:
        init = pod.container("sleep", "60")
        until(lambda: pod.hellos == [init])
        said = say(pod.beside(init, *spaces, "python3", "-c", FORGED))
        assert said.startswith("1 refuse Only process 1 of the seat's container"), said
        assert pod.hellos == [init]

    play(scene)


def test_it_is_none_either_where_no_real_one_has_called_yet(play: Callable[..., None]) -> None:
    def scene(pod: Pod) -> None:
        forged = pod.run(*STRANGER, *OWN, "python3", "-c", FORGED)
        assert say(forged).startswith("1 refuse ")
        assert pod.hellos == []

    play(scene)


def test_our_own_program_in_namespaces_of_a_strangers_is_no_gate(play: Callable[..., None]) -> None:
    """Process 1 there, and the right file: but one PID namespace too deep."""

    def scene(pod: Pod) -> None:
        init = pod.container("sleep", "60")
        until(lambda: pod.hellos == [init])
        deep = pod.beside(init, *OWN, str(pod.program), "--", "true")
        assert deep.wait(LIMIT) == 1
        assert pod.hellos == [init]

    play(scene)


def test_another_program_as_process_1_is_no_gate(play: Callable[..., None]) -> None:
    """An image's own entry point that speaks the protocol."""

    def scene(pod: Pod) -> None:
        forged = pod.run(*INSIDE, *STRANGER, "python3", "-c", FORGED)
        assert say(forged).startswith("1 refuse ")
        assert pod.hellos == []

    play(scene)


def test_a_second_container_has_no_gate_while_the_first_lives(play: Callable[..., None]) -> None:
    """It was handed the folder of the socket, and the program, as descriptors."""

    def scene(pod: Pod) -> None:
        first = pod.container("sleep", "60")
        until(lambda: pod.hellos == [first])
        second = pod.container("sleep", "60")
        time.sleep(0.5)
        assert set(pod.hellos) == {first}
        os.kill(first, signal.SIGKILL)
        until(lambda: pod.hellos[-1] == second)

    play(scene)


def test_the_same_user_beside_it_can_not_trace_process_1_or_the_gate(
    play: Callable[..., None],
) -> None:
    def scene(pod: Pod) -> None:
        init = pod.container("sleep", "60")
        said = say(pod.beside(init, "python3", "-c", TRACE)).splitlines()
        assert len(said) == 12
        assert [line for line in said if line.endswith(" open")] == []
        assert comm(init) == "kyb-wait"

    play(scene)


def test_a_storm_of_forks_beside_the_gate_keeps_nobody_from_placing_it(
    play: Callable[..., None],
) -> None:
    def scene(pod: Pod) -> None:
        init = pod.container("sleep", "60")
        for _ in range(4):
            pod.beside(init, "python3", "-c", STORM)
        until(lambda: len((pod.group / "cgroup.procs").read_text().split()) > 20)
        began = time.monotonic()
        (tree,) = [one for one in children(init) if comm(one) == "kyb-gate"]
        handle = CgroupFreezer().place(tree)
        assert time.monotonic() - began < 1.0
        assert CgroupFreezer().pids(handle) == (tree,)

    play(scene)


# --- kyb-enter, which asks again once it is inside -----------------------------------------------


@contextmanager
def sleeping(*spaces: str) -> Iterator[int]:
    """The process that sleeps in such namespaces; its PID."""
    process = subprocess.Popen([*spaces, "sleep", "60"])
    try:
        inner = process.pid
        while comm(inner) != "sleep":
            inner = next(iter(children(inner)), process.pid)
            time.sleep(0.005)
        yield inner
    finally:
        process.kill()
        process.wait()


def entered(enter: Path, show: Path, target: int, program: str) -> subprocess.CompletedProcess[str]:
    with ExitStack() as stack:
        files = [os.pidfd_open(target), os.open(program, os.O_PATH), os.open(show, os.O_PATH)]
        for one in files:
            stack.callback(os.close, one)
        options = ("--target", "--init", "--run")
        words = [word for pair in zip(options, map(str, files), strict=True) for word in pair]
        return test_enter.run(enter, *words, "--", "shows", fds=tuple(files))


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("spaces", "why"),
    [
        (OWN, "another user namespace"),
        ((*INSIDE, "unshare", "--user", "--map-root-user", "--mount"), "another user namespace"),
        ((*INSIDE, *OWN), "not number 1"),
        (("unshare", "--mount"), "not number 1"),
    ],
)
def test_nothing_is_run_in_namespaces_that_are_a_strangers(
    enter: Path, show: Path, spaces: tuple[str, ...], why: str
) -> None:
    with sleeping(*spaces) as target:
        found = entered(enter, show, target, f"/proc/{target}/exe")
    assert found.returncode == 125
    assert why in found.stderr
    assert found.stdout == "", "the program ran"


@pytest.mark.usefixtures("root")
def test_nothing_is_run_below_another_program(enter: Path, show: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(Path("/bin/sleep").read_bytes())
    with sleeping(*INSIDE) as init:
        found = entered(enter, show, init, str(copy))
        assert found.returncode == 125
        assert "another program" in found.stderr
        assert found.stdout == ""
        assert entered(enter, show, init, f"/proc/{init}/exe").stdout.startswith("name=shows")


# --- the agent, which asks before -----------------------------------------------------------------


@pytest.mark.usefixtures("root")
def test_the_agent_takes_nobody_for_process_1_whom_it_has_not_looked_at(
    binaries: dict[str, Path],
) -> None:
    """After a restart it has PIDs only, from its journal."""
    inits = KernelInits(binaries["plain"].parent)
    with sleeping(*INSIDE) as other, pytest.raises(RefusedError, match="doesn't run the kyb-init"):
        inits.hold(other)
    with pytest.raises(RefusedError, match="not number 1"):
        inits.hold(os.getpid())
    until(lambda: not Path(f"/proc/{other}").exists())
    with pytest.raises(NotFoundError):
        inits.hold(other)


def test_a_fifo_as_standard_output_keeps_nobody_waiting(
    play: Callable[..., None], tmp_path: Path
) -> None:
    """Whoever opens one waits for its other end, which nobody may ever open."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def scene(pod: Pod) -> None:
        both = os.open(fifo, os.O_RDWR)
        write = os.open(fifo, os.O_WRONLY)
        os.close(both)
        process = pod.run(*INSIDE, pod.program, "--", "true", stdout=write)
        os.close(write)
        (init,) = until(lambda: children(process.pid))
        until(lambda: pod.hellos == [init])
        written = Record(tree=2, highest=2, stdio=("", "pipe:[1]", ""))
        got: list[object] = []

        def take() -> None:
            with ExitStack() as stack:
                opened = Container.opened(pod.inits, init, "", tmp_path / "work")
                got.append(engine._stdio(stack.enter_context(opened), written, stack))

        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        taking.join(5.0)
        assert got, "it waits for the other end"

    play(scene)
