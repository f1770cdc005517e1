"""The four published workloads in one go, beside the published figures of FGD.

Seeds are replayed on several cores (`--jobs`). Without the lists it says so and measures nothing.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean

import click

from bench.placement.openb.__main__ import parse_seeds
from bench.placement.openb.replay import Replayed, Terms, replay
from bench.placement.openb.trace import listed, read_nodes, read_pods
from bench.report import Metrics, emit, say, skip
from kybernate.core.placement import POLICIES

DATA = Path(__file__).parents[4] / "shared/data/openb"
PUBLISHED = {"default": 95.39, "gpushare40": 94.15, "multigpu20": 95.65, "gpuspec10": 94.95}
"""FGD's GPU allocation in percent, mean of ten seeds (Weng et al., USENIX ATC 2023)."""


@click.command()
@click.option("--data", default=DATA, type=click.Path(path_type=Path), help="Folder of the lists.")
@click.option("--policy", default="default", type=click.Choice(list(POLICIES)), show_default=True)
@click.option("--seeds", default="42-51", show_default=True)
@click.option("--moves", default=0.0, show_default=True, help="Percent of the pods that may move.")
@click.option("--jobs", default=1, show_default=True, help="Replays at a time.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(*, data: Path, policy: str, seeds: str, moves: float, jobs: int, as_json: bool) -> None:
    """Replay the four workloads."""
    if not data.is_dir():
        skip("openb.table", f"there are no openb lists in {data}; --data names another place")
        return
    metrics: Metrics = {}
    with ProcessPoolExecutor(jobs) as pool:
        for workload, fgd in PUBLISHED.items():
            tasks = [(data, workload, policy, seed, moves) for seed in parse_seeds(seeds)]
            runs = list(pool.map(_one, tasks))
            metrics |= _row(workload, runs)
            say(f"  {workload}: {metrics[workload][0]:.2f} %, FGD {fgd} %")
    gains = [metrics[f"{workload}_gain"][0] for workload in PUBLISHED]
    metrics["mean_gain"] = fmean(gains), "points"
    told = {"policy": policy, "seeds": seeds, "moves": moves, "fgd": PUBLISHED}
    emit("openb.table", metrics, told, as_json=as_json)


def _one(task: tuple[Path, str, str, int, float]) -> Replayed:
    data, workload, policy, seed, moves = task
    nodes = read_nodes(listed(data, "openb_node_list_gpu_node"))
    pods = read_pods(listed(data, f"openb_pod_list_{workload}"))
    return replay(nodes, pods, policy, seed, Terms(moves=moves))


def _row(workload: str, runs: list[Replayed]) -> Metrics:
    mean = fmean(run.allocation for run in runs)
    return {
        workload: (mean, "%"),
        f"{workload}_gain": (mean - PUBLISHED[workload], "points"),
        f"{workload}_bound": (fmean(run.bound for run in runs), "%"),
        f"{workload}_pooled": (fmean(run.pooled for run in runs), "%"),
        f"{workload}_moved": (fmean(100 * run.moved / run.arrived for run in runs), "%"),
    }


if __name__ == "__main__":
    main()
