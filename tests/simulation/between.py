"""What a schedule has happen between two nodes: pods are succeeded elsewhere, by one or by two."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kybernate.core.artifacts.restores import RestoreWish
from kybernate.core.seat.operations import Kind
from kybernate.errors import KybernateError
from kybernate.types import PodUid, SeatState, Tier
from nodeagent.operations.record import Ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.operations.operations import Operations
    from tests.simulation.cluster import Pod
    from tests.simulation.life import Life
    from tests.simulation.plan import Event

_POLL = 0.2
_OFTEN, _LOOKS = 0.02, 250
"""Seconds between two looks whether a successor has its claim, and how many there are."""
_SOON, _STAYS = 0.1, 0.6
"""Seconds after its claim in which it is deleted, and how often the next one is on its node."""
_PATIENCE = 6
"""How many looks it takes a pod at most to be where it should be."""


class Between:
    """Plays events that concern two nodes. `played` counts them."""

    def __init__(self, here: Life, there: Life) -> None:
        self._lives = (here, there)
        self.played = 0
        self._numbers = 0

    def play(self, event: Event, now: float) -> None:
        """A pod of either node is concerned, whose own event loop this goes on in."""
        here, there = self._lives if int(event.draw * 100) % 2 else self._lives[::-1]
        here.at(now, partial(self._play, event, here, there))

    def _play(self, event: Event, here: Life, there: Life) -> None:
        self.played += 1
        draw = event.draw
        here.note(f"EVENT {event.kind} {draw:.2f}")
        pods = [p for p in here.cluster.pods.values() if p.begun and not p.deleting and not p.gone]
        pod = pods[int(draw * 1000) % len(pods)] if pods else None
        if event.kind == "cut-off":
            here.machine.cut_off = True
            here.machine.later(2 * draw, partial(setattr, here.machine, "cut_off", False))
        elif pod is not None and event.kind in ("move", "move-within"):
            self._move(here, pod, there if event.kind == "move" else here)
        elif pod is not None:
            to = [there, here] if event.kind == "rivals" else [there]
            self._sink(here, pod, to, 0 if event.kind == "succeed" else _PATIENCE, event)

    def _sink(self, here: Life, pod: Pod, to: list[Life], looks: int, event: Event) -> None:
        """To the object store, and then its successors come."""
        agent = here.cluster.agent
        seat = agent.node.seats.get(pod.uid) if agent else None
        if pod.deleting or pod.gone:
            return
        if looks and (seat is None or seat.state is not SeatState.PARKED_OBJECT):
            if agent is not None:
                agent.operators.ask_for_tier(pod.uid, Tier.OBJECT)
                agent.operators.send_away(pod.uid, "a test")
            here.machine.later(_POLL, partial(self._sink, here, pod, to, looks - 1, event))
            return
        self._succeed(here, pod, to, event)

    def _succeed(self, here: Life, pod: Pod, to: list[Life], event: Event) -> None:
        """It is deleted; meanwhile pods are there that are to go on from its state."""
        here.cluster.delete(pod, here.loop.time(), force=False)
        names = [self._successor(here, pod, life) for life in to]
        if event.kind == "again" and names[0]:
            uid, then = PodUid(f"uid-{names[0]}"), partial(self._again, here, pod, to[0], event)
            to[0].at(here.loop.time(), partial(self._once_claimed, to[0], uid, then, _LOOKS))

    def _once_claimed(
        self, there: Life, uid: PodUid, then: Callable[[PodUid], None], looks: int
    ) -> None:
        """As soon as the successor has a claim, or a little later; in the end anyhow."""
        agent = there.cluster.agent
        seat = agent.node.seats.get(uid) if agent else None
        if seat is not None and seat.saved.claimed:
            there.machine.later(_SOON * there.machine.rng.random(), partial(then, uid))
        elif looks:
            again = partial(self._once_claimed, there, uid, then, looks - 1)
            there.machine.later(_OFTEN, again)
        else:
            then(uid)

    def _again(self, here: Life, pod: Pod, there: Life, event: Event, uid: PodUid) -> None:
        """Its successor is deleted, whether it has gone on or not, and the next one comes."""
        gone = there.cluster.pods.get(uid)
        if gone is not None:
            there.cluster.delete(gone, there.loop.time(), force=False)
        self._successor(there, pod, there if event.draw < _STAYS else here)

    def _successor(self, here: Life, pod: Pod, life: Life) -> str:
        """The name of a new pod that waits there for the state of this one; empty if none can."""
        groups = life.plan.inventory.groups
        fit = [g for g in groups if len(g.gpus) == len(pod.plan.group.gpus)]
        if not fit:
            return ""
        # On its own node, other GPUs than its own if there are such.
        fit.sort(key=lambda group: group.gpus == pod.plan.group.gpus)
        self._numbers += 1
        name, wish = f"{pod.plan.name}-s{self._numbers}", RestoreWish(uid=pod.uid)
        plan = replace(pod.plan, name=name, group=fit[0], restore=wish)
        life.machine.elsewhere.successors.add(PodUid(f"uid-{name}"))
        life.at(here.loop.time(), partial(life.cluster.create, plan))
        return name

    # --- moves ------------------------------------------------------------------------------------

    def _move(self, here: Life, pod: Pod, there: Life) -> None:
        successor = self._successor(here, pod, there)
        if successor:
            here.moving.add(pod.uid)
            ask = Ask(Kind.MOVE, f"move-{successor}", pod.uid, successor=successor)
            here.machine.later(_POLL, partial(self._follow, here, pod, ask, asked=False))

    def _follow(self, here: Life, pod: Pod, ask: Ask, *, asked: bool) -> None:
        """Until the move has ended, over restarts of the agent; then its pod is deleted, as people
        are told to."""
        operations = here.operations
        known = operations.known(ended_too=True) if operations else []
        one = next((one for one in known if one.name == ask.name), None)
        over = pod.gone or (asked and operations is not None and one is None)
        if one is not None and one.ended:
            over = True
            here.note(f"{one}: {one.state}: {one.sentence}")
        if over:
            self._let_stay(here, pod)
            self._see_off(here, pod)
            return
        if not asked and operations is not None:
            asked = True
            asyncio.get_running_loop().create_task(self._ask(operations, ask))
        here.machine.later(_POLL, partial(self._follow, here, pod, ask, asked=asked))

    def _see_off(self, here: Life, pod: Pod) -> None:
        """A seat that is not to go on here is deleted, as people are told to; also one whose move
        had failed, and began anew when the record of that was lost, or was refused since the disk
        was full, and was made all the same when the power was cut before that was on the disk."""
        agent = here.cluster.agent
        if pod.gone or pod.deleting:
            return
        if agent is not None and agent.offload.departures.where(pod.uid):
            here.cluster.delete(pod, here.loop.time(), force=False)
        here.machine.later(_POLL, partial(self._see_off, here, pod))

    @staticmethod
    def _let_stay(here: Life, pod: Pod) -> None:
        """Unless another of its moves is under way, for which operations refuse all else."""
        known = here.operations.known(ended_too=False) if here.operations else []
        if not any(one.uid == pod.uid for one in known):
            here.moving.discard(pod.uid)
            agent = here.cluster.agent
            if agent is not None and not agent.offload.departures.where(pod.uid):
                agent.operators.let_stay(pod.uid)

    @staticmethod
    async def _ask(operations: Operations, ask: Ask) -> None:
        with contextlib.suppress(KybernateError):
            await operations.ask(ask)
