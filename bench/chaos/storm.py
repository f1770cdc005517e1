"""One schedule: agents live and die, until the weather clears and all must work."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bench.chaos.life import Life
from bench.chaos.misfortunes import Misfortunes
from bench.chaos.plan import WEATHER_CLEARS, draw_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.chaos.plan import Plan

_TICK = 0.4
_PATIENCE = 150.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule came to. `kills` of the agent; `steps` are changes of seats' states."""

    seed: int
    kills: int
    steps: int
    events: int
    violations: tuple[str, ...]


def run(seed: int, kind: str = "storm", say: Callable[[str], None] | None = None) -> Outcome:
    """Play the schedule of this seed."""
    return Storm(draw_plan(seed, kind), say).run()


class Storm:
    """A plan as it is played."""

    def __init__(self, plan: Plan, say: Callable[[str], None] | None) -> None:
        self.life = Life(plan, say)
        self._plan = plan
        self._misfortunes = Misfortunes(self.life)
        self._calm_since: float | None = None
        self.life.joined = self._joined

    def run(self) -> Outcome:
        """Live and die until it is over."""
        life = self.life
        catcher = _Catcher(life.found)
        logger = logging.getLogger("nodeagent")
        logger.addHandler(catcher)
        try:
            life.begin(self._begin)
            while not life.over:
                life.turn()
            life.end()
        finally:
            logger.removeHandler(catcher)
        found = tuple(dict.fromkeys([*life.found, *life.machine.breaches]))
        seed, played = self._plan.seed, self._misfortunes.played
        return Outcome(seed, life.kills, life.watch.steps, played, found)

    def _begin(self) -> None:
        life = self.life
        for pod in self._plan.pods:
            life.cluster.create(pod)
        for event in self._plan.events:
            life.machine.later(event.at, partial(self._misfortunes.play, event))
        life.machine.later(WEATHER_CLEARS, self._calm_down)
        life.machine.later(0.0, self._tick)

    def _joined(self) -> None:
        if self._calm_since is not None:
            self._clear_up()

    # --- the end ----------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        life = self.life
        life.note("THE WEATHER CLEARS")
        self._calm_since = life.loop.time()
        life.machine.rates.clear()
        life.machine.crash_at = None
        life.machine.lost.clear()
        life.refused.clear()
        life.watch.count_from_here()
        self._clear_up()

    def _clear_up(self) -> None:
        agent = self.life.cluster.agent
        if agent is None:
            return
        self.life.cluster.report()
        agent.undrain_node()
        for uid in tuple(agent.node.seats):
            agent.let_stay(uid)
            agent.ask_for_tier(uid, None)

    def _tick(self) -> None:
        life = self.life
        life.machine.later(_TICK, self._tick)
        now = life.loop.time()
        life.cluster.tick(now)
        if self._calm_since is not None and life.cluster.agent is not None:
            self._see_all_served(now - self._calm_since)

    def _see_all_served(self, waited: float) -> None:
        life, proxy = self.life, self.life.proxies[0]
        unserved = [pod for pod in life.cluster.pods.values() if not life.watch.settled(pod)]
        for pod in unserved:
            idle = not proxy.waiting.get(pod.uid) and not proxy.in_flight.get(pod.uid)
            if idle and not pod.deleting and proxy.loop is not None:
                proxy.request(pod.uid, 0.05, life.loop.time())
        done = not unserved and life.watch.quiet()
        if not done and waited < _PATIENCE:
            return
        for pod in unserved:
            sentence = f"{pod.plan.name} is not served: {life.watch.describe(pod.uid)}"
            life.found.append(sentence)
        if not unserved:
            life.watch.look_around()
        life.over = True


class _Catcher(logging.Handler):
    """Errors that the agent only logs are findings too."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._found.append(f"logged: {record.getMessage()}: {error!r}")
