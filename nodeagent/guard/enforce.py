"""Looks regularly at who uses the node's GPUs, and acts on what may not be.

The judgement is the core's (`core.swap.enforce`). Here: from NVML's process lists to pods and
seats, and from verdicts to events, parks and kills. What a look finds also tells how much device
memory each seat holds, and how much of each GPU belongs to nobody's seat.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from kybernate.core.swap.enforce import (
    Cause,
    IntruderRule,
    Remedy,
    Sighting,
    Standing,
    confirmed,
    excesses,
    foreign_bytes,
    judge,
)
from kybernate.core.swap.swap import fits, wants
from kybernate.dataclass import dataclass
from kybernate.errors import DriverError, NotFoundError
from kybernate.lib.rounds import rounds
from nodeagent import metrics
from nodeagent.seat.repark import park_again
from nodeagent.seat.steps import NVML_DEADLINE

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from kybernate.core.swap.enforce import Excess, Verdict
    from kybernate.types import GpuUuid, PodUid
    from nodeagent.guard.outside import Deciding, Outside
    from nodeagent.seat.record import Seat

    Lists = Mapping[GpuUuid, tuple[tuple[int, int | None], ...] | None]

log = logging.getLogger(__name__)

_UNHINDERED = 3600.0
_LOOKS = 30
"""So many looks back a judgement has stood before: processes that come and go meet few of them."""
_TAKES_NO_TURN = (
    "it takes no more turns, each of which would take that memory again, until a wake is "
    "requested: kybernate agent wake {pod}"
)
_CALLS_WITHIN = 30.0
"""Seconds that a seat's kyb-init has to call before its processes count as not of its tree."""
CONDITION = "ExclusiveGpus"


@dataclass(frozen=True, slots=True)
class _Known:
    """What never changes about a process."""

    start: int
    name: str
    pod: PodUid | None
    in_tree: bool


