"""The supervisor: one process that runs everything of a cluster and restarts what dies.

It listens on a unix socket for one JSON object per line (see `control.Supervisor`), and dies
together with its children: each gets SIGKILL when the supervisor is gone, so that a crash leaves
nothing behind but mounts and files.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kybernate.errors import KybernateError, NotFoundError
from tests.cluster.layout import Layout
from tests.cluster.processes.procs import ProcessId, children, identify

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
SETTLED = 10.0
"""A process that lived this many seconds starts again with the first delay."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run. `inside` names a supervised namespace holder whose mount and PID namespaces
    the process enters; `forks` says that argv[0] is a wrapper whose only child is the process.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    log: str = "/dev/null"
    cwd: str = "/"
    inside: str | None = None
    forks: bool = False
    restart: bool = True
    stop_signal: int = signal.SIGTERM
    stop_limit: float = 5.0

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> ProcessSpec:
        """From the JSON form."""
        return cls(**{**raw, "argv": tuple(raw["argv"])})


@dataclass(slots=True)
class _Child:
    spec: ProcessSpec
    wanted: bool = True
    wrapper: ProcessId | None = None
    process: ProcessId | None = None
    started_at: float = 0.0
    starts: int = 0
    last_exit: int | None = None
    delay: float = FIRST_DELAY
    runner: asyncio.Task[None] | None = None
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    tried: asyncio.Event = field(default_factory=asyncio.Event)

    def public(self) -> dict[str, Any]:
        running = self.process is not None and self.process.alive()
        state = "running" if running else ("restarting" if self.wanted else "stopped")
        return {
            "name": self.spec.name,
            "state": state,
            "pid": self.process.pid if running and self.process else None,
            "started_at": self.started_at,
            "starts": self.starts,
            "last_exit": self.last_exit,
            "log": self.spec.log,
            "ids": [asdict(one) for one in (self.process, self.wrapper) if one],
        }


