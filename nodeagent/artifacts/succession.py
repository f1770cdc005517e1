"""Who continues from a pod's artifact: what its end, and its successor's first turn, mean for it.

A pod that ends while it is offloaded leaves its artifact to a successor for `keep_left_s`. Then the
artifact goes, unless a successor has claimed it, or people asked for it to be kept, or the same
pod's container is started again and outdates it before.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from kybernate.core.artifacts.holds import SuccessorHold
from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.core.seat.seats import AT_GATE, WITHOUT_TREE
from kybernate.errors import KybernateError, NotFoundError
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, PodRef, PodUid, SeatState, Tier
from nodeagent.artifacts.holds import Answer
from nodeagent.artifacts.reports import Kind, Report
from nodeagent.seat.node import SEAT
from nodeagent.seat.parts.saved import Begins

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kybernate.ports import Line, Registry
    from nodeagent.artifacts.holds import Custody
    from nodeagent.artifacts.reports import ReportQueue
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

UNTOLD = "untold/"
"""Journal keys of pods that ran here and have no seat that would tell of their end, until the
registry is told: those of before a boot, and those that their kubelet has failed. Their objects may
be gone before an agent runs that could hear of it."""

_SUCCESSION = RestoreWish()
_LONGEST_WHY = 500
_SAVED = WITHOUT_TREE | {SeatState.RESTORING}
_NEVER_RAN = _SAVED | AT_GATE
_LOOK_AGAIN = 300.0
_LOOK_AT_FAILED = 2.0
"""Seconds between two looks whether failed pods still run: each reads of every process."""


class Departures(Protocol):
    """Who knows which seats' workloads continue elsewhere."""

    def ended(self, uid: PodUid, artifact: str) -> None:
        """The seat's container has ended, and left this state, which is its newest."""
        ...

    def where(self, uid: PodUid) -> str:
        """A sentence; empty if it may wake here again."""
        ...


class Inquiry:
    """Asks the registry who continues from artifacts of pods that have ended."""

    def __init__(self, node: Node, registry: Registry) -> None:
        self._node = node
        self._registry = registry
        self._had: dict[str, float] = {}
        """When the last of an artifact's successors was last seen that had not ended."""

    async def ask(self, hold: SuccessorHold) -> Answer:
        """See `holds.Successors.ask`."""
        line = await self._registry.line(hold.namespace, PodUid(hold.uid), CALL_S)
        if line.successor in ("", hold.uid):
            # One that never continued has handed its claim back: another may come.
            waits = hold.artifact in self._had and not self._is_over(hold)
            return Answer() if waits else await self._unclaimed(hold, line)
        if PodUid(line.successor) in self._node.seats:
            self._had[hold.artifact] = self._node.world.wall()
            return Answer()  # what it needs is here
        if await self._released(hold, line):
            self._had.pop(hold.artifact, None)
            return Answer("its successor has continued since")
        if await self._ended_without(hold, PodUid(line.successor)):
            return Answer("its successor has ended without it")
        return Answer(again=_LOOK_AGAIN)

    def _is_over(self, hold: SuccessorHold) -> bool:
        """Whether its successor has been gone for as long as states are kept."""
        now = self._node.world.wall()
        over = now >= self._had.setdefault(hold.artifact, now) + self._node.settings.keep_left_s
        if over:
            del self._had[hold.artifact]
        return over

    async def _ended_without(self, hold: SuccessorHold, successor: PodUid) -> bool:
        """Whether its successor, which began without it, has been gone for as long as states are
        kept: people may have released its claim meanwhile. What a successor of another node claimed
        in the object store is that node's to drop."""
        theirs = await self._registry.line(hold.namespace, successor, CALL_S)
        own = theirs.node == self._node.settings.node or Tier.OBJECT.value not in hold.places
        if not theirs.stopped or theirs.successor not in ("", successor) or not own:
            self._had[hold.artifact] = self._node.world.wall()
            return False
        return self._is_over(hold)

    async def _unclaimed(self, hold: SuccessorHold, line: Line) -> Answer:
        """Nobody continues from it, and nobody can while it goes: its own pod has the claim. Where
        no claim is possible, there is none to have."""
        uid, why = PodUid(hold.uid), "nobody continued from it in time"
        if line.stopped and not line.ended:
            try:
                artifact = ArtifactId(hold.artifact)
                await self._registry.claim(hold.namespace, uid, artifact, uid, CALL_S)
            except NotFoundError:
                pass
        # Its own claim ends with that; by then it is told that this is none to continue from.
        pod = "" if hold.borrowed else hold.artifact.partition("@")[0].rpartition("/")[2]
        stopped = Report(Kind.STOPPED, hold.namespace, uid, why=why, pod=pod)
        return Answer(why, (stopped,) if line.stopped else ())

    async def _released(self, hold: SuccessorHold, line: Line) -> bool:
        """Whether its successor on another node has told the registry that it needs it no more:
        the line says so of what people keep there, and what nobody keeps isn't known any more."""
        if not line.artifact:
            return True
        offloading = self._node.world.offloading
        if offloading is not None and Tier.NVME in hold.places:
            await offloading.vault.drop(ArtifactId(hold.artifact), Tier.NVME)
        try:
            newest = await self._registry.newest(hold.namespace, PodUid(hold.uid), CALL_S)
        except NotFoundError:
            return self._node.world.registry is not None
        return newest != hold.artifact


