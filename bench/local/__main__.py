"""A swap of two models on one box, against ending one and starting the other, as llama-swap does.

Both serve the same two programs on one GPU of the simulated driver, which has room for one; all of
their GPU memory is filled. A sample is the time of a request to the model that is not active, less
the same request to one that is, both taken in turn. The other side is llama-swap itself with --peer
PROGRAM, else what it does, done here: SIGTERM, a new process, /health asked every 10 ms.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from bench import hostmemory
from bench.local.box import Door, Side, box, command, environment, serving
from bench.processes import REPOSITORY, free_port
from bench.report import emit, median, say

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("left", "right")


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


@contextmanager
def _llama_swap(
    folder: Path, commands: dict[str, list[str]], program: str, environment: dict[str, str]
) -> Iterator[Door]:
    port, file = free_port(), folder / "llama-swap.yaml"
    models = {name: {"cmd": " ".join(words)} for name, words in commands.items()}
    file.write_text(yaml.safe_dump({"startPort": free_port(16), "models": models}))
    words = [program, "-config", str(file), "-listen", f"127.0.0.1:{port}"]
    with serving(words, folder / "llama-swap.log", environment, port) as door:
        yield door


if __name__ == "__main__":
    main()