class Server:
    """Runs children and answers commands; everything happens on one thread."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._children: dict[str, _Child] = {}
        self._quit = asyncio.Event()

    async def serve(self) -> None:
        """Answers until told to quit, then stops all children, the last started first."""
        path = self._layout.supervisor_socket
        path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._quit.set)
        server = await asyncio.start_unix_server(self._answer, str(path), limit=1 << 20)
        path.chmod(0o600)
        async with server:
            await self._quit.wait()
        for child in reversed(list(self._children.values())):
            await self._stop(child)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                result = {"ok": await self._do(json.loads(line))}
            except (KybernateError, KeyError, TypeError, ValueError, OSError) as error:
                result = {"error": str(error)}
            writer.write(json.dumps(result).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _do(self, request: dict[str, Any]) -> Any:
        verb = request["verb"]
        if verb == "status":
            return [child.public() for child in self._children.values()]
        if verb == "pid":
            return os.getpid()
        if verb == "quit":
            self._quit.set()
            return None
        if verb == "add":
            return await self._add(ProcessSpec.parse(request["spec"]))
        child = self._children.get(request["name"])
        if child is None:
            known = ", ".join(self._children) or "none"
            raise NotFoundError(f"no process is named {request['name']}; there are: {known}")
        await self._command(verb, child, request)
        return child.public()

    async def _command(self, verb: str, child: _Child, request: dict[str, Any]) -> None:
        if verb == "start":
            await self._start(child)
        elif verb == "stop":
            await self._stop(child)
        elif verb == "restart":
            await self._stop(child)
            await self._start(child)
        elif verb == "signal":
            if child.process is None or not child.process.alive():
                raise NotFoundError(f"{child.spec.name} isn't running")
            child.process.send(int(request["signal"]))
        elif verb == "remove":
            await self._stop(child)
            del self._children[child.spec.name]
            self._record()
        else:
            raise NotFoundError(f"unknown command {verb}")

    async def _add(self, spec: ProcessSpec) -> dict[str, Any]:
        if spec.name in self._children:
            await self._stop(self._children[spec.name])
        child = self._children[spec.name] = _Child(spec)
        await self._start(child)
        return child.public()

    async def _start(self, child: _Child) -> None:
        child.wanted = True
        child.delay = FIRST_DELAY
        if child.runner is None or child.runner.done():
            child.tried.clear()
            child.runner = asyncio.create_task(self._run(child))
            await child.tried.wait()
        else:
            child.nudge.set()

    async def _stop(self, child: _Child) -> None:
        child.wanted = False
        child.nudge.set()
        if child.process:
            child.process.send(child.spec.stop_signal)
        if child.runner is None:
            return
        done, _ = await asyncio.wait({child.runner}, timeout=child.spec.stop_limit)
        if not done:
            for one in (child.process, child.wrapper):
                if one:
                    one.send(signal.SIGKILL)
            await asyncio.wait({child.runner}, timeout=child.spec.stop_limit)

    async def _run(self, child: _Child) -> None:
        """Keeps the process running as long as it is wanted."""
        while child.wanted:
            await self._once(child)
            if not child.spec.restart:
                child.wanted = False
            if not child.wanted:
                return
            if time.time() - child.started_at > SETTLED:
                child.delay = FIRST_DELAY
            child.nudge.clear()
            try:
                await asyncio.wait_for(child.nudge.wait(), child.delay)
            except TimeoutError:
                child.delay = min(child.delay * 2, LONGEST_DELAY)

    async def _once(self, child: _Child) -> None:
        child.started_at = time.time()
        try:
            popen = await self._spawn(child.spec)
        except (KybernateError, OSError) as error:
            _say(child.spec, f"can't start: {error}")
            child.starts += 1
            child.last_exit = -1
            child.tried.set()
            return
        child.wrapper = identify(popen.pid)
        child.process = await self._find(child.spec, popen)
        child.starts += 1
        child.tried.set()
        self._record()
        child.last_exit = await popen.wait()
        child.process = child.wrapper = None
        self._record()

    async def _spawn(self, spec: ProcessSpec) -> asyncio.subprocess.Process:
        argv = ["setpriv", "--pdeathsig", "KILL", *self._entry(spec), *spec.argv]
        with Path(spec.log).open("ab") as log:  # noqa: ASYNC230 - a local file
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=spec.cwd,
                env={**os.environ, **spec.env},
                start_new_session=True,
            )

    def _entry(self, spec: ProcessSpec) -> list[str]:
        if spec.inside is None:
            return []
        holder = self._children.get(spec.inside)
        if holder is None or holder.process is None or not holder.process.alive():
            raise NotFoundError(f"{spec.inside}, whose namespaces it enters, isn't running")
        return ["nsenter", "-m", "-p", "-t", str(holder.process.pid), "--"]

    @staticmethod
    async def _find(spec: ProcessSpec, popen: asyncio.subprocess.Process) -> ProcessId | None:
        """The process itself: behind nsenter or unshare, it is the wrapper's child."""
        if not (spec.forks or spec.inside):
            return identify(popen.pid)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and popen.returncode is None:
            for pid in children(popen.pid):
                return identify(pid)
            await asyncio.sleep(0.002)
        return None

    def _record(self) -> None:
        """Writes down what runs, for a `down` after the supervisor is gone."""
        path = self._layout.processes_file
        part = path.with_suffix(".part")
        part.write_text(json.dumps([child.public() for child in self._children.values()], indent=1))
        part.replace(path)


def _say(spec: ProcessSpec, text: str) -> None:
    with Path(spec.log).open("a") as log:
        log.write(f"supervisor: {spec.name}: {text}\n")


def main() -> None:
    """`python -m tests.cluster.processes.supervisor WORK`."""
    layout = Layout(Path(sys.argv[1]))
    asyncio.run(_main(layout))


async def _main(layout: Layout) -> None:
    await Server(layout).serve()


if __name__ == "__main__":
    main()
