"""Histories by the dozen: clients of several at once at the same replicas, which may be killed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from random import Random
from typing import TYPE_CHECKING

from bench.saved.histories.lines import LIMIT_S, Contexts, Lines, Replica
from bench.saved.histories.story import CALLS, CLIENTS, NAMES, Story
from tests.kit.breaks.linearizable import ILLEGAL, OK, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.kit.servers.registryserver import Server

TOGETHER = 4
"""Histories that are made at the same time."""

LOSSES = 0.08
"""The share of calls that get no answer, kills aside."""


@dataclass
class Figures:
    """What was seen; `wrong` are histories that no order of their calls explains."""

    histories: int = 0
    undecided: int = 0
    calls: int = 0
    lost: int = 0
    kills: int = 0
    cuts: int = 0
    wrong: list[Story] = field(default_factory=list)

    def count(self, other: Figures) -> Figures:
        """These and the others."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        return self

    def add(self, stories: Sequence[Story]) -> None:
        """Have them judged. Raises KybernateError where there is no checker."""
        for story, verdict in zip(stories, judge([one.calls for one in stories]), strict=True):
            self.histories += 1
            self.calls += len(story.calls)
            self.lost += story.lost
            if verdict == ILLEGAL:
                self.wrong.append(story)
            self.undecided += verdict not in (OK, ILLEGAL)


class Rounds:
    """Replicas of one registry that run, and rounds of histories on them."""

    def __init__(
        self,
        servers: Sequence[Server],
        tls: Path,
        seed: int,
        off_ms: int = 0,
        limit_s: float = LIMIT_S,
    ) -> None:
        """`off_ms`: as a Story has it; `limit_s`: as Lines have it."""
        self._replicas = [Replica(one) for one in servers]
        self._contexts = Contexts(tls, NAMES)
        self._seed, self._off_ms, self._limit_s = seed, off_ms, limit_s
        self.figures = Figures()

    def settle(self) -> None:
        """Say of a new database that nothing was before."""
        self._replicas[0].server.client().settle("new")

    def run(
        self, histories: int, kill_every: int, enough: Callable[[Figures], bool] = lambda _: False
    ) -> Figures:
        """So many histories, or until it is `enough`; in every so-manieth round one replica is
        killed (0: never)."""
        made = 0
        with ThreadPoolExecutor(TOGETHER * CLIENTS + 1) as pool:
            while made < histories and not enough(self.figures):
                number, count = made // TOGETHER, min(TOGETHER, histories - made)
                kills = kill_every > 0 and number % kill_every == kill_every - 1
                self.figures.add(self._round(pool, number, count, kills=kills))
                made += count
        return self.figures

    def _round(
        self, pool: ThreadPoolExecutor, number: int, count: int, *, kills: bool
    ) -> list[Story]:
        names = [f"h{number}-{one}" for one in range(count)]
        stories = [Story(name, f"{self._seed} {name}", LOSSES, self._off_ms) for name in names]
        lines = [
            Lines(self._replicas, self._contexts, self._limit_s) for _ in range(count * CLIENTS)
        ]
        for story, line in zip(stories, lines, strict=False):
            story.begin(line)
        work = [
            pool.submit(story.client, line, client)
            for (story, client), line in zip(_each(stories), lines, strict=True)
        ]
        over = threading.Event()
        killer = pool.submit(self._kill, stories, number, over) if kills else None
        try:
            for one in work:
                one.result()
        finally:
            over.set()
            if killer is not None:
                killer.result()
            for line in lines:
                line.close()
        return stories

    def _kill(self, stories: Sequence[Story], number: int, over: threading.Event) -> None:
        """Kill a replica after a part of all calls, and start it again."""
        random = Random(f"{self._seed} kill {number}")
        after = random.uniform(0.1, 0.7) * len(stories) * CLIENTS * CALLS
        while sum(len(one.calls) for one in stories) < after and not over.is_set():
            time.sleep(0.001)
        random.choice(self._replicas).die()
        self.figures.kills += 1


def _each(stories: Sequence[Story]) -> Iterator[tuple[Story, int]]:
    for story in stories:
        for client in range(CLIENTS):
            yield story, client
