"""Two replicas of the real controller carry out a work list of every kind, and the leader is killed
at random moments meanwhile; the end is compared with that of a run in which nobody is killed."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING

import click

from bench.operator.ends import compared, ends
from bench.operator.plane import plane, until
from bench.operator.worklist import KINDS, work
from bench.operator.world import World, stable
from bench.report import emit, median, say
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.operator.ends import Ends
    from bench.operator.plane import Plane
    from bench.operator.work import Item
    from tests.kit.servers.controllerserver import Controller

SETTINGS = {"api_timeout_s": "1", "agent_timeout_s": "1", "lease_s": "3"}
TAKES_S = 1.0
LEADS_S, END_S, SETTLED_S = 60.0, 120.0, 3.0
LONGEST_LIFE_S = 3.0
"""Seconds for which a leader lives at most."""
APART_S = 0.3
"""Seconds between two items of the calm run."""


class Run:
    """One namespace, and the work list in it."""

    def __init__(self, up: Plane, name: str, rounds: int) -> None:
        self._plane = up
        self.world = World(up, name)
        self.items = work(self.world, rounds)
        self._begun: list[Item] = []

    def begin(self, share: float = 1.0) -> None:
        """Ask for what is to be asked for by now."""
        for item in self.items[len(self._begun) : round(share * len(self.items))]:
            item.begin()
            self._begun.append(item)

    def tend(self) -> None:
        """What people do."""
        for item in self.left():
            if item in self._begun:
                with contextlib.suppress(KybernateError):
                    item.tend()

    def left(self) -> list[Item]:
        """Those that are not over."""
        return [item for item in self.items if not item.over()]

    def finish(self) -> tuple[list[Item], Ends]:
        """Wait for the rest: what isn't over, and how it ended."""
        end = time.monotonic() + END_S
        while self.left() and time.monotonic() < end:
            self.tend()
            time.sleep(0.1)
        return self.left(), stable(self.world, SETTLED_S, END_S, self._ends)

    def _ends(self) -> Ends:
        world = self.world
        return ends(
            ((plural, item) for (plural, _), item in [*world.objects.items()]),
            {key: tuple(uids) for key, uids in [*world.uids.items()]},
            world.scaled,
            [*self._plane.door.operations.values()],
            world.names(),
            world.namespace,
        )


def leader(replicas: Sequence[Controller]) -> Controller | None:
    """The one that acts now."""
    return next((one for one in replicas if one.leads()), None)


def calm(up: Plane, rounds: int) -> Ends:
    """Nobody is killed. Raises SystemExit if the list does not end even so."""
    run = Run(up, "calm", rounds)
    with run.world:
        for number in range(len(run.items)):
            run.begin((number + 1) / len(run.items))
            run.tend()
            time.sleep(APART_S)
        left, found = run.finish()
    if left:
        raise SystemExit(f"without any kill these do not end: {_names(left)}")
    return found


def killed(
    up: Plane, rounds: int, kills: int, replicas: Sequence[Controller], chance: random.Random
) -> tuple[list[Item], Ends, list[float]]:
    """What isn't over, the end, and the seconds from each kill to the next leader's first look."""
    run, gaps = Run(up, "killed", rounds), []
    died = 0.0
    with run.world:
        for number in range(kills):
            run.begin((number + 1) / kills)
            until(lambda: _tended(run, replicas), LEADS_S, "nobody leads")
            if died:
                gaps.append(time.monotonic() - died)
            live(run, chance.uniform(0.0, LONGEST_LIFE_S))
            one = leader(replicas)
            if one is not None:
                one.kill()
                died = time.monotonic()
                one.start(wait=False)
            say(f"kill {number + 1}: {len(run.left())} of {len(run.items)} are not over")
        left, found = run.finish()
    return left, found, gaps


def _tended(run: Run, replicas: Sequence[Controller]) -> bool:
    run.tend()
    return leader(replicas) is not None


def live(run: Run, seconds: float) -> None:
    """So long the leader lives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run.tend()
        time.sleep(min(0.1, max(0.0, end - time.monotonic())))


def _names(items: Sequence[Item]) -> str:
    return ", ".join(one.name for one in items)


def _tell(what: str, found: Sequence[object], show: Callable[[object], str] = str) -> None:
    for one in found:
        say(f"{what}: {show(one)}")


@click.command()
@click.option(
    "--kill", "kills", default=50, show_default=True, help="How often a leader is killed."
)
@click.option("--rounds", default=8, show_default=True, help="Of each kind so many are asked for.")
@click.option("--seed", default=16, show_default=True, help="Says when it is killed.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(kills: int, rounds: int, seed: int, as_json: bool) -> None:
    """Kill the leading controller again and again, and compare what becomes of its work."""
    chance = random.Random(seed)
    with plane() as up:
        up.door.takes = TAKES_S
        replicas = [up.replica(**SETTINGS) for _ in range(2)]
        for one in replicas:
            one.start(wait=False)
        until(lambda: leader(replicas) is not None, LEADS_S, "nobody leads")
        before = calm(up, rounds)
        say(f"without kills: {len(before.there)} things in the end")
        left, after, gaps = killed(up, rounds, kills, replicas, chance)
    found = compared(before, after)
    _tell("lost", [one.name for one in left])
    _tell("twice", found.twice)
    _tell("different", found.different)
    metrics = {
        "lost": (float(len(left)), "items"),
        "twice": (float(len(found.twice)), "acts"),
        "different": (float(len(found.different)), "things"),
        "kills": (float(kills), "kills"),
        "items": (float(rounds * len(KINDS)), "items"),
        "acts": (float(sum(before.done.values())), "acts"),
        "takeover_p50_s": (median(gaps or [0.0]), "s"),
        "takeover_max_s": (max(gaps or [0.0]), "s"),
    }
    emit("operator", metrics, {"name": "the same list without kills"}, as_json=as_json)
    if left or found.twice or found.different:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
