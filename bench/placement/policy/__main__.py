"""`python -m bench.placement.policy`: GPUs that a policy needs, and the rate that eight sustain.

The standard case: 32 models of 8, 16, 40 and 70 GB, one 80 GB GPU for each if nobody shares;
conversations as Azure's, models by Zipf's law; swaps at 20 GB/s each way. A rate is sustained if
99 % of the requests, on average over the seeds, begin within 2 s and twice their model's own wake.

With `--ram 0.5` host RAM has room for half of the models' bytes, and the rest is on NVMe, at 3 GB/s
each way. Then only what is in time at the standard case's rate is asked. Others are asked once more
on a node that writes to NVMe in no time: who ends a model instead of parking it writes nothing.

With `--kept` each answer is written to that file at once, and a second start asks only for those
that are missing.
"""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from bench.placement.policy.baselines import BASELINES
from bench.placement.policy.kept import Kept
from bench.placement.policy.search import ALL, Trial, beyond, in_time, needed, sustained
from bench.placement.policy.workload import SIZES, Case
from bench.report import emit, say, skip
from kybernate.core.simulate.world import Costs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.placement.policy.kept import Found

DATA = Path(__file__).parents[4] / "shared/data/azure-llm/AzureLLMInferenceTrace_conv.csv.gz"
RATES = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0)
GRID = (
    Case(),
    Case(skew=0.5),
    Case(skew=1.5),
    Case(models=8),
    Case(models=64),
    Case(models=200),
    Case(cv=2.0),
    Case(cv=8.0),
    Case(swing=True),
)

Rates = dict[str, float]
"""What each policy sustains, by its name."""


class Asked:
    """What is asked of one trial, each answer from the file if it is there."""

    def __init__(self, trial: Trial, kept: Path) -> None:
        self._trial, self._kept = trial, kept

    def gpus(self) -> Rates:
        """GPUs that each policy needs for the case."""
        return {name: self._ask("gpus", name, partial(needed, self._trial, name)) for name in ALL}

    def rates(self) -> Rates:
        """The rate that each policy sustains. The first is sought in all, others' near the best so
        far."""
        found: Rates = {}
        for name in ALL:
            near = max(found.values()) if found else None
            find = partial(sustained, self._trial, name, near)
            found[name] = self._ask("rate", name, find)
            say(f"  {self._trial.case.name()}: {name} sustains {found[name]:g}/s")
        return found

    def shares(self, rate: float) -> Rates:
        """What is in time at a rate where every model may wake on any GPU, and on one alone."""
        kinds = ("ours", "fixed")
        finds = {kind: partial(in_time, self._trial, rate, kind) for kind in kinds}
        return {kind: self._ask(f"in time at {rate:g}", kind, finds[kind]) for kind in kinds}

    def beyond(self, rate: float) -> float:
        """See the function; 0 if it is unknown."""
        return self._ask(f"bound above {rate:g}", "", partial(beyond, self._trial, rate))

    def each(self) -> Rates:
        """What of the case's requests each policy has in time."""
        trial = self._trial
        rate, found = trial.case.rate, {}
        # Ours parks, so it always writes.
        for name in ALL if trial.costs.nvme.write < math.inf else BASELINES:
            find = partial(in_time, trial, rate, name)
            found[name] = self._ask(f"in time at {rate:g}", name, find)
            say(f"  {trial.case.name()}: {name} has {found[name]:.2%} in time")
        return found

    def _ask(self, what: str, name: str, find: Callable[[], Found]) -> float:
        trial = self._trial
        rates = [trial.rates[0], trial.rates[-1]] if what == "rate" else None
        asked: dict[str, object] = {"gpus": trial.gpus, "seeds": len(trial.seeds), "rates": rates}
        costs = trial.costs
        if costs.ram_gb < math.inf:
            asked |= {"ram_gb": costs.ram_gb, "writes": costs.nvme.write < math.inf}
        question = {"what": what, "case": trial.case.name(), "policy": name, **asked}
        return Kept(self._kept).answer(question, find) or 0.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
