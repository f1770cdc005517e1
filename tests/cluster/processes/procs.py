"""Processes by PID and start time, so that a PID used anew is never taken for the old process."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for good. `started` is in clock ticks since boot."""

    pid: int
    started: int

    def alive(self) -> bool:
        """True while it runs (a zombie doesn't)."""
        return start_ticks(self.pid) == self.started

    def send(self, number: int) -> None:
        """Sends a signal, if the process is still the same one."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def identify(pid: int) -> ProcessId | None:
    """The process that has this PID now, or None."""
    started = start_ticks(pid)
    return None if started is None else ProcessId(pid, started)


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there's none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def children(pid: int) -> tuple[int, ...]:
    """The children of the process's main thread."""
    try:
        return tuple(
            int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        )
    except OSError:
        return ()


def resident_mib(pid: int) -> int:
    """Resident memory in MiB; 0 if the process is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) >> 10
    return 0


def end(processes: list[ProcessId], patience: float, limit: float = 10.0) -> list[ProcessId]:
    """Ends processes: SIGTERM, and SIGKILL after `patience` seconds. Returns what still runs."""
    for process in processes:
        process.send(signal.SIGTERM if patience else signal.SIGKILL)
    if patience:
        wait_gone(processes, patience)
        for process in processes:
            process.send(signal.SIGKILL)
    return wait_gone(processes, limit)


def wait_gone(processes: list[ProcessId], limit: float) -> list[ProcessId]:
    """Waits until all are gone, at most `limit` seconds. Returns what still runs."""
    deadline = time.monotonic() + limit
    left = [process for process in processes if process.alive()]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if process.alive()]
    return left
