"""Processes of benches, and what one takes of the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[1]


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all its threads, ended ones too, to the nanosecond."""
    return time.clock_gettime_ns(((~pid) << 3) | 2) / 1e9


def memory_mib(pid: int, name: str = "VmRSS", file: str = "status") -> float:
    """A line about memory in one of the process's files, in MiB. Raises SystemExit without it."""
    return line_of(pid, name, file) / 1024


def line_of(pid: int, name: str, file: str = "status") -> int:
    """The number in a line of one of the process's files. Raises SystemExit without it."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/{pid}/{file} has no line {name}")


@contextmanager
def process(argv: list[str]) -> Iterator[int]:
    """A server's process; yields its PID."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    running = subprocess.Popen(argv, env=environment, cwd=REPOSITORY)
    try:
        yield running.pid
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many processes that compute without pause meanwhile. Each ends with this one, too."""
    script = f"import os\nwhile os.getppid() == {os.getpid()}:\n    sum(range(1 << 16))"
    running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
        for one in running:
            one.wait()


def worker(master: int) -> int:
    """The process that serves: gunicorn's child, or the process itself."""
    children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    return int(children[0]) if children else master


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def first_port(count: int = 16) -> int:
    """The first of so many in a row on 127.0.0.1 that nobody listens on now, for servers that begin
    later: below those that the kernel gives to any connection meanwhile."""
    while True:
        first = free_port() % 20000 + 10000
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
