"""`python -m bench.policy`: how many GPUs a policy needs, and which rate eight GPUs sustain.

The standard case: 32 models of 8, 16, 40 and 70 GB, one 80 GB GPU for each if nobody shares;
conversations as Azure's, models by Zipf's law; swaps at 20 GB/s each way. A rate is sustained if
99 % of the requests, on average over the seeds, begin within 2 s and twice their model's own wake.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.policy.baselines import BASELINES
from bench.policy.workload import Case, trace_of
from bench.report import emit, say, skip
from kybernate.core.simulate.outcome import POLICIES, gpus_needed, simulate
from kybernate.core.simulate.world import Costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kybernate.core.simulate.world import Policy, World

DATA = Path(__file__).parents[3] / "shared/data/azure-llm/AzureLLMInferenceTrace_conv.csv.gz"
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


@dataclass(frozen=True)
class Trial:
    """A workload on so many GPUs, at these rates, with these seeds."""

    case: Case
    gpus: int
    seeds: Sequence[int]
    rates: Sequence[float]
    data: Path


def sustained(trial: Trial, policy: Callable[[World], Policy]) -> float:
    """The highest of the rates up to which this policy is in time."""
    best = 0.0
    for rate in trial.rates:
        case = replace(trial.case, rate=rate)
        traces = [trace_of(case, seed, trial.data) for seed in trial.seeds]
        shares = [simulate(one, trial.gpus, Costs(), policy).in_time for one in traces]
        if statistics.mean(shares) < _SHARE:
            break
        best = rate
    return best


def needed(
    case: Case, policy: Callable[[World], Policy], seeds: Iterable[int], data: Path
) -> float:
    """GPUs for the case, the most of any seed; one for each model where fewer never do."""
    found = [gpus_needed(trace_of(case, s, data), Costs(), policy, _SHARE) for s in seeds]
    return max(case.models if one is None else one for one in found)


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench.policy", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--grid", action="store_true", help="the other workloads, too")
    parser.add_argument("--most", type=float, default=RATES[-1], help="the highest rate to try")
    parser.add_argument("--poisson", action="store_true", help="needs no data: random arrivals")
    parser.add_argument("--data", type=Path, default=DATA, help="Azure's conversations, gzipped")
    args = parser.parse_args(argv)
    if not args.poisson and not args.data.exists():
        skip("policy", f"{args.data} is not here; name the trace of conversations by --data")
        return 0
    seeds, began = range(args.seeds), time.process_time()
    standard = Case(cv=1.0) if args.poisson else Case()
    rates = [rate for rate in RATES if rate <= args.most]
    gpus = {name: needed(standard, p, seeds, args.data) for name, p in ALL.items()}
    for name, count in gpus.items():
        say(f"  {name:16} needs {count:g} GPUs for the standard case at 0.5 requests/s")
    lost = 0
    first: dict[str, float] = {}
    for case in GRID if args.grid else (standard,):
        trial = Trial(case, args.gpus, seeds, rates, args.data)
        found = {n: sustained(trial, p) for n, p in ALL.items()}
        first = first or found
        others = max(rate for name, rate in found.items() if name != "ours")
        lost += found["ours"] < others
        say(f"  {case.name()}: " + ", ".join(f"{n} {r:g}/s" for n, r in found.items()))
    best = max(rate for name, rate in first.items() if name != "ours")
    metrics = {
        "gpus_ratio_dedicated": (32 / gpus["ours"], "ratio"),
        "gpus_ours": (gpus["ours"], "GPUs"),
        "rate_ours": (first["ours"], "1/s"),
        "rate_over_best_baseline": (first["ours"] / best if best else 0.0, "ratio"),
        "cases_lost": (float(lost), "cases"),
        "cpu_s": (time.process_time() - began, "s"),
    }
    emit("policy", metrics, {"gpus": gpus, "rates": first}, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
