"""kyb-init in a PID namespace of its own, and an agent that speaks frames written by hand."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "native" / "kyb-init"
LIMIT = 60.0
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

HOLD = signal.SIGRTMIN + 1
RESUME = signal.SIGRTMIN + 2


class Line:
    """One connection of kyb-init's, seen from the agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(LIMIT)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid, self.uid, _ = struct.unpack("3i", credentials)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.connection.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def receive(self) -> list[str]:
        """The next frame; EOFError once the connection is closed."""
        (length,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(length).decode().split("\0")

    def send(self, *fields: str) -> None:
        payload = "\0".join(fields).encode()
        self.connection.sendall(struct.pack(">I", len(payload)) + payload)

    def close(self) -> None:
        self.connection.close()


class Agent:
    """Listens where the seat's socket would be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pod_path = path.with_name("init.sock")
        self.lines: list[Line] = []
        self.listen()

    def listen(self) -> None:
        self.server = socket.socket(socket.AF_UNIX)
        self.server.settimeout(LIMIT)
        self.server.bind(str(self.path))
        self.path.chmod(0o666)
        self.server.listen()

    def accept(self) -> Line:
        connection, _ = self.server.accept()
        self.lines.append(Line(connection))
        return self.lines[-1]

    def die(self) -> None:
        for line in self.lines:
            line.close()
        self.server.close()
        with suppress(FileNotFoundError):
            self.path.unlink()


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Container:
    """Whatever `unshare` started; `init` is its process 1 in our own namespace."""

    def __init__(self, process: subprocess.Popen[str], init: int) -> None:
        self.process = process
        self.init = init

    @property
    def tree(self) -> int:
        (tree,) = [pid for pid in children(self.init) if comm(pid) in ("kyb-gate", "kyb-tree")]
        return tree

    def end(self) -> tuple[int, str, str]:
        """Status and unread output (communicate() would forget what readline() kept)."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        code = self.process.wait(LIMIT)
        return code, self.process.stdout.read(), self.process.stderr.read()


def _let_others_in(path: Path) -> None:
    """pytest keeps its folders from other users; some of these containers run as another one."""
    for folder in (path, *path.parents):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("kyb-init runs as process 1: its tests need root and unshare(1)")
    out = tmp_path_factory.mktemp("kyb-init")
    out.chmod(0o755)
    for target in ("all", "sanitized"):
        make = ["make", "-s", "-C", str(SOURCE), f"OUT={out}", "TEST_PATHS=1", target]
        subprocess.run(make, check=True)
    _let_others_in(out)
    return {"plain": out / "kyb-init", "sanitized": out / "kyb-init-sanitized"}


@pytest.fixture(params=["plain", "sanitized"])
def binary(binaries: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    return binaries[request.param]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    _let_others_in(tmp_path)
    agent = Agent(tmp_path / "seat.sock")
    yield agent
    agent.die()


@pytest.fixture
def launch(binary: Path, agent: Agent) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts kyb-init with these arguments as process 1 of a new namespace."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, before: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                "unshare",
                "--pid",
                "--fork",
                "--mount-proc",
                "--kill-child",
                *before,
                str(binary),
                *args,
            ],
            env={
                "PATH": "/usr/bin:/bin",
                "KYB_SEAT_SOCKET": str(agent.path),
                "KYB_POD_SOCKET": str(agent.pod_path),
                "ASAN_OPTIONS": "detect_leaks=0",
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait(LIMIT)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def waiting(
    launch: Callable[..., subprocess.Popen[str]], agent: Agent
) -> Callable[..., tuple[Container, Line]]:
    """A container at the gate, and its connection after the hello."""

    def start(*args: str, **options: object) -> tuple[Container, Line]:
        process = launch(*args, **options)
        line = agent.accept()
        assert line.receive()[:4] == ["hello", "1", "waiting", "0"]
        return Container(process, line.pid), line

    return start


@pytest.fixture
def running(
    waiting: Callable[..., tuple[Container, Line]],
) -> Callable[..., tuple[Container, Line]]:
    """A container whose command was granted generation 7 and has said "up"."""

    def start(script: str, **options: object) -> tuple[Container, Line]:
        container, line = waiting("--", "python3", "-uc", script, **options)
        line.send("go", "7")
        assert container.process.stdout is not None
        assert container.process.stdout.readline() == "up\n"
        return container, line

    return start
