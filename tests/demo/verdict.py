"""The verdict: what must have been true of a demo, judged from what was recorded. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SWAPS_WANTED = 20
REFUSED_ALLOWED = 0.01
"""Share of requests that may be answered 429."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request.

    `status` is 0 if there was no answer. `counter` is what the model counted, `problem` a sentence
    if the answer was not what it must be. Times in milliseconds; `held` is the proxy's word.
    """

    model: str
    status: int
    total: float
    held: float = 0.0
    counter: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Wake:
    """A seat that was woken, on a group of so many GPUs; `ms` by the agent's clock."""

    model: str
    node: str
    group: str
    gpus: int
    ms: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that the verdict rests on. `overlaps` are moments of two seats on one GPU, in words."""

    asked: int
    answers: Sequence[Answer]
    wakes: Sequence[Wake]
    overlaps: Sequence[str]
    witnessed: int
    """Lines of the drivers' logs that were checked for overlaps."""


@dataclass(frozen=True, slots=True)
class Check:
    """One demand, whether it was met, and the figures."""

    name: str
    passed: bool
    detail: str


def judge(outcome: Outcome) -> list[Check]:
    """All checks; the demo passed if all did."""
    return [
        _answered(outcome),
        _refused(outcome),
        _swapped(outcome),
        _wide(outcome),
        _stateful(outcome),
        _alone(outcome),
    ]


def figures(outcome: Outcome) -> dict[str, str]:
    """What the summary names besides the checks."""
    wakes = [wake.ms for wake in outcome.wakes]
    held = [answer.held for answer in outcome.answers if answer.status == 200 and answer.held]
    total = [answer.total for answer in outcome.answers if answer.status == 200]
    return {
        "swaps": str(len(wakes)),
        "wake p50 / p99": _pair(wakes),
        "request p50 / p99": _pair(total),
        "requests that waited for a seat": f"{len(held)}, p50 / p99 {_pair(held)}",
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values don't exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _pair(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return f"{percentile(values, 0.5):.0f} / {percentile(values, 0.99):.0f} ms"


def _answered(outcome: Outcome) -> Check:
    counts = Counter(answer.status for answer in outcome.answers)
    good, refused = counts.pop(200, 0), counts.pop(429, 0)
    lost = outcome.asked - len(outcome.answers)
    others = ", ".join(f"{n} times {status or 'no answer'}" for status, n in sorted(counts.items()))
    detail = f"{good} of {outcome.asked} answered 200"
    if others or lost:
        first = next((a.problem for a in outcome.answers if a.status not in (200, 429)), "")
        detail += f"; {others or 'none'} otherwise, {lost} lost. {first}".rstrip()
    return Check("every request answered", good + refused == outcome.asked and good > 0, detail)


def _refused(outcome: Outcome) -> Check:
    refused = sum(answer.status == 429 for answer in outcome.answers)
    share = refused / outcome.asked if outcome.asked else 0.0
    return Check("few refused (429)", share <= REFUSED_ALLOWED, f"{refused} ({share:.1%})")


def _swapped(outcome: Outcome) -> Check:
    number = len(outcome.wakes)
    return Check(f"at least {SWAPS_WANTED} swaps", number >= SWAPS_WANTED, str(number))


def _wide(outcome: Outcome) -> Check:
    number = sum(wake.gpus == 2 for wake in outcome.wakes)
    return Check("some of them on two GPUs", number > 0, str(number))


def _stateful(outcome: Outcome) -> Check:
    problems = [answer.problem for answer in outcome.answers if answer.status == 200]
    problems = [problem for problem in problems if problem] + _counter_problems(outcome.answers)
    good = sum(answer.status == 200 and not answer.problem for answer in outcome.answers)
    detail = f"{good} answers checked" if not problems else f"{len(problems)}: {problems[0]}"
    return Check("no counter or checksum wrong", not problems and good > 0, detail)


def _counter_problems(answers: Sequence[Answer]) -> list[str]:
    """A model counts its answers: each number once, and none missing but for failed requests."""
    problems = []
    for model in sorted({answer.model for answer in answers}):
        mine = [answer for answer in answers if answer.model == model]
        counted = [answer.counter for answer in mine if answer.counter is not None]
        if not counted:
            continue
        twice = [number for number, times in Counter(counted).items() if times > 1]
        if twice:
            problems.append(f"{model} counted {min(twice)} twice: its state was lost or restored")
        missing = max(counted) - min(counted) + 1 - len(set(counted))
        failed = sum(answer.status not in (200, 429) for answer in mine)
        if missing > failed:
            problems.append(f"{model} skipped {missing} numbers, with {failed} failed requests")
    return problems


def _alone(outcome: Outcome) -> Check:
    detail = f"{outcome.witnessed} lines of the drivers' logs"
    if outcome.overlaps:
        detail = f"{len(outcome.overlaps)}: {outcome.overlaps[0]}"
    passed = not outcome.overlaps and outcome.witnessed > 0
    return Check("never two seats on one GPU", passed, detail)
