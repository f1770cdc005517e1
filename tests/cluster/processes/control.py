"""Talking to the supervisor: start it, and start, stop, restart or kill its processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kybernate.errors import DeadlineError, KybernateError, NotFoundError
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.procs import ProcessId, identify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cluster.layout import Layout
    from tests.cluster.processes.supervisor import ProcessSpec

ANSWER_LIMIT = 30.0
"""Seconds that the supervisor has for an answer."""


LAUNCH_LIMIT = 10.0
"""Seconds that the supervisor has to start."""


class Supervisor:
    """The supervisor of one cluster. Every call is its own connection."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def launch(self) -> ProcessId:
        """Starts the supervisor in its own session, as nobody's child, and waits until it
        answers. Raises DeadlineError with the end of its log."""
        log = self._layout.logs / "supervisor.log"
        argv = [sys.executable, "-m", "tests.cluster.processes.supervisor", str(self._layout.work)]
        with log.open("ab") as out:
            subprocess.run(
                ["setsid", "--fork", *argv],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                timeout=ANSWER_LIMIT,
                check=True,
            )
        wait_until(
            self.reachable,
            LAUNCH_LIMIT,
            lambda: f"the supervisor doesn't answer; it said\n{log_tail(log)}",
        )
        found = identify(int(self._ask({"verb": "pid"})))
        if found is None:
            raise KybernateError(f"the supervisor ended at once; see {log}")
        return found

    def reachable(self) -> bool:
        """True if it answers."""
        try:
            self.status()
        except KybernateError:
            return False
        return True

    def status(self) -> list[dict[str, Any]]:
        """What it runs: name, state, pid, started_at (seconds, epoch), starts, last_exit, log."""
        result: list[dict[str, Any]] = self._ask({"verb": "status"})
        return result

    def add(self, spec: ProcessSpec) -> None:
        """Starts a process (in place of one of the same name)."""
        self._ask({"verb": "add", "spec": asdict(spec)})

    def quit(self) -> None:
        """Tells it to stop everything and end; returns at once."""
        self._ask({"verb": "quit"})

    def process(self, name: str) -> Process:
        """A handle on one process. Raises NotFoundError if there's none of that name."""
        handle = Process(name, self._ask)
        _ = handle.info
        return handle

    def _ask(self, request: dict[str, Any]) -> Any:
        path = str(self._layout.supervisor_socket)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.settimeout(ANSWER_LIMIT)
                link.connect(path)
                link.sendall(json.dumps(request).encode() + b"\n")
                with link.makefile("rb") as file:
                    line = file.readline()
        except OSError as error:
            raise KybernateError(
                f"the supervisor at {path} doesn't answer ({error}); "
                "is the cluster up? see `python -m tests.cluster status`"
            ) from error
        if not line:
            raise KybernateError(f"the supervisor at {path} ended in the middle of a call")
        answer = json.loads(line)
        if "error" in answer:
            raise NotFoundError(answer["error"])
        return answer["ok"]


class Process:
    """A supervised process, by name. PIDs are those the host sees."""

    def __init__(self, name: str, ask: Callable[[dict[str, Any]], Any]) -> None:
        self.name = name
        self._ask = ask

    @property
    def info(self) -> dict[str, Any]:
        """Its row of the supervisor's status."""
        for row in self._ask({"verb": "status"}):
            if row["name"] == self.name:
                found: dict[str, Any] = row
                return found
        raise NotFoundError(f"no process is named {self.name}")

    @property
    def pid(self) -> int:
        """Its PID. Raises NotFoundError while it doesn't run."""
        pid = self.info["pid"]
        if pid is None:
            raise NotFoundError(f"{self.name} isn't running now")
        return int(pid)

    @property
    def started_at(self) -> float:
        """When it was last started, in seconds of the epoch."""
        return float(self.info["started_at"])

    @property
    def starts(self) -> int:
        """How often it was started."""
        return int(self.info["starts"])

    def signal(self, number: int) -> None:
        """Sends a signal; the supervisor restarts it if it dies of that."""
        self._ask({"verb": "signal", "name": self.name, "signal": int(number)})

    def kill9(self) -> None:
        """SIGKILL; the supervisor restarts it with its back-off."""
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        """Stops it for good, until `start`."""
        self._ask({"verb": "stop", "name": self.name})

    def start(self) -> None:
        """Starts it, or shortens the back-off it waits in."""
        self._ask({"verb": "start", "name": self.name})

    def restart(self) -> None:
        """Stops and starts it."""
        self._ask({"verb": "restart", "name": self.name})

    def remove(self) -> None:
        """Stops it and forgets it."""
        self._ask({"verb": "remove", "name": self.name})


def wait_until(
    probe: Callable[[], object], limit: float, failure: str | Callable[[], str], every: float = 0.05
) -> None:
    """Polls until `probe` returns something true. Raises DeadlineError with `failure`."""
    deadline = time.monotonic() + limit
    while not probe():
        if time.monotonic() > deadline:
            raise DeadlineError(failure if isinstance(failure, str) else failure())
        time.sleep(every)


def log_tail(path: Path, lines: int = 6) -> str:
    """The end of a log, for a message."""
    try:
        text = path.read_text(errors="replace").strip().splitlines()[-lines:]
    except OSError:
        return "(no log)"
    return "\n".join(line[:400] for line in text) or "(empty log)"
