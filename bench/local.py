"""A swap of two models on one box, against ending one and starting the other, as llama-swap does.

Both serve the same two programs on one GPU of the simulated driver, which has room for one; all of
their GPU memory is filled. A sample is the time of a request to the model that is not active, less
the same request to one that is, both taken in turn. The other side is llama-swap itself with --peer
PROGRAM, else what it does, done here: SIGTERM, a new process, /health asked every 10 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
import yaml

from bench import hostmemory
from bench.processes import REPOSITORY, free_port
from bench.report import emit, median, say
from kybernate.local.folders import native
from kybernate.local.simgpu.folder import install
from kybernate.local.simgpu.spec import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("left", "right")
_PATIENCE_S = 120.0


class Side(Protocol):
    """Who answers for the models."""

    def ask(self, model: str) -> dict[str, Any]:
        """What the model says of itself."""


class Door:
    """Asks one server by HTTP."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, model: str) -> dict[str, Any]:
        """See `Side.ask`."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
        kind = {"Content-Type": "application/json"}
        url = f"{self.url}/v1/chat/completions"
        request = urllib.request.Request(url, body.encode(), kind)  # noqa: S310
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:  # noqa: S310
            told: dict[str, Any] = json.load(answer)["kyb"]
        if told["checksum"] != told["expected"]:
            raise SystemExit(f"{model} answers with other memory than it was filled with: {told}")
        return told

    def wait(self) -> None:
        """Until it listens. Raises SystemExit if it never does."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health"):  # noqa: S310
                return
            time.sleep(0.01)
        raise SystemExit(f"{self.url} does not answer")


class Reload:
    """Ends the model that runs, and starts the one that is asked."""

    def __init__(self, commands: dict[str, list[str]], environment: dict[str, str]) -> None:
        self._commands, self._environment = commands, environment
        self._running: tuple[str, Door, subprocess.Popen[bytes]] | None = None

    def ask(self, model: str) -> dict[str, Any]:
        """See `Side.ask`."""
        if self._running is None or self._running[0] != model:
            self.end()
            port = free_port()
            words = [word.replace("${PORT}", str(port)) for word in self._commands[model]]
            process = subprocess.Popen(
                words, cwd=REPOSITORY, env=self._environment, stdout=subprocess.DEVNULL
            )
            self._running = model, Door(port), process
            self._running[1].wait()
        return self._running[1].ask(model)

    def end(self) -> None:
        """End what runs."""
        if self._running is not None:
            self._running[2].terminate()
            self._running[2].wait(30)
            self._running = None


