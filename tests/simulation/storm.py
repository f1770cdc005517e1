"""One schedule: agents live and die, until the weather clears and all must work."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.kit.machine import Elsewhere
from tests.simulation.between import Between
from tests.simulation.life import BEGIN, PAID_OFF, Life
from tests.simulation.misfortunes import Misfortunes
from tests.simulation.plan import WEATHER_CLEARS, draw_pair, draw_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.plan import Plan

PAIRS = ("pair", "again", "moves")
"""Kinds of schedules with two nodes."""

_TICK = 0.4
_PATIENCE = 150.0
"""Seconds from the clearing up in which all is served, but for what swaps cost."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule came to. `kills` of the agent; `steps` are changes of seats' states."""

    kind: str
    seed: int
    kills: int
    steps: int
    events: int
    violations: tuple[str, ...]


def run(seed: int, kind: str = "storm", say: Callable[[str], None] | None = None) -> Outcome:
    """Play the schedule of this seed."""
    plans = draw_pair(seed, kind) if kind in PAIRS else (draw_plan(seed, kind),)
    return Storm(plans, say).run()


class Storm:
    """Plans as they are played: one node's, or two nodes' with much in common."""

    def __init__(self, plans: Sequence[Plan], say: Callable[[str], None] | None) -> None:
        elsewhere = Elsewhere(forgives=plans[0].lose_tail) if len(plans) > 1 else None
        self.lives = [Life(plan, say, elsewhere) for plan in plans]
        self._misfortunes = [Misfortunes(life) for life in self.lives]
        self._between = Between(self.lives[0], self.lives[-1])
        self._calm_since: dict[str, float] = {}
        for life in self.lives:
            life.joined = partial(self._joined, life)
            life.other = next((one for one in self.lives if one is not life), None)

    def run(self) -> Outcome:
        """Live and die until it is over. The same whatever was played before: retries draw their
        jitter from what all of a process draw from."""
        random.seed(self.lives[0].plan.seed)
        found: list[str] = []
        catcher = _Catcher(found)
        logger = logging.getLogger("nodeagent")
        logger.addHandler(catcher)
        try:
            self._play()
        finally:
            logger.removeHandler(catcher)
        for life in self.lives:
            life.end()
            found += [*life.found, *life.machine.breaches]
        return Outcome(
            self.lives[0].plan.kind,
            self.lives[0].plan.seed,
            sum(life.kills for life in self.lives),
            sum(life.watch.steps for life in self.lives),
            self._between.played + sum(one.played for one in self._misfortunes),
            tuple(dict.fromkeys(found)),
        )

    def _play(self) -> None:
        for life, misfortunes in zip(self.lives, self._misfortunes, strict=True):
            life.begin(partial(self._begin, life, misfortunes))
        while not any(life.over for life in self.lives):
            # Of nodes that have an event at the same time, the first in the list comes first.
            min(self.lives, key=Life.due).turn()

    def _begin(self, life: Life, misfortunes: Misfortunes) -> None:
        for pod in life.plan.pods:
            life.cluster.create(pod)
        for event in life.plan.events:
            life.machine.later(event.at, partial(misfortunes.play, event))
        for event in life.plan.between:
            self._between.play(event, BEGIN + event.at)
        life.machine.later(WEATHER_CLEARS, partial(self._calm_down, life))
        life.machine.later(0.0, partial(self._tick, life))

    def _joined(self, life: Life) -> None:
        if life.plan.node in self._calm_since:
            self._clear_up(life)

    # --- the end ----------------------------------------------------------------------------------

    def _calm_down(self, life: Life) -> None:
        life.note("THE WEATHER CLEARS")
        self._calm_since[life.plan.node] = life.loop.time()
        life.machine.rates.clear()
        life.machine.crash_at, life.machine.cut_off = None, False
        life.machine.lost.clear()
        life.refused.clear()
        life.watch.count_from_here()
        self._clear_up(life)

    def _clear_up(self, life: Life) -> None:
        agent = life.cluster.agent
        if agent is None:
            return
        life.cluster.report()
        agent.operators.undrain_node()
        for uid in agent.node.seats.keys() - life.moving:
            agent.operators.let_stay(uid)
            agent.operators.ask_for_tier(uid, None)

    def _tick(self, life: Life) -> None:
        life.machine.later(_TICK, partial(self._tick, life))
        now = life.loop.time()
        life.cluster.tick(now)
        # The weather clears later where no agent is up when it is to.
        if len(self._calm_since) == len(self.lives):
            self._see_all_served(life, now - max(self._calm_since.values()))

    def _see_all_served(self, life: Life, waited: float) -> None:
        proxy = life.proxies[0]
        unserved = life.watch.unserved()
        for pod in unserved:
            idle = not proxy.waiting.get(pod.uid) and not proxy.in_flight.get(pod.uid)
            if idle and not pod.deleting and proxy.loop is not None:
                proxy.request(pod.uid, 0.05, life.loop.time())
        if all(not one.watch.unserved() and one.watch.quiet() for one in self.lives):
            for one in self.lives:
                one.watch.look_around()
                one.over = True
        elif waited >= _PATIENCE + PAID_OFF:
            for pod in unserved:
                sentence = f"{pod.plan.name} is not served: {life.watch.describe(pod.uid)}"
                life.found.append(sentence)
            life.found += filter(None, (one.watch.restless() for one in self.lives))
            life.over = True


class _Catcher(logging.Handler):
    """Errors that the agent only logs are findings too."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._found.append(f"logged: {record.getMessage()}: {error!r}")
