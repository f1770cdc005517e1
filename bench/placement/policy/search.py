"""What is asked of a policy: the rate that so many GPUs sustain, and how many GPUs a rate needs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bench.placement.policy.baselines import BASELINES
from bench.placement.policy.bound import late
from bench.placement.policy.workload import Case, trace_of
from kybernate.core.simulate.outcome import POLICIES, gpus_needed, late_share, simulate
from kybernate.core.simulate.world import Costs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kybernate.core.simulate.trace import Trace

ALL = {**BASELINES, "ours": POLICIES["ours"]}
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
    costs: Costs = field(default_factory=Costs)


def sustained(trial: Trial, name: str, near: float | None = None) -> float:
    """The highest of the rates that the policy of this name sustains: who sustains one is taken to
    sustain those below it. 0 if it sustains none. Sought by halving, or step by step from the rate
    that is said to be `near`: to play what is sustained takes longest."""
    low, high = 0, len(trial.rates)
    middle = high  # Where the highest is too much, that is soon known.
    if near is not None:
        middle = 1 + max((n for n, rate in enumerate(trial.rates) if rate <= near), default=0)
    while low < high:
        if sustains(trial, trial.rates[middle - 1], name):
            low = middle
        else:
            high = middle - 1
        halved = (low + high + 1) // 2
        middle = halved if near is None else low + 1 if low == middle else high
    return trial.rates[low - 1] if low else 0.0


def sustains(trial: Trial, rate: float, name: str) -> bool:
    """Whether enough is in time at this rate, on average over the seeds; once too much is late the
    rest isn't played."""
    spare = (1 - _SHARE) * len(trial.seeds) + 1e-9
    for seed in trial.seeds:
        trace = trace_of(replace(trial.case, rate=rate), seed, trial.data)
        spare -= late_share(trace, trial.gpus, trial.costs, ALL[name], spare)
        if spare < 0:
            return False
    return True


def in_time(trial: Trial, rate: float, name: str) -> float:
    """The share of requests in time at this rate, on average over the seeds; 0 at no rate."""
    if not rate:
        return 0.0
    traces = [trace_of(replace(trial.case, rate=rate), s, trial.data) for s in trial.seeds]
    policy = {**ALL, **POLICIES}[name]
    return statistics.mean(simulate(one, trial.gpus, trial.costs, policy).in_time for one in traces)


def needed(trial: Trial, name: str) -> float:
    """GPUs for the case, the most of any seed; one for each model where fewer never do."""
    most = 1
    for seed in trial.seeds:
        trace = trace_of(trial.case, seed, trial.data)
        most = gpus_needed(trace, trial.costs, ALL[name], _SHARE, most) or trial.case.models
    return most


def beyond(trial: Trial, sustained: float) -> float | None:
    """A rate that nobody sustains who interrupts nothing, since the bound in hindsight says so for
    every seed: the lowest found by halving fine steps above a rate that is sustained. None above
    64/s."""

    def over(steps: int) -> bool:
        case = replace(trial.case, rate=steps * _FINE)
        traces = (trace_of(case, seed, trial.data) for seed in trial.seeds)
        return all(_too_late(one, trial) for one in traces)

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


def _too_late(trace: Trace, trial: Trial) -> bool:
    enough = (1 - _SHARE) * len(trace.at)
    return late(trace, trial.gpus, trial.costs, enough) > enough
