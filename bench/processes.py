"""Processes of benches, and what one takes of the machine."""

from __future__ import annotations

import atexit
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[1]

_FIRST, _LAST, _BLOCK = 22000, 30000, 250
"""Ports of servers: above those of tests' clusters, below NodePorts and what the kernel gives to
connections."""


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


def free_port(count: int = 1) -> int:
    """The first of so many TCP ports in a row of 127.0.0.1, for servers that begin later: nobody
    listens on them now, the kernel gives them to no connection meanwhile, and no other process
    gets them from here while this one lives. Raises SystemExit if there are none."""
    _, block = _block(os.getpid())
    row: list[int] = []
    # Once around and as far as the longest row that has begun before.
    for port in islice(block, _BLOCK + count):
        if row and port != row[-1] + 1:
            row = []
        row = [] if port_taken(port) else [*row, port]
        if len(row) == count:
            return row[0]
    raise SystemExit(f"of {_BLOCK} TCP ports no {count} in a row are free on 127.0.0.1")


def port_taken(port: int) -> bool:
    """True if nobody can listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


@cache
def _block(_process: int) -> tuple[socket.socket, Iterator[int]]:
    """Ports of this process alone, and what says so: an abstract socket, which ends with it."""
    firsts = range(_FIRST, _LAST, _BLOCK)
    for first in random.sample(firsts, len(firsts)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0kybernate-ports-{first}")
        except OSError:
            claim.close()
            continue
        atexit.register(claim.close)
        return claim, cycle(range(first, first + _BLOCK))
    raise SystemExit(f"other processes hold all TCP ports from {_FIRST} to {_LAST}; end some")