class Succession:
    """Of all seats of the node. Lives on the loop."""

    def __init__(
        self, node: Node, custody: Custody, reports: ReportQueue, departures: Departures
    ) -> None:
        self._node = node
        self._custody = custody
        self._reports = reports
        self._departures = departures
        self._failed: dict[PodUid, tuple[PodRef, str]] = {}
        """Pods that their kubelet has failed and of which the registry is yet to be told."""
        self._untold: dict[PodUid, PodRef] = {}
        """Pods without a seat, which may come again: see `UNTOLD`."""
        self._came = asyncio.Event()

    def load(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """After a restart: of which pods without a seat nobody has told yet."""
        for key, record in records.items():
            if not key.startswith(UNTOLD):
                continue
            if self._node.world.offloading is None:
                self._node.world.journal.delete(key)  # nobody is told
                continue
            pod = PodRef(record["namespace"], record["pod"], PodUid(record["uid"]))
            self._untold[pod.uid] = pod

    def pods_known(self, there: Collection[PodUid]) -> None:
        """The pods of the node are known, those that are `there` run or may run again: the others
        have ended."""
        for uid in self._untold.keys() - there:
            self.pod_ended(uid)

    def pod_ended(self, uid: PodUid) -> None:
        """The pod has ended or was deleted, and may have no seat that would tell."""
        if uid in self._untold and uid not in self._failed:
            self.failed(self._untold[uid], "it has ended or was deleted, and has no seat here")

    def let_go(self, seat: Seat, why: str) -> None:
        """The seat runs on, or its container has ended: it needs its artifact no more, if it had
        one."""
        artifact = seat.saved.artifact
        if seat.saved.borrowed:
            self._outlived(seat, artifact)
        elif seat.state is SeatState.ACTIVE:
            self._custody.outdate(seat.uid)
            if artifact:
                self._custody.void(artifact, why)
        elif artifact:
            if _is_saved(seat):
                self._departures.ended(seat.uid, artifact)
            if not self._leaves(seat):
                self._custody.release(artifact, seat, why)

    def _leaves(self, seat: Seat) -> bool:
        """Its container has ended: whether what it leaves is kept for a successor."""
        keep, pod = self._node.keeps_orphaned(seat), seat.identity.pod
        # What the successor was handed by way of the object store it may be fetching still.
        migrated = bool(self._departures.where(seat.uid)) and Tier.OBJECT not in seat.saved.copies
        if not _is_saved(seat) or not keep or migrated:
            return False
        places = {tier.value: seat.saved.size for tier in seat.saved.copies}
        until = self._node.world.wall() + keep
        hold = SuccessorHold(seat.saved.artifact, pod.namespace, pod.uid, places, until)
        self._custody.orphan(hold)
        return True

    def _outlived(self, seat: Seat, artifact: str) -> None:
        """It was another pod's: it has continued since, or its container ended before it could."""
        if seat.state is SeatState.ACTIVE:
            self.outgrown(seat, artifact)
            return
        wish = seat.wishes.restore
        again = not _spent(seat) or (wish is not None and wish.waits)
        # Whoever hands its claim back may drop from the object store what is its own node's alone.
        self._unused(seat, artifact, seat.saved.may_drop if again else _ours(seat))
        seat.saved.unused(Begins.OPEN if again else Begins.AGAIN)

    def _unused(self, seat: Seat, artifact: str, ours: Collection[str]) -> None:
        """What this node has for it is kept, in the tiers that are `ours` to drop: if the same seat
        continues from it later, that ends."""
        places, pod = dict.fromkeys(ours, seat.saved.size), seat.identity.pod
        if places and self._custody.of(artifact).successor is None:
            until = self._node.world.wall() + self._node.settings.keep_left_s
            hold = SuccessorHold(artifact, pod.namespace, pod.uid, places, until, borrowed=True)
            self._custody.orphan(hold)

    def outgrown(self, seat: Seat, artifact: str) -> None:
        """The seat was restored from another pod's state: an artifact of it is its own from now
        on."""
        if not is_copy(seat):
            self._custody.outlive(artifact, _ours(seat))
        seat.saved.own()

    def gone(self, seat: Seat) -> None:
        """Its pod no longer exists, and nothing of it is left here."""
        if self._node.world.offloading is not None:
            told = _stopped(seat.identity.pod, "its pod is gone")
            # Over a boot it may have continued before, and nobody knows.
            before = PodUid("") if seat.uid in self._untold else _untaken(seat)
            self._reports.put(replace(told, hands_back=before))

    def failed(self, pod: PodRef, why: str) -> None:
        """Its kubelet has failed it. With a seat its end is told; without one, as after a reboot,
        which ends what the journal says, `run` tells it, or nobody could ever succeed it."""
        world = self._node.world
        if world.offloading is None:
            return
        self._failed[pod.uid] = (pod, why)
        self._came.set()
        if pod.uid not in self._node.seats and pod.uid not in self._untold:
            self._untold[pod.uid] = pod
            record = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
            world.journal.put(f"{UNTOLD}{pod.uid}", record, synced=False)

    async def run(self) -> None:
        """Tell of failed pods without a seat once none of their processes runs, for ever: where a
        journal is lost, a kubelet fails pods before it ends what runs of them."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._failed:
                await self._tell_failed()
                await asyncio.sleep(_LOOK_AT_FAILED if self._failed else 0.0)

    async def _tell_failed(self) -> None:
        looked_at, world = tuple(self._failed), self._node.world
        try:
            running = await world.blocking(world.procs.pods, CALL_S)
        except (KybernateError, OSError) as error:
            log.warning("whether %d failed pods still run can't be told: %s", len(looked_at), error)
            return
        for uid in looked_at:
            if uid not in running or uid in self._node.seats:
                pod, why = self._failed.pop(uid)
                if uid not in self._node.seats:
                    self._reports.put(_stopped(pod, why))
                if self._untold.pop(uid, None):
                    # Behind the report, which the journal has first.
                    self._node.world.journal.delete(f"{UNTOLD}{uid}")

    def stopped(self, seat: Seat, why: str) -> None:
        """It never continues here: whoever succeeds it may do so, once the registry is told."""
        self._reports.put(_stopped(seat.identity.pod, why))


def outlast_boot(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """What a journal's `records` of before a boot still say: which pods had a seat. All have
    stopped, and none of their processes comes back."""
    found = {key: record for key, record in records.items() if key.startswith(UNTOLD)}
    for key, record in records.items():
        if key.startswith(SEAT):
            named = {name: record[name] for name in ("namespace", "pod", "uid")}
            found[f"{UNTOLD}{record['uid']}"] = named
    return found


def is_copy(seat: Seat) -> bool:
    """Whether it continues as a copy, and takes nobody's place."""
    return (seat.wishes.restore or _SUCCESSION).kind is not RestoreAs.SUCCESSOR


def droppable(tier: Tier, *, copied: bool, home: bool) -> tuple[Tier, ...]:
    """Where a state may be dropped once its successor has continued: on this node, and where this
    node put it. Others know better what they keep for people."""
    if copied:
        return ()
    if home:
        return (Tier.NVME, Tier.OBJECT)
    return (Tier.NVME,) if tier is Tier.NVME else ()


def _is_saved(seat: Seat) -> bool:
    """Whether its artifact is all that it was: it has no tree, or one that is ended without a turn,
    since it is noted as written down."""
    noted = seat.state is SeatState.DUMPING and bool(seat.saved.artifact)
    return noted or seat.state in _SAVED


def _ours(seat: Seat) -> list[str]:
    """The tiers from which this node may drop what the seat continues from: also from the object
    store, if this node put there what was brought to its NVMe."""
    packed_here = Tier.OBJECT in seat.saved.copies and Tier.NVME.value in seat.saved.may_drop
    return sorted({*seat.saved.may_drop} | ({Tier.OBJECT.value} if packed_here else set()))


def _spent(seat: Seat) -> bool:
    """Whether its container ends because a step failed, of which people were told that it starts
    again; or after its tree may have run, so that the state is not its newest any more."""
    failed = seat.ending.killed or seat.state in (SeatState.UNVERIFIED, SeatState.FAILED)
    return failed or (seat.state not in _NEVER_RAN and not is_copy(seat))


def _untaken(seat: Seat) -> PodUid:
    """The pod with whose state the seat would continue if its container were started once more,
    since it never has; empty for none. It may have the claim without knowing: an agent may have
    died, or an answer was lost."""
    wish = seat.wishes.restore
    if not seat.awaits_state or wish is None or wish.kind is not RestoreAs.SUCCESSOR:
        return PodUid("")
    return PodUid(seat.saved.predecessor) or wish.uid


def _stopped(pod: PodRef, why: str) -> Report:
    return Report(Kind.STOPPED, pod.namespace, pod.uid, why=_plain(why), pod=pod.name)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST_WHY]
