"""`python -m bench.placement.policy`: GPUs that a policy needs, and the rate that eight sustain.

The standard case: 32 models of 8, 16, 40 and 70 GB, one 80 GB GPU for each if nobody shares;
conversations as Azure's, models by Zipf's law; swaps at 20 GB/s each way. A rate is sustained if
99 % of the requests, on average over the seeds, begin within 2 s and twice their model's own wake.
"""

from __future__ import annotations

import resource
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.placement.policy.baselines import BASELINES
from bench.placement.policy.bound import late
from bench.placement.policy.workload import Case, trace_of
from bench.report import emit, say, skip
from kybernate.core.simulate.outcome import POLICIES, gpus_needed, late_share, simulate
from kybernate.core.simulate.world import Costs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kybernate.core.simulate.trace import Trace

DATA = Path(__file__).parents[4] / "shared/data/azure-llm/AzureLLMInferenceTrace_conv.csv.gz"
ALL = {"ours": POLICIES["ours"], **BASELINES}
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
_SHARE = 0.99
_FINE = 0.25
_STEPS = 256


@dataclass(frozen=True)
class Trial:
    """A workload on so many GPUs, at these rates, with these seeds."""

    case: Case
    gpus: int
    seeds: Sequence[int]
    rates: Sequence[float]
    data: Path


def sustained(trial: Trial, name: str) -> float:
    """The highest of the rates that the policy of this name sustains, found by halving: who
    sustains one is taken to sustain those below it. 0 if it sustains none."""
    low, high = 0, len(trial.rates)
    middle = high  # Where the highest is too much, that is soon known.
    while low < high:
        if sustains(trial, trial.rates[middle - 1], name):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return trial.rates[low - 1] if low else 0.0


def sustains(trial: Trial, rate: float, name: str) -> bool:
    """Whether enough is in time at this rate, on average over the seeds; once too much is late the
    rest isn't played."""
    spare = (1 - _SHARE) * len(trial.seeds) + 1e-9
    for seed in trial.seeds:
        trace = trace_of(replace(trial.case, rate=rate), seed, trial.data)
        spare -= late_share(trace, trial.gpus, Costs(), ALL[name], spare)
        if spare < 0:
            return False
    return True


def in_time(trial: Trial, rate: float, name: str) -> float:
    """The share of requests in time at this rate, on average over the seeds; 0 at no rate."""
    if not rate:
        return 0.0
    traces = [trace_of(replace(trial.case, rate=rate), s, trial.data) for s in trial.seeds]
    policy = {**ALL, **POLICIES}[name]
    return statistics.mean(simulate(one, trial.gpus, Costs(), policy).in_time for one in traces)


def needed(case: Case, name: str, seeds: Iterable[int], data: Path) -> float:
    """GPUs for the case, the most of any seed; one for each model where fewer never do."""
    most = 1
    for seed in seeds:
        trace = trace_of(case, seed, data)
        most = gpus_needed(trace, Costs(), ALL[name], _SHARE, most) or case.models
    return most


def beyond(trial: Trial, sustained: float) -> float | None:
    """A rate that nobody sustains who interrupts nothing, since the bound in hindsight says so for
    every seed: the lowest found by halving fine steps above a rate that is sustained. None above
    64/s."""

    def over(steps: int) -> bool:
        case = replace(trial.case, rate=steps * _FINE)
        traces = (trace_of(case, seed, trial.data) for seed in trial.seeds)
        return all(_too_late(one, trial.gpus) for one in traces)

    low = max(1, int(sustained / _FINE))
    high = 2 * low
    while not over(high):
        if high >= _STEPS:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if over(middle) else (middle, high)
    return high * _FINE


def _too_late(trace: Trace, gpus: int) -> bool:
    enough = (1 - _SHARE) * len(trace.at)
    return late(trace, gpus, Costs(), enough) > enough


def _cpu_s() -> float:
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
@click.option("--seeds", "count", default=5, help="Traces of each case.")
@click.option("--gpus", "available", default=8, help="GPUs for which the rate is sought.")
@click.option("--grid", is_flag=True, help="The other workloads, too.")
@click.option("--most", default=RATES[-1], help="The highest rate to try.")
@click.option("--poisson", is_flag=True, help="Needs no data: random arrivals.")
@click.option("--jobs", default=1, help="Processes.")
@click.option("--data", type=click.Path(path_type=Path), default=DATA, help="The conversations.")
def main(  # noqa: PLR0913 - its options
    *,
    as_json: bool,
    count: int,
    available: int,
    grid: bool,
    most: float,
    poisson: bool,
    jobs: int,
    data: Path,
) -> None:
    """Set the product's policy beside others', on the same traces."""
    if not poisson and not data.exists():
        skip("policy", f"{data} is not here; name the trace of conversations by --data")
        return
    seeds = range(count)
    standard = Case(cv=1.0) if poisson else Case()
    trials = [
        Trial(case, available, seeds, [rate for rate in RATES if rate <= most], data)
        for case in (GRID if grid else (standard,))
    ]
    with ProcessPoolExecutor(jobs) as pool:
        asked = {name: pool.submit(needed, standard, name, seeds, data) for name in ALL}
        plays = [{name: pool.submit(sustained, trial, name) for name in ALL} for trial in trials]
        gpus = {name: one.result() for name, one in asked.items()}
        for name, wanted in gpus.items():
            say(f"  {name:16} needs {wanted:g} GPUs for the standard case at 0.5 requests/s")
        rates = []
        for trial, played in zip(trials, plays, strict=True):
            rates.append({name: one.result() for name, one in played.items()})
            told = ", ".join(f"{name} {rate:g}/s" for name, rate in rates[-1].items())
            say(f"  {trial.case.name()}: {told}")
        ours = rates[0]["ours"]
        kinds = {kind: pool.submit(in_time, trials[0], ours, kind) for kind in ("ours", "fixed")}
        shares = {kind: one.result() for kind, one in kinds.items()}
        told = ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items())
        say(f"  in time on {available} GPUs at {ours:g}/s: {told}")
        least = pool.submit(beyond, trials[0], ours).result()
    say(f"  nobody sustains, by the bound in hindsight: {least or 'unknown'}/s")
    best = [max(rate for name, rate in one.items() if name != "ours") for one in rates]
    metrics = {
        "gpus_ratio_dedicated": (standard.models / gpus["ours"], "ratio"),
        "gpus_ours": (gpus["ours"], "GPUs"),
        "rate_ours": (ours, "1/s"),
        "in_time_ours": (shares["ours"], "ratio"),
        "in_time_fixed": (shares["fixed"], "ratio"),
        "rate_over_best_baseline": (ours / best[0] if best[0] else 0.0, "ratio"),
        "rate_bound": (least or 0.0, "1/s"),
        "rate_over_bound": (ours / least if least else 0.0, "ratio"),
        "cases_lost": (
            float(sum(one["ours"] < b for one, b in zip(rates, best, strict=True))),
            "cases",
        ),
        "cpu_s": (_cpu_s(), "s"),
    }
    cases = {trial.case.name(): found for trial, found in zip(trials, rates, strict=True)}
    emit("policy", metrics, {"gpus": gpus, "rates": cases}, as_json=as_json)


if __name__ == "__main__":
    main()
