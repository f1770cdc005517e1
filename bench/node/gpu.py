"""Park and wake one big model on a real NVIDIA GPU, against the bare driver calls and the bus.

A PyTorch model (without PyTorch: the toy model server's allocation) fills `--bytes` of GPU memory.
Each cycle parks and wakes it twice, once by the product's adapter and once by the same driver calls
made from this process, in turns; after each wake it must give the same answer. The bus is measured
by copies between the GPU and pinned host memory in the same run. Then the model's process goes to
the disk and back by the agent's dumper, and new ones are started from its image (`gpudisk`). Needs
no cluster; for the disk root, a compiler, and the static CRIU (`make criu`, or $KYB_CRIU).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.report import emit, percentile, say
from tests.gpu.checks import SkippedError, has_torch, process, require_gpu, used_bytes
from tests.gpu.driver import ByBindings, Parker, parker
from tests.workloads.device import call

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from bench.report import Metrics

TORCH = """
import sys, torch
torch.manual_seed(1)
width = 8192
count = max(1, int(sys.argv[1]) // (2 * width * width))
layers = [torch.randn(width, width, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
asked = torch.randn(1, width, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
for _ in sys.stdin:
    answer = asked
    for layer in layers:
        answer = torch.nn.functional.normalize(answer @ layer)
    print(answer.cpu().view(torch.int16).numpy().tobytes().hex()[:64], flush=True)
"""

TOY = """
import sys
from tests.workloads.device import Memory
memory = Memory(int(sys.argv[1]), fill=256 << 20, seed=1)
print("ready", flush=True)
for _ in sys.stdin:
    counter, device, checksum = memory.count()
    print(checksum, device == [counter], flush=True)
"""

_COPY = 1 << 30
_COPIES = 5


class Model:
    """A process that holds GPU memory and answers one line with another."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        assert running.stdin is not None
        assert running.stdout is not None
        self.pid = running.pid
        self._questions, self._answers = running.stdin, running.stdout

    def answer(self) -> str:
        """What it computes from its weights."""
        self._questions.write("go\n")
        self._questions.flush()
        line = self._answers.readline()
        if not line:
            raise SystemExit("the model's process has died; its words are above")
        return line.strip()


@dataclass
class Times:
    """Seconds of each park and wake by one way."""

    parks: list[float] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)

    def cycle(self) -> float:
        """Median seconds of a park and a wake together."""
        return statistics.median(p + w for p, w in zip(self.parks, self.wakes, strict=True))


@click.command()
@click.option("--bytes", "amount", default=17 << 30, show_default=True, help="GPU memory to fill.")
@click.option("--cycles", default=100, show_default=True, help="Parks and wakes by each way.")
@click.option("--starts", default=5, show_default=True, help="Dumps, and starts of each kind.")
@click.option("--disk", type=click.Path(path_type=Path), help="Where images go; else /var/tmp.")
@click.option("--toy", is_flag=True, help="Fill the memory without PyTorch.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(
    amount: int, cycles: int, starts: int, disk: Path | None, *, toy: bool, as_json: bool
) -> None:
    """Measure parking and waking on this machine's first GPU."""
    try:
        uuid = require_gpu()
    except SkippedError as error:
        say(f"SKIPPED: nothing was measured on a real driver, since {error}")
        if as_json:
            print(json.dumps({"bench": "gpu", "skipped": str(error)}), flush=True)
        return
    bus = _bus(min(amount, _COPY))
    with _model(uuid, amount, toy=toy) as model, parker() as ours:
        bare = ByBindings()
        freed, mine, theirs = _measure(model, uuid, ours, bare, cycles)
    below = _disk(uuid, amount, starts, disk, toy=toy)
    _report(freed, mine, theirs, bus, below, as_json=as_json)


def _disk(uuid: str, amount: int, starts: int, disk: Path | None, *, toy: bool) -> Metrics:
    """What is measured below RAM, or nothing, said loudly, where something isn't here."""
    try:
        from bench.node import gpudisk  # noqa: PLC0415 - needs more than a GPU's Python may have
        from tests.gpu.box import MissingError  # noqa: PLC0415 - ditto
    except ImportError as error:
        say(f"SKIPPED: nothing was measured on the disk, since this Python lacks it: {error}")
        return {}
    try:
        with parker() as driver:
            return gpudisk.measure(driver, uuid, amount, starts, disk, toy=toy).metrics()
    except MissingError as error:
        say(f"SKIPPED: nothing was measured on the disk, since {error}")
        return {}


@contextlib.contextmanager
def _model(uuid: str, amount: int, *, toy: bool) -> Iterator[Model]:
    """A model that has filled its memory."""
    code = TOY if toy or not has_torch() else TORCH
    with process(uuid, "-c", code, str(amount)) as running:
        model = Model(running)
        assert running.stdout is not None
        if running.stdout.readline().strip() != "ready":
            raise SystemExit("the model did not start; it said why above")
        yield model


def _measure(
    model: Model, uuid: str, ours: Parker, bare: Parker, cycles: int
) -> tuple[int, Times, Times]:
    """Bytes that a park gives back, and both ways' times, taken in turns."""
    expected, freed = model.answer(), 0
    mine, theirs = Times(), Times()
    for number in range(cycles):
        # Who comes first changes, so that no way always finds the warmer machine.
        pairs = [(ours, mine), (bare, theirs)]
        for way, times in pairs if number % 2 else reversed(pairs):
            freed = _cycle(model, uuid, way, times)
            if (found := model.answer()) != expected:
                raise SystemExit(f"cycle {number}: it answered {found} instead of {expected}")
        say(f"cycle {number + 1} of {cycles}: {mine.parks[-1]:.3f} + {mine.wakes[-1]:.3f} s")
    return freed, mine, theirs


def _cycle(model: Model, uuid: str, way: Parker, times: Times) -> int:
    before, begin = used_bytes(uuid), time.monotonic()
    way.park(model.pid)
    times.parks.append(time.monotonic() - begin)
    freed = before - used_bytes(uuid)
    begin = time.monotonic()
    way.wake(model.pid)
    times.wakes.append(time.monotonic() - begin)
    return freed


def _bus(amount: int) -> tuple[float, float]:
    """Bytes per second to and from pinned host memory, the best of some copies."""
    call("cuInit", 0)
    device = call("cuDeviceGet", 0)
    context = call("cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", context)
    host, there = call("cuMemHostAlloc", amount, 0), call("cuMemAlloc", amount)
    ctypes.memset(int(host), 1, amount)
    try:
        up = min(_timed("cuMemcpyHtoD", there, int(host), amount) for _ in range(_COPIES))
        down = min(_timed("cuMemcpyDtoH", int(host), there, amount) for _ in range(_COPIES))
    finally:
        call("cuMemFree", there)
        call("cuMemFreeHost", host)
        call("cuCtxSetCurrent", 0)
        call("cuDevicePrimaryCtxRelease", device)
    return amount / up, amount / down


def _timed(copy: str, *arguments: object) -> float:
    begin = time.monotonic()
    call(copy, *arguments)
    return time.monotonic() - begin


def _report(
    freed: int,
    mine: Times,
    theirs: Times,
    bus: tuple[float, float],
    below: Metrics,
    *,
    as_json: bool,
) -> None:
    def speed(seconds: list[float]) -> float:
        return freed / statistics.median(seconds) / 1e9

    metrics: Metrics = {
        "park_gb_s": (speed(mine.parks), "GB/s"),
        "wake_gb_s": (speed(mine.wakes), "GB/s"),
        "park_p99_s": (percentile(mine.parks, 99), "s"),
        "wake_p99_s": (percentile(mine.wakes, 99), "s"),
        "cuda_ratio_bare": (theirs.cycle() / mine.cycle(), "ratio"),
        "bytes": (float(freed), "bytes"),
        "cycles": (float(len(mine.parks)), "cycles"),
        **below,
    }
    baseline = {
        "name": "the bare driver calls in the same run, and copies by pinned memory",
        "bare_park_gb_s": round(speed(theirs.parks), 3),
        "bare_wake_gb_s": round(speed(theirs.wakes), 3),
        "to_gpu_gb_s": round(bus[0] / 1e9, 3),
        "from_gpu_gb_s": round(bus[1] / 1e9, 3),
    }
    emit("gpu", metrics, baseline, as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
