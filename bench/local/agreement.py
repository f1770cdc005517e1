"""`python -m bench.local.agreement`: does `kybernate serve` do what `kybernate simulate` says?

A trace of requests is played twice: on a real box of several GPUs of the simulated driver, and in
virtual time with the swaps as they were just measured there. The share of requests whose answer
begins within `--within` seconds is set beside each other.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench import hostmemory
from bench.local.box import box, command, environment
from bench.played import asked, difference, drawn, played
from bench.report import emit, median, say
from kybernate.cli.planning.boxlink import BoxLink
from kybernate.cli.planning.swaps import measure
from kybernate.core.simulate.outcome import POLICIES, simulate

if TYPE_CHECKING:
    from bench.local.box import Door
    from kybernate.core.simulate.world import Costs

_TRIES = 5
_GB = 10**9


def measured(door: Door, names: list[str], within: float) -> Costs:
    """What swaps cost here, by a model that nobody else hinders, as `kybernate calibrate` says."""
    for name in names:
        asked(door.url, name, 0.0)
    costs, _ = measure(BoxLink(door.url), names[-1:], _TRIES)
    return replace(costs, slack=within, wakes=0.0)


@click.command()
@click.option("--gpus", default=3, show_default=True)
@click.option("--models", default=12, show_default=True)
@click.option("--mib", default=48, show_default=True, help="GPU memory of each model.")
@click.option("--seconds", default=120.0, show_default=True, help="How long requests come.")
@click.option("--rate", default=0.9, show_default=True, help="Requests a second in all.")
@click.option("--work", default=4.0, show_default=True, help="Seconds that each is worked on.")
@click.option("--within", default=2.0, show_default=True, help="In time: begun so soon (s).")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(  # noqa: PLR0913 - its options
    *,
    gpus: int,
    models: int,
    mib: int,
    seconds: float,
    rate: float,
    work: float,
    within: float,
    seed: int,
    as_json: bool,
) -> None:
    """Set a box beside its simulation."""
    gb = mib * (1 << 20) / _GB
    trace = drawn(models, seconds, rate, work, seed, gb)
    with ExitStack() as stack:
        stack.enter_context(hostmemory.kept(mib))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kyb-bench-box-")))
        given = environment(stack, folder, mib, gpus)
        commands = {name: command(name, mib) for name in trace.names}
        door = stack.enter_context(box(folder, commands, mib, given, readyWithin=within))
        costs = measured(door, list(trace.names), within)
        wake, park = (costs.fixed + gb / rate for rate in (costs.wake, costs.park))
        say(f"wake {wake:.3f} s, park {park:.3f} s")
        waits = played(partial(asked, door.url), trace)
        moves = (folder / "box.log").read_text().count(" goes from GPU ")
    real = sum(wait <= within for wait in waits) / len(waits)
    said = {name: simulate(trace, gpus, costs, POLICIES[name]).in_time for name in POLICIES}
    metrics = {
        "in_time": (real, "ratio"),
        "simulated": (said["ours"], "ratio"),
        "difference": (difference(real, said["ours"]), "ratio"),
        "wait_p50_s": (median(waits), "s"),
        "moves": (float(moves), "wakes on another GPU"),
        "requests": (float(len(waits)), "requests"),
    }
    emit("local.agreement", metrics, {"simulated": said}, as_json=as_json)


if __name__ == "__main__":
    main()
