"""`python -m tests.simulation`: many schedules on all cores, or one of them with its trace."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import multiprocessing
import os
import sys
import time
import warnings
from dataclasses import dataclass, field

from tests.simulation.storm import PAIRS, Outcome, run

PAIR, AGAIN, MOVES = PAIRS
_KINDS = {
    "storm": "--nodes 1",
    PAIR: "--nodes 2",
    AGAIN: "--again",
    MOVES: "--moves",
    "kills": "--kills 1",
}
_CHUNK = 250
_TELL_EVERY = 15.0


@dataclass(slots=True)
class Sum:
    """All outcomes together. `pairs` are the schedules of two nodes."""

    schedules: int = 0
    pairs: int = 0
    kills: int = 0
    steps: int = 0
    events: int = 0
    bad: list[Outcome] = field(default_factory=list)

    def add(self, other: Sum) -> None:
        """Also these."""
        self.schedules += other.schedules
        self.pairs += other.pairs
        self.kills += other.kills
        self.steps += other.steps
        self.events += other.events
        self.bad += other.bad


def play(job: tuple[str, int, int]) -> Sum:
    """The schedules of these seeds."""
    kind, first, count = job
    total = Sum()
    # An agent that was killed leaves a heap of cycles: once in a while is enough, and not through
    # all that was there before.
    gc.disable()
    gc.freeze()
    for seed in range(first, first + count):
        outcome = run(seed, kind)
        total.add(Sum(1, kind in PAIRS, outcome.kills, outcome.steps, outcome.events))
        if outcome.violations:
            total.bad.append(outcome)
        if seed % 25 == 0:
            gc.collect()
    gc.unfreeze()
    gc.enable()
    return total


def quiet() -> None:
    """What a killed agent leaves behind complains when it is collected: that is its right."""
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore")
    logging.getLogger("nodeagent").setLevel(logging.ERROR)
    logging.getLogger("nodeagent").propagate = False


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--kills", type=int, help="only kills of the agent, at least this many")
    parser.add_argument("--nodes", type=int, choices=(1, 2), help="only schedules of so many nodes")
    parser.add_argument("--moves", action="store_true", help="of two nodes, with moves between")
    parser.add_argument("--again", action="store_true", help="of two nodes, successors are deleted")
    parser.add_argument("--seed", type=int, help="the first seed; with --trace the only one")
    parser.add_argument("--trace", action="store_true", help="tell what happens in one schedule")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    quiet()
    kinds = {None: ("storm", *PAIRS), 1: ("storm",), 2: (PAIR,)}[options.nodes]
    kinds = (MOVES,) if options.moves else (AGAIN,) if options.again else kinds
    kinds = ("kills",) if options.kills else kinds
    if options.trace:
        outcome = run(options.seed or 0, kinds[0], print)
        print(*(outcome.violations or ("no violation",)), sep="\n")
        raise SystemExit(bool(outcome.violations))
    raise SystemExit(bool(_many(options, kinds)))


def _many(options: argparse.Namespace, kinds: tuple[str, ...]) -> int:
    began, total = time.monotonic(), Sum()
    first = dict.fromkeys(kinds, options.seed or 0)
    turns = itertools.cycle(kinds)
    told = began
    wanted = options.kills or options.schedules
    # Few schedules are of all kinds, too.
    most = min(_CHUNK, -(-wanted // len(kinds)))
    with multiprocessing.Pool(options.jobs, quiet) as pool:
        while (total.kills if options.kills else total.schedules) < wanted:
            left = wanted - (total.kills if options.kills else total.schedules)
            jobs = []
            while left > 0:
                kind, count = next(turns), min(most, left)
                jobs.append((kind, first[kind], count))
                first[kind], left = first[kind] + count, left - count
            for part in pool.imap_unordered(play, jobs):
                total.add(part)
                _show(part)
                if time.monotonic() >= told + _TELL_EVERY:
                    told = time.monotonic()
                    _progress(total, wanted, told - began)
    seconds = time.monotonic() - began
    _report(options, kinds, total, seconds)
    return len(total.bad)


def _progress(total: Sum, wanted: int, seconds: float) -> None:
    print(
        f"{total.schedules} schedules and {total.kills} kills of {wanted} asked for in "
        f"{seconds:.0f} s, {len(total.bad)} with violations",
        file=sys.stderr,
        flush=True,
    )


def _show(part: Sum) -> None:
    for outcome in part.bad:
        print(f"{_replay(outcome)}: {'; '.join(outcome.violations)[:400]}", flush=True)


def _replay(outcome: Outcome) -> str:
    return f"{_KINDS[outcome.kind]} --seed {outcome.seed}"


def _report(
    options: argparse.Namespace, kinds: tuple[str, ...], total: Sum, seconds: float
) -> None:
    print(
        f"{total.schedules} schedules, {total.pairs} of them of two nodes, {total.kills} kills of "
        f"the agent, {total.steps} changes of state in {seconds:.0f} s; {len(total.bad)} schedules "
        "with violations"
    )
    if total.bad:
        print(f"replay one: python -m tests.simulation {_replay(total.bad[0])} --trace")
    if options.json:
        line = {
            "bench": "chaos",
            "mode": "+".join(kinds),
            "schedules": total.schedules,
            "pairs": total.pairs,
            "violations": sum(len(outcome.violations) for outcome in total.bad),
            "kills": total.kills,
            "steps": total.steps,
            "events": total.events,
            "seconds": round(seconds, 1),
            "schedules_per_s": round(total.schedules / seconds, 1),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