@click.command()
@click.option("--mib", default=1024, show_default=True, help="GPU memory of each model.")
@click.option("--swaps", default=20, show_default=True, help="Of each side.")
@click.option("--peer", type=click.Path(exists=True), help="llama-swap's program.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(mib: int, swaps: int, peer: str | None, *, as_json: bool) -> None:
    """Measure a swap in local mode."""
    with ExitStack() as stack:
        stack.enter_context(hostmemory.kept(mib))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kyb-bench-local-")))
        commands = {name: command(name, mib) for name in NAMES}
        ours = environment(stack, folder, mib)
        theirs = environment(stack, folder, mib)
        own: Side = stack.enter_context(box(folder, commands, mib, ours))
        other: Side
        if peer is not None:
            other = stack.enter_context(_llama_swap(folder, commands, peer, theirs))
        else:
            other = Reload(commands, theirs)
            stack.callback(other.end)
        swap, reload = _measure((own, other), swaps)
    metrics = {
        "swap_p50_ms": (1000 * median(swap), "ms"),
        "swap_least_ms": (1000 * min(swap), "ms"),
        "ratio": (median(reload) / median(swap), "times faster"),
        "ratio_of_least": (min(reload) / min(swap), "times faster"),
        "samples": (float(len(swap)), "swaps of each"),
    }
    baseline = {
        "name": "llama-swap" if peer else "kill and reload by the bench",
        "p50_ms": round(1000 * median(reload), 1),
        "least_ms": round(1000 * min(reload), 1),
    }
    emit("local", metrics, baseline, as_json=as_json)


def _measure(sides: tuple[Side, Side], swaps: int) -> tuple[list[float], list[float]]:
    """What each swap took, by ours and by the other, in turn (s). Raises SystemExit if a process
    of ours was not kept, or one of the other's was."""
    took: tuple[list[float], list[float]] = ([], [])
    seen: tuple[set[int], set[int]] = (set(), set())
    for side in sides:
        for name in NAMES * 2:
            side.ask(name)
    for number in range(swaps):
        name = NAMES[number % 2]
        for side, times, pids in zip(sides, took, seen, strict=True):
            waking, told = _timed(side, name)
            active, _ = _timed(side, name)
            times.append(waking - active)
            pids.add(told["pid"])
        say(f"swap {number + 1}: {1000 * took[0][-1]:.0f} ms, {1000 * took[1][-1]:.0f} ms")
    if len(seen[0]) > len(NAMES) or len(seen[1]) < swaps:
        raise SystemExit(f"processes: {len(seen[0])} of ours, {len(seen[1])} of the other's")
    return took


def _timed(side: Side, name: str) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    told = side.ask(name)
    return time.perf_counter() - began, told


def command(name: str, mib: int) -> list[str]:
    """A toy server's words."""
    toy = (sys.executable, "-m", "tests.workloads.toy_server", "--host", "127.0.0.1")
    return [*toy, "--port", "${PORT}", "--model", name, "--bytes", f"{mib}MiB"]


def environment(stack: ExitStack, folder: Path, mib: int, count: int = 1) -> dict[str, str]:
    """The variables with which processes see GPUs of their own side."""
    gpus = Path(tempfile.mkdtemp(prefix="kyb-bench-gpus-", dir="/dev/shm"))
    stack.callback(shutil.rmtree, gpus, ignore_errors=True)
    row = {"product": "toy", "memory": f"{mib + mib // 4}MiB", "count": count}
    libraries = native("simgpu")
    install(parse({"name": "box", "gpus": [row], "open": True}), gpus, libraries)
    homes = dict.fromkeys(("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"), str(folder))
    return {**os.environ, **homes, "SIMGPU_DIR": str(gpus), "LD_LIBRARY_PATH": str(libraries)}


@contextmanager
def box(
    folder: Path, commands: dict[str, list[str]], mib: int, given: dict[str, str], **keys: Any
) -> Iterator[Door]:
    """`kybernate serve` of these commands. `keys`: what else each model's entry says."""
    port, file = free_port(), folder / "models.yaml"
    models = {
        name: {"cmd": " ".join(words), "vram": f"{mib}MiB", "gpus": 1, **keys}
        for name, words in commands.items()
    }
    listen = f"127.0.0.1:{port}"
    file.write_text(yaml.safe_dump({"listen": listen, "startPort": free_port(), "models": models}))
    words = [sys.executable, "-m", "kybernate.cli", "serve", str(file)]
    with _serving(words, folder / "box.log", given, port) as door:
        yield door


@contextmanager
def _llama_swap(
    folder: Path, commands: dict[str, list[str]], program: str, environment: dict[str, str]
) -> Iterator[Door]:
    port, file = free_port(), folder / "llama-swap.yaml"
    models = {name: {"cmd": " ".join(words)} for name, words in commands.items()}
    file.write_text(yaml.safe_dump({"startPort": free_port(), "models": models}))
    words = [program, "-config", str(file), "-listen", f"127.0.0.1:{port}"]
    with _serving(words, folder / "llama-swap.log", environment, port) as door:
        yield door


@contextmanager
def _serving(words: list[str], log: Path, environment: dict[str, str], port: int) -> Iterator[Door]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, cwd=REPOSITORY, env=environment, stdout=output, stderr=output
        )
    door = Door(port)
    try:
        door.wait()
        yield door
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    main()
