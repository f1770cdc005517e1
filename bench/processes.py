"""What a process takes of the machine."""

from __future__ import annotations

import time
from pathlib import Path


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
