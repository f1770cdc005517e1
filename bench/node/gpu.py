"""Park and wake one big model on a real NVIDIA GPU, against the bare driver calls and the bus.

A PyTorch model (without PyTorch: a toy's allocation) fills `--bytes` of GPU memory. Each cycle
parks and wakes it twice, once by the product's adapter and once by the same driver calls made from
this process, in turns; after each wake it must give the same answer. The bus is measured by copies
between the GPU and pinned host memory in the same run. Then the model's process goes to the disk
and back by the agent's dumper, and new ones are started from its image. Needs no cluster; for the
disk root, a compiler, and the static CRIU (`make criu`, or $KYB_CRIU).

It is the parts `park` and `disk` of `make test-gpu` (`tests.gpu`), by count instead of by time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.report import emit, percentile, say
from kybernate.errors import KybernateError
from tests.gpu import disk as below_ram
from tests.gpu import speed
from tests.gpu.box import MissingError
from tests.gpu.driver import ByBindings, parker
from tests.gpu.held import model
from tests.gpu.machine import SkippedError, require_gpu

if TYPE_CHECKING:
    from bench.report import Metrics

_COPY = 1 << 30


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
    bus = speed.bus(min(amount, _COPY))
    try:
        found = _cycles(uuid, amount, cycles, toy=toy)
        metrics = _disk(uuid, amount, starts, disk, toy=toy)
    except (KybernateError, AssertionError) as error:
        raise SystemExit(str(error)) from error
    _report(found, bus, metrics, as_json=as_json)


def _cycles(uuid: str, amount: int, count: int, *, toy: bool) -> speed.Cycles:
    found = speed.Cycles()
    with model(uuid, amount, toy=toy) as one, parker() as ours:
        done = speed.cycles(one, uuid, ours, ByBindings(), lambda number: number < count)
        for number, found in enumerate(done, 1):
            took = f"{found.ours.parks[-1]:.3f} + {found.ours.wakes[-1]:.3f} s"
            say(f"cycle {number} of {count}: {took}")
    return found


def _disk(uuid: str, amount: int, starts: int, disk: Path | None, *, toy: bool) -> Metrics:
    """What is measured below RAM, or nothing, said loudly, where something isn't here."""
    try:
        with parker() as driver:
            found = below_ram.measure(
                driver, uuid, amount, lambda _, number: number < starts, disk, toy=toy
            )
    except MissingError as error:
        say(f"SKIPPED: nothing was measured on the disk, since {error}")
        return {}
    figures = found.figures()
    ratio = figures.pop("template_ratio_cold")
    metrics = {_named(name): value for name, value in figures.items()}
    return metrics | {"template_ratio_cold": ratio}


def _named(name: str) -> str:
    """A figure's name as older results have it."""
    if name.endswith("_start_s"):
        return f"{name.removesuffix('_s')}_p50_s"
    plain = name.endswith("_gb_s") or name == "bytes"
    return f"disk_{name}" if plain else f"disk_{name.removesuffix('_s')}_p50_s"


def _report(
    found: speed.Cycles, bus: tuple[float, float], below: Metrics, *, as_json: bool
) -> None:
    ours, bare = found.ours, found.bare
    park, wake = found.speeds(ours)
    bare_park, bare_wake = found.speeds(bare)
    metrics: Metrics = {
        "park_gb_s": (park, "GB/s"),
        "wake_gb_s": (wake, "GB/s"),
        "park_p99_s": (percentile(ours.parks, 99), "s"),
        "wake_p99_s": (percentile(ours.wakes, 99), "s"),
        "cuda_ratio_bare": (bare.cycle() / ours.cycle(), "ratio"),
        "bytes": (float(found.freed), "bytes"),
        "cycles": (float(len(ours.parks)), "cycles"),
        **below,
    }
    baseline = {
        "name": "the bare driver calls in the same run, and copies by pinned memory",
        "bare_park_gb_s": round(bare_park, 3),
        "bare_wake_gb_s": round(bare_wake, 3),
        "to_gpu_gb_s": round(bus[0] / 1e9, 3),
        "from_gpu_gb_s": round(bus[1] / 1e9, 3),
    }
    emit("gpu", metrics, baseline, as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