class Enforcer:
    """One look after the other. `parking_again`: whose processes are being parked again."""

    def __init__(self, deciding: Deciding, outside: Outside) -> None:
        self._deciding = deciding
        self._node = deciding.node
        self._outside = outside
        self._known: dict[int, _Known] = {}
        self._before: deque[tuple[Verdict, ...]] = deque(maxlen=_LOOKS)
        self._told: dict[tuple[Hashable, Cause], str] = {}
        self._over: tuple[Excess, ...] = ()
        self._told_over: set[tuple[PodUid, GpuUuid, Remedy]] = set()
        self._own = self._own_pod()
        self._began = self._node.world.now()
        self.parking_again: set[PodUid] = set()

    async def look(self) -> None:
        """Look once, and act on what stood at one of the last looks, too."""
        epochs = {uid: _epoch(seat) for uid, seat in self._node.seats.items()}
        lists = await self._lists()
        if not lists:
            return
        _count(lists)
        sightings = self._sightings(lists)
        self._note_held(sightings)
        standings = {
            uid: self._standing(seat, settled=epochs.get(uid) == _epoch(seat))
            for uid, seat in self._node.seats.items()
        }
        rule = IntruderRule(self._node.settings.intruder)
        found = judge(sightings, standings, rule, pods_known=self._outside.pods_known())
        acted_on = confirmed(chain.from_iterable(self._before), found)
        self._before.append(found)
        self._respect(lists, sightings)
        for verdict in acted_on:
            self._act(verdict)
        self._tell_node(found)
        tolerance = self._node.settings.vram_tolerance_bytes
        self._judge_sizes(excesses(sightings, standings, rule, tolerance))

    # --- from the driver's lists to processes of pods -----------------------------------------

    async def _lists(self) -> Lists:
        inventory = self._node.inventory
        if inventory is None:
            return {}
        gpus, read = tuple(inventory.memory()), self._node.world.gpus.processes

        def ask(gpu: GpuUuid) -> tuple[tuple[int, int | None], ...] | None:
            try:
                return read(gpu)
            except DriverError as error:
                log.info("GPU %s does not say who uses it: %s", gpu, error)
                return None

        return await self._node.world.asking(lambda: {gpu: ask(gpu) for gpu in gpus}, NVML_DEADLINE)

    def _sightings(self, lists: Lists) -> tuple[Sighting, ...]:
        memory: dict[int, dict[GpuUuid, int | None]] = {}
        for gpu, rows in lists.items():
            for pid, size in rows or ():
                memory.setdefault(pid, {})[gpu] = size
        self._known = {pid: known for pid, known in self._known.items() if pid in memory}
        found = []
        for pid, sizes in memory.items():
            with contextlib.suppress(NotFoundError):
                known = self._look_at(pid)
                found.append(
                    Sighting(pid, known.start, known.name, sizes, known.pod, known.in_tree)
                )
        return tuple(one for one in found if self._own is None or one.pod != self._own)

    def _look_at(self, pid: int) -> _Known:
        procs = self._node.world.procs
        start = procs.start_time(pid)
        known = self._known.get(pid)
        if known is None or known.start != start or not known.in_tree:
            pod = procs.pod_uid_of(pid)
            seat = self._node.seats.get(pod) if pod else None
            inside = seat is not None and bool(seat.tree.handle)
            in_tree = inside and pid in self._node.world.freezer.pids(
                seat.tree.handle if seat else ""
            )
            known = self._known[pid] = _Known(start, self._outside.culprits.name(pid), pod, in_tree)
        return known

    def _own_pod(self) -> PodUid | None:
        with contextlib.suppress(NotFoundError):
            return self._node.world.procs.pod_uid_of(os.getpid())
        return None

    def _note_held(self, sightings: Iterable[Sighting]) -> None:
        held: dict[PodUid, int] = {}
        for one in sightings:
            if one.in_tree and one.pod is not None:
                size = sum(size or 0 for size in one.memory.values())
                held[one.pod] = held.get(one.pod, 0) + size
        seen = {uid: size for uid, size in self._node.seen.items() if uid in self._node.seats}
        seen |= {uid: size for uid, size in held.items() if size}
        self._node.gpus_seen(seen, self._node.foreign)

    def _standing(self, seat: Seat, *, settled: bool) -> Standing:
        return Standing(
            seat.uid,
            seat.identity.name,
            frozenset(seat.identity.gpus),
            seat.state,
            _epoch(seat),
            settled=settled
            and (bool(seat.tree.handle) or self._never_called(seat))
            and not seat.ending.asked
            and not seat.unverified
            and seat.uid not in self.parking_again,
            vram=seat.identity.vram,
            wants=self._wants(seat),
            of_file=not seat.identity.resource,
        )

    def _wants(self, seat: Seat) -> bool:
        # One that must take turns with those in GPU memory has its turn, however much they hold.
        asks = wants(seat.view(drained=self._node.leases.drained(seat.uid)))
        return asks and fits(self._node.swap_view(), seat.uid)

    def _never_called(self, seat: Seat) -> bool:
        # An agent that has just begun hears of running trees a moment after it sees them.
        return self._node.world.now() >= max(self._began, seat.history.bound_at) + _CALLS_WITHIN

    # --- from verdicts to acts ----------------------------------------------------------------

    def _respect(self, lists: Lists, sightings: Iterable[Sighting]) -> None:
        """Count nobody's memory; of a GPU that did not answer, what was known stands."""
        silent = {gpu: size for gpu, size in self._node.foreign.items() if lists.get(gpu) is None}
        foreign = {**silent, **foreign_bytes(sightings)}
        if foreign == self._node.foreign:
            return
        for gpu in {*foreign, *self._node.foreign}:
            metrics.FOREIGN_BYTES.labels(gpu).set(foreign.get(gpu, 0))
        self._node.gpus_seen(self._node.seen, foreign)
        self._deciding.kick()

    def _act(self, verdict: Verdict) -> None:
        """Told once for each pod; what must be done is done until it is gone."""
        one = verdict.sighting
        seat = self._node.seats.get(one.pod) if one.pod else None
        if _identity(verdict) not in self._told:
            self._told[_identity(verdict)] = verdict.sentence
            metrics.INTRUDERS.labels(verdict.cause.value, verdict.remedy.value).inc()
            self._tell(verdict, seat)
        if verdict.remedy is Remedy.KILL_SEAT and seat is not None:
            self._deciding.life.fail(seat, "a process of it used a GPU without its turn")
        elif verdict.remedy is Remedy.KILL_PROCESS:
            self._outside.culprits.kill(one.pid, one.start)
        elif verdict.remedy is Remedy.PARK and seat is not None:
            self._park_again(seat)

    def _judge_sizes(self, found: tuple[Excess, ...]) -> None:
        acted_on, self._over = confirmed(self._over, found), found
        here = {(excess.uid, excess.gpu) for excess in found}
        self._told_over = {told for told in self._told_over if told[:2] in here}
        for excess in acted_on:
            seat = self._node.seats[excess.uid]
            if _epoch(seat) == excess.epoch:  # else something worse was found of it just now
                self._rein_in(excess, seat)

    def _rein_in(self, excess: Excess, seat: Seat) -> None:
        told = excess.uid, excess.gpu, excess.remedy
        if told not in self._told_over:
            self._told_over.add(told)
            metrics.INTRUDERS.labels(Cause.OVER_DECLARED.value, excess.remedy.value).inc()
            said = excess.sentence
            if excess.remedy is Remedy.SEND_AWAY and seat.turn is not None:
                said = f"{said}; {_TAKES_NO_TURN.format(pod=seat.identity.pod)}"
            self._node.tell(seat, "Warning", "OverDeclared", said)
        why = "it holds more GPU memory than it declares"
        if excess.remedy is Remedy.KILL_SEAT:
            self._deciding.life.fail(seat, why)
        elif excess.remedy is Remedy.SEND_AWAY and not seat.wishes.leave:
            self._deciding.operators.send_away(seat.uid, why)

    def _tell(self, verdict: Verdict, seat: Seat | None) -> None:
        if seat is not None:
            self._node.tell(seat, "Warning", "Intruder", verdict.sentence)
            return
        log.warning("%s", verdict.sentence)
        pod = self._outside.roster.named(verdict.sighting.pod)
        reason = "ForeignProcess" if verdict.cause is Cause.OUTSIDE else "Intruder"
        if pod is not None:
            self._outside.announcer.told_pod(pod, "Warning", reason, verdict.sentence)
        self._outside.announcer.told_node("Warning", reason, verdict.sentence)

    def _park_again(self, seat: Seat) -> None:
        if seat.uid in self.parking_again:
            return  # for another process of it
        # Nothing of its park may meet a wake: it asks for nothing meanwhile.
        seat.backoff.hold(self._node.world.now() + _UNHINDERED)
        self.parking_again.add(seat.uid)
        self._deciding.life.work(seat, park_again(self._node, self._deciding.steps, seat))
        if seat.tasks.work is not None:
            # Also if it is dropped before it has begun.
            seat.tasks.work.add_done_callback(lambda _: self._parked_again(seat))

    def _parked_again(self, seat: Seat) -> None:
        self.parking_again.discard(seat.uid)
        seat.backoff.free()
        if seat.uid in self._node.seats:
            self._node.changed(seat)
        self._deciding.kick()

    def _tell_node(self, found: Iterable[Verdict]) -> None:
        """The condition of the GPUNode; it names what was told of and is still there."""
        here = {_identity(verdict) for verdict in found}
        self._told = {one: said for one, said in self._told.items() if one in here}
        message = "; ".join(self._told.values())
        message = message or "only seats use this node's GPUs"
        ok = not self._told
        self._node.notice(CONDITION, "SeatsOnly" if ok else "OthersUseGpus", message, ok=ok)

    async def run(self) -> None:
        """Look for ever."""
        every = self._node.settings.guard_interval_s
        await rounds(self.look, every, "looking at who uses the GPUs")


def _count(lists: Lists) -> None:
    """Tell Prometheus what is in use; of a GPU that did not answer, what was known stands."""
    for gpu, rows in lists.items():
        if rows is not None:
            metrics.GPU_USED_BYTES.labels(gpu).set(sum(size or 0 for _, size in rows))


def _epoch(seat: Seat) -> str:
    return f"{seat.history.generation}/{seat.history.wakes}/{seat.history.lease}/{seat.state}"


def _identity(verdict: Verdict) -> tuple[Hashable, Cause]:
    return verdict.whose, verdict.cause