@click.option("--seeds", "count", default=5, help="Traces of each case.")
@click.option("--gpus", "available", default=8, help="GPUs for which the rate is sought.")
@click.option("--grid", is_flag=True, help="The other workloads, too.")
@click.option("--most", default=RATES[-1], help="The highest rate to try.")
@click.option("--poisson", is_flag=True, help="Needs no data: random arrivals.")
@click.option("--jobs", default=1, help="Processes.")
@click.option(
    "--ram", "parts", type=click.FloatRange(0, 1), multiple=True, help="Part of the models in RAM."
)
@click.option("--data", type=click.Path(path_type=Path), default=DATA, help="The conversations.")
@click.option("--kept", type=click.Path(path_type=Path), help="Write answers there as they come.")
def main(  # noqa: PLR0913 - its options
    *,
    as_json: bool,
    count: int,
    available: int,
    grid: bool,
    most: float,
    poisson: bool,
    jobs: int,
    parts: tuple[float, ...],
    data: Path,
    kept: Path | None,
) -> None:
    """Set the product's policy beside others', on the same traces."""
    if not poisson and not data.exists():
        skip("policy", f"{data} is not here; name the trace of conversations by --data")
        return
    standard = Case(cv=1.0) if poisson else Case()
    if parts:
        trial = Trial(standard, available, range(count), (), data)
        emit("policy", *_with_limited_ram(trial, parts, jobs, kept), as_json=as_json)
        return
    rates = [rate for rate in RATES if rate <= most]
    trials = [
        Trial(case, available, range(count), rates, data)
        for case in (GRID if grid else (standard,))
    ]
    with TemporaryDirectory() as folder, ProcessPoolExecutor(jobs) as pool:
        answers = kept or Path(folder) / "answers.jsonl"
        asked = [Asked(trial, answers) for trial in trials]
        played = [pool.submit(one.rates) for one in asked]
        gpus = pool.submit(asked[0].gpus)
        found = [one.result() for one in played]
        ours = found[0]["ours"]
        shares = pool.submit(asked[0].shares, ours)
        least = pool.submit(asked[0].beyond, ours).result()
        cpu_s = Kept(answers).cpu_s()
    cases = {trial.case.name(): one for trial, one in zip(trials, found, strict=True)}
    metrics = _metrics(standard, gpus.result(), cases, shares.result(), least)
    metrics["cpu_s"] = (cpu_s, "s")
    emit("policy", metrics, {"gpus": gpus.result(), "rates": cases}, as_json=as_json)


def _with_limited_ram(
    trial: Trial, parts: Sequence[float], jobs: int, kept: Path | None
) -> tuple[dict[str, tuple[float, str]], dict[str, Rates]]:
    """What is in time at the case's rate where RAM has room for these parts of the models."""
    case = trial.case
    every = sum(SIZES[n % len(SIZES)] for n in range(case.models))
    asked: dict[str, Trial] = {}
    for part in parts:
        costs = Costs(ram_gb=part * every)
        asked[f"ram_{part:g}"] = replace(trial, costs=costs)
        unwritten = replace(costs, nvme=replace(costs.nvme, write=math.inf))
        asked[f"ram_{part:g}_unwritten"] = replace(trial, costs=unwritten)
    with TemporaryDirectory() as folder, ProcessPoolExecutor(jobs) as pool:
        answers = kept or Path(folder) / "answers.jsonl"
        played = {name: pool.submit(Asked(one, answers).each) for name, one in asked.items()}
        found = {name: one.result() for name, one in played.items()}
    metrics: dict[str, tuple[float, str]] = {}
    for name, shares in found.items():
        if "ours" in shares:
            metrics[f"{name}_ours"] = shares["ours"], "ratio"
        metrics[f"{name}_best_other"] = (
            max(share for one, share in shares.items() if one != "ours"),
            "ratio",
        )
    return metrics, found


def _metrics(
    standard: Case, gpus: Rates, cases: dict[str, Rates], shares: Rates, bound: float
) -> dict[str, tuple[float, str]]:
    best = {
        case: max(r for name, r in one.items() if name != "ours") for case, one in cases.items()
    }
    ours, other = cases[standard.name()]["ours"], best[standard.name()]
    lost = [case for case, one in cases.items() if one["ours"] < best[case]]
    return {
        "gpus_ratio_dedicated": (standard.models / gpus["ours"], "ratio"),
        "gpus_ours": (gpus["ours"], "GPUs"),
        "rate_ours": (ours, "1/s"),
        "in_time_ours": (shares["ours"], "ratio"),
        "in_time_fixed": (shares["fixed"], "ratio"),
        "rate_over_best_baseline": (ours / other if other else 0.0, "ratio"),
        "rate_bound": (bound, "1/s"),
        "rate_over_bound": (ours / bound if bound else 0.0, "ratio"),
        "cases_lost": (float(len(lost)), "cases"),
    }


if __name__ == "__main__":
    main()
