"""Replay an openb workload: how much of the GPUs a policy gives away before it is stuck.

Pods arrive in random order until 1.3 times the cluster is asked for, are tried once and never
leave, as in the published evaluation of FGD. The placing is the product's own code.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import fmean

import click

from bench.placement.openb.replay import Replayed, Terms, replay
from bench.placement.openb.trace import read_nodes, read_pods, remixed
from bench.report import Metrics, emit, say
from kybernate.core.placement import POLICIES

LIST = click.Path(exists=True, dir_okay=False, path_type=Path)


def parse_seeds(text: str) -> list[int]:
    """`42-51`, or `42,44`, or one number."""
    first, dash, last = text.partition("-")
    try:
        if dash:
            return list(range(int(first), int(last) + 1))
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise click.BadParameter("write it as 42-51, 42,44 or 42", param_hint="--seeds") from None


@click.command()
@click.option("--nodes", required=True, type=LIST, help="List of nodes (.csv or .csv.gz).")
@click.option("--pods", required=True, type=LIST, help="List of pods (.csv or .csv.gz).")
@click.option("--policy", default="default", type=click.Choice(list(POLICIES)), show_default=True)
@click.option("--seed", "--seeds", "seeds", default="42", show_default=True, help="As in 42-51.")
@click.option("--tune", default=1.3, show_default=True, help="Demand to come, in capacities.")
@click.option("--moves", default=0.0, show_default=True, help="Percent of the pods that may move.")
@click.option("--mix", type=int, help="Draw the list again, with odds from this seed.")
@click.option("--course", type=click.Path(path_type=Path), help="Write the first seed's course.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(  # noqa: PLR0913
    *,
    nodes: Path,
    pods: Path,
    policy: str,
    seeds: str,
    tune: float,
    moves: float,
    mix: int | None,
    course: Path | None,
    as_json: bool,
) -> None:
    """Replay a list of pods on a list of nodes."""
    supplies, asks, terms = read_nodes(nodes), read_pods(pods), Terms(tune, moves)
    if mix is not None:
        asks = remixed(asks, mix)
    start = time.monotonic()
    runs = []
    for seed in parse_seeds(seeds):
        runs.append(replay(supplies, asks, policy, seed, terms))
        say(f"  seed {seed}: {runs[-1].allocation:.2f} %, {runs[-1].moved} moved")
    if course is not None:
        course.write_text(json.dumps(runs[0].course), encoding="utf-8")
    emit(
        "openb",
        _metrics(runs, (time.monotonic() - start) / len(runs)),
        {
            "pods": pods.name,
            "policy": policy,
            "seeds": seeds,
            "tune": tune,
            "moves": moves,
            "mix": mix,
        },
        as_json=as_json,
    )


def _metrics(runs: list[Replayed], seconds: float) -> Metrics:
    large = fmean(sum(ask.gpus > 1 for ask in run.failed) for run in runs)
    return {
        "gpu_allocation_percent": (fmean(run.allocation for run in runs), "%"),
        "bound_percent": (fmean(run.bound for run in runs), "%"),
        "pooled_percent": (fmean(run.pooled for run in runs), "%"),
        "fragmented_percent": (fmean(run.course[-1].fragmented for run in runs), "%"),
        "moved_percent": (fmean(100 * run.moved / run.arrived for run in runs), "%"),
        "failed_pods": (fmean(len(run.failed) for run in runs), ""),
        "failed_2_to_8_gpus": (large, ""),
        "run_s": (seconds, "s"),
    }


if __name__ == "__main__":
    main()
