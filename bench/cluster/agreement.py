"""`python -m bench.cluster.agreement`: does a cluster do what `kybernate simulate` says?

The demo's cluster, with models of one GPU each of which no two fit side by side. The extender
places them, and there they stay. `kybernate calibrate` measures on each node what their swaps cost.
Then a trace of requests is played through the proxy, and in virtual time for each GPU by itself,
with the models that it really has (policy `fixed`). The share of requests whose answer begins
within `--within` seconds is set beside each other. Both decide by these seconds and twice the
model's wake, as `answer_within_s` of the agent has it.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
import requests

from bench import hostmemory
from bench.played import asked, difference, drawn, played
from bench.report import emit, median, say
from kybernate import keys
from kybernate.core.simulate.costs import read_costs
from kybernate.core.simulate.ours import fixed
from kybernate.core.simulate.trace import Trace
from kybernate.core.simulate.world import World
from tests.cluster.cluster import running
from tests.demo.models import GIB, Model
from tests.demo.observe import seat_rows
from tests.demo.show import Show, spec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kybernate.core.simulate.world import Costs
    from tests.cluster.cluster import Cluster, Node
    from tests.demo.observe import SeatRow

VRAM = 48 * GIB
"""Of each model: more than half of a GPU."""

_GB = 10**9
_ROUNDS = 2


def of_models(trace: Trace, names: Collection[str]) -> Trace:
    """The requests for these models alone, and the models in their order."""
    here = [number for number, name in enumerate(trace.names) if name in names]
    kept = [number for number, model in enumerate(trace.models) if model in here]
    return Trace(
        at=[trace.at[number] for number in kept],
        models=[here.index(trace.models[number]) for number in kept],
        work=[trace.work[number] for number in kept],
        names=[trace.names[model] for model in here],
        sizes=[trace.sizes[model] for model in here],
    )


def simulated(trace: Trace, costs: Costs) -> World:
    """One GPU with these models, after the last of their requests has begun."""
    world = World(trace, 1, costs)
    world.run(fixed(world))
    return world


def by_gpu(rows: Sequence[SeatRow]) -> dict[str, list[SeatRow]]:
    """The seats of each group, by the names of its node and its own."""
    found: dict[str, list[SeatRow]] = defaultdict(list)
    for row in rows:
        found[f"{row.node}/{row.group}"].append(row)
    return dict(sorted(found.items()))


def _seats(cluster: Cluster) -> list[SeatRow]:
    return seat_rows(requests.get(f"{cluster.proxy_url}/v1/models", timeout=10).json())


def _calibrated(node: Node, pods: Sequence[str], within: float) -> Costs:
    """What swaps of these pods cost, as their node's agent tells."""
    names = [f"default/{pod}" for pod in pods]
    with TemporaryDirectory(prefix="kyb-bench-costs-") as folder:
        out = Path(folder) / "costs.json"
        words = [sys.executable, "-m", "kybernate.cli", "calibrate", *names]
        words += [f"--rounds={_ROUNDS}", f"--out={out}"]
        words += [f"--socket=/proc/{node.pid}/root{keys.AGENT_SOCKET}"]
        subprocess.run(words, check=True, stdout=sys.stderr)
        costs = read_costs(out.read_text(), node.name)
    return replace(costs, slack=within)


def _costs(cluster: Cluster, rows: Sequence[SeatRow], within: float) -> dict[str, Costs]:
    """Of each node that has a model; each model is parked and woken."""
    pods: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        pods[row.node].append(row.pod)
    return {name: _calibrated(cluster.node(name), pods[name], within) for name in pods}


def compared(
    trace: Trace,
    waits: Sequence[float],
    gpus: Mapping[str, Sequence[SeatRow]],
    costs: Mapping[str, Costs],
    within: float,
) -> tuple[list[World], dict[str, dict[str, object]]]:
    """Of each GPU what the simulation says, and both in figures. `costs`: by node."""
    worlds, figures = [], {}
    for gpu, rows in gpus.items():
        models = {row.model for row in rows}
        world = simulated(of_models(trace, models), costs[rows[0].node])
        asks = zip(trace.models, waits, strict=True)
        mine = [wait for model, wait in asks if trace.names[model] in models]
        worlds.append(world)
        figures[gpu] = {
            "models": sorted(models),
            "requests": len(mine),
            "in_time": sum(wait <= within for wait in mine),
            "simulated": sum(wait <= within for those in world.waits for wait in those),
        }
    return worlds, figures


@click.command()
@click.option("--models", default=12, show_default=True)
@click.option("--seconds", default=100.0, show_default=True, help="How long requests come.")
@click.option("--rate", default=1.2, show_default=True, help="Requests a second in all.")
@click.option("--work", default=4.0, show_default=True, help="Seconds that each is worked on.")
@click.option("--within", default=2.0, show_default=True, help="In time: begun so soon (s).")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(  # noqa: PLR0913 - its options
    *,
    models: int,
    seconds: float,
    rate: float,
    work: float,
    within: float,
    seed: int,
    as_json: bool,
) -> None:
    """Set a cluster beside its simulation."""
    trace = drawn(models, seconds, rate, work, seed, VRAM / _GB)
    shown = [Model(name, 1, VRAM) for name in trace.names]
    limit, demo = {"KYB_AGENT_ANSWER_WITHIN_S": str(within)}, spec()
    one = replace(demo, service_env={**demo.service_env, "agent": limit})
    with hostmemory.kept(models * VRAM // one.gpus.scale >> 20), running(one, say) as cluster:
        Show(cluster, say, shown).deploy()
        before = _seats(cluster)
        costs = _costs(cluster, before, within)
        before = _seats(cluster)
        say(f"playing {len(trace.at)} requests in {seconds:g} s")
        waits = played(partial(asked, cluster.proxy_url), trace)
        after = _seats(cluster)
    worlds, figures = compared(trace, waits, by_gpu(before), costs, within)
    for gpu, figure in figures.items():
        say(f"{gpu}: {figure}")
    real = sum(wait <= within for wait in waits) / len(waits)
    expected = [wait for world in worlds for those in world.waits for wait in those]
    said = sum(wait <= within for wait in expected) / len(expected)
    swaps = sum(row.wakes for row in after) - sum(row.wakes for row in before)
    swap = [(c.fixed + VRAM / _GB / c.park, c.fixed + VRAM / _GB / c.wake) for c in costs.values()]
    metrics = {
        "in_time": (real, "ratio"),
        "simulated": (said, "ratio"),
        "difference": (difference(real, said), "ratio"),
        "wait_p50_s": (median(waits), "s"),
        "simulated_wait_p50_s": (median(expected), "s"),
        "swaps": (float(swaps), "wakes"),
        "simulated_swaps": (float(sum(world.swaps for world in worlds)), "wakes"),
        "park_s": (median([park for park, _ in swap]), "s"),
        "wake_s": (median([wake for _, wake in swap]), "s"),
        "requests": (float(len(waits)), "requests"),
    }
    baseline = {"name": "kybernate simulate --policy fixed, for each GPU", "gpus": figures}
    emit("cluster.agreement", metrics, baseline, as_json=as_json)


if __name__ == "__main__":
    main()
