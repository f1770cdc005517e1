"""Both ends of a migration, made up: agents that do what the table says, and die at any point."""

from __future__ import annotations

import contextlib

from kybernate.core.migration.notes import MoveNote
from kybernate.core.migration.protocol import (
    OVER,
    Act,
    Event,
    State,
    Survived,
    advance,
    found_target,
    resume,
    step,
    takes,
)
from kybernate.types import NodeName, PodRef, PodUid, SeatState

POD = PodRef("ns", "a", PodUid("uid-a"))
SUCCESSOR = PodRef("ns", "b", PodUid("uid-b"))
ACTIVE, NVME, WAITING = SeatState.ACTIVE, SeatState.PARKED_NVME, SeatState.WAITING


class SourceDies(Exception):  # noqa: N818 - it is no error
    """Here."""


class TargetDies(Exception):  # noqa: N818 - it is no error
    """Here; the source has no answer."""


class Refuses(Exception):  # noqa: N818 - it is no error
    """The target's answer."""


class World:
    """What is on the disks of both nodes, in the registry and in the processes.

    `version` counts the runs of the workload: the state of its newest run must go on existing, and
    nobody may continue with another. `chance` is asked before each effect whether something happens
    there: "source", "target" (the agent dies) or the name of a method.
    """

    def __init__(self, *, within=False, chance=lambda where: ""):
        self.within, self.chance = within, chance
        self.note, self.owed, self.live = None, False, True
        self.seat, self.artifact, self.asleep = ACTIVE, "", False
        self.held = self.dumping = False  # it is kept away from its GPUs; its tree is written down
        self.version, self.at_source = 1, {}
        self.reverts, self.dumps = False, 0
        self.parts, self.arrived, self.taken = False, {}, ""
        self.successor, self.continues = "waits", ""
        self.stopped, self.claim = False, ""
        self.excused = self.away = False  # the API server is away
        self.source = None
        self.ticks = 0
        self.problems: list[str] = []

    # --- what happens ---------------------------------------------------------------------------

    def tick(self, where):
        """Before an effect at this end."""
        self.ticks += 1
        self.look()
        match self.chance(where):
            case "source":
                raise SourceDies
            case "target" if where == "target":
                raise TargetDies
            case "" | "target":
                pass
            case name:
                getattr(self, name)()
        self.look()

    def look(self):
        """One at most has a tree, with the newest state, which is somewhere."""
        if self.seat is ACTIVE and self.successor == "runs":
            self.problems.append("both run")
        if self.successor == "runs" and self._of(self.continues) != self.version:
            self.problems.append(f"the successor runs {self.continues}, not {self.version}")
        versions = {*self.at_source.values(), *self.arrived.values()}
        somewhere = self.seat is ACTIVE or self.successor == "runs" or self.version in versions
        if not somewhere and not self.excused:
            self.problems.append("the newest state is gone")

    def wake(self):
        """Somebody calls for the seat, and the workload runs on, or begins."""
        if self.asleep or self.held or self.dumping:
            return
        self.seat, self.artifact = ACTIVE, ""
        self.version += 1
        self.at_source = {}
        self.stopped = False

    def cancel(self):
        """The operation is cancelled, if that may still be."""
        if self.source is not None:
            self.source.cancel()

    def successor_goes(self):
        """Its pod is deleted, and with it what its workload was."""
        if self.successor == "runs":
            self.excused = True
        self.successor, self.continues = "gone", ""

    def dump_reverts(self):
        """What was delivered is not what the seat's record will name."""
        self.reverts = True

    def container_ends(self):
        """The workload at the source ends by itself: its state is nobody's."""
        if self.seat is ACTIVE:
            self.seat, self.artifact, self.excused = WAITING, "", True

    # --- the ends -------------------------------------------------------------------------------

    def run(self, deaths=1 << 30):
        """Agents, one after the other, until the migration is over, or so many have died."""
        for _ in range(deaths):
            if not self.live and self.note is None:
                self.asleep = self.held = False
                return State.STAYED  # no operation is put again
            try:
                Source(self).run()
            except SourceDies:
                self.held = self.dumping = False
            else:
                return self.source.one.state
        return None

    def quiet(self):
        """Nothing goes wrong any more: who is owed a word hears it."""
        self.chance = lambda where: ""
        state = self.run()
        if state is not State.STAYED:
            assert self.asleep
        if self.owed:
            Target(self).cancelled()
            self.owed = False
        if self.successor == "gone":
            Target(self).gone()
        if state is State.STAYED and (self.parts or self.arrived):
            self.problems.append("the target keeps what nobody continues with")
        self.wake()
        self.look()
        return state

    def _of(self, artifact):
        return int(artifact.removeprefix("s").partition("+")[0] or 0)


class Source:
    """The agent of the node that the pod is on."""

    def __init__(self, world):
        self.world = w = world
        w.source, self.busy, self.cancelled = self, False, False
        if w.artifact and w.seat is ACTIVE:
            w.seat = NVME  # the seat's own record has the tree ended
        left = Survived(w.note, w.live, w.seat, w.artifact)
        w.asleep = bool(w.note and w.note.artifact and w.live) or bool(w.note and w.note.done)
        self.one, taken = resume(left, 0.0)
        self.do(taken)

    def run(self):
        while self.one.state not in OVER:
            state = self.one.state
            self.world.tick("source")
            if self.one.state is state:
                getattr(self, f"_{state.value}")()
        self.world.live = False

    def cancel(self):
        """Between two steps."""
        self.cancelled = self.busy
        if not self.busy and takes(self.one.state, Event.CANCEL):
            self.world.live = False
            self.on(Event.CANCEL)

    def on(self, event, **of):
        if not takes(self.one.state, event):
            return False
        self.one, taken = advance(self.one, event, 1.0, **of)
        self.do(taken)
        return True

    def do(self, taken):
        self.busy = True
        for act in taken.acts:
            self.world.tick("source")
            self._do(act)
            self.world.tick("source")
        self.busy = False
        if self.cancelled:
            self.cancel()

    def _do(self, act):
        w, note = self.world, self.one.note
        match act:
            case Act.WITHDRAW_CANCEL:
                w.owed = False
            case Act.NOTE | Act.NOTE_SYNCED | Act.NOTE_AT_LAST:
                w.note = note
            case Act.FORGET_NOTE:
                w.note = None
            case Act.OWE_CANCEL:
                w.owed = w.owed or note is not None
            case Act.TAKE_BACK | Act.LET_GO:
                self._home(act)
            case Act.STAY | Act.MAY_WAKE:
                w.asleep = w.held = False
            case Act.SLEEP | Act.SLEEP_FOR_GOOD:
                w.asleep = True
            case Act.REPORT_STOPPED:
                w.stopped = True
            case Act.SERVE:
                w.held = False

    def _home(self, act):
        w = self.world
        if w.within and act is Act.TAKE_BACK and not w.continues:
            w.arrived = {}
        elif w.within and act is Act.LET_GO:
            w.at_source, w.artifact = {}, ""

    # --- the work of each state -----------------------------------------------------------------

    def _seeking(self):
        if self.world.away:
            self.on(Event.NOT_YET)
        elif self.world.successor == "gone":
            self.on(Event.FAILED)
        else:
            note = MoveNote("m1", POD, SUCCESSOR, NodeName("n1" if self.world.within else "n2"))
            self.on(Event.FOUND, note=note)

    def _asking(self):
        try:
            Target(self.world).expect()
        except TargetDies:
            self.on(Event.NOT_YET)
        except Refuses:
            self.on(Event.FAILED)
        else:
            self.on(Event.ACCEPTED_HERE if self.world.within else Event.ACCEPTED)

    def _staging(self):
        with contextlib.suppress(TargetDies, Refuses):  # it only takes longer
            Target(self.world).came()
        self.on(Event.STAGED)

    def _leaving(self):
        w = self.world
        if w.seat is WAITING:
            self.on(Event.FAILED)
            return
        w.held = w.dumping = True
        artifact = f"s{w.version}"
        w.at_source[artifact] = w.version
        try:
            w.tick("source")
            if not w.within:
                Target(w).came()
            Target(w).deliver(artifact)
            w.tick("source")
        except (TargetDies, Refuses):
            self._reverted(artifact)
            return
        if w.seat is WAITING:
            self._reverted(artifact)
            return
        if not self.on(Event.VERIFIED, artifact=artifact):
            self._reverted(artifact)  # it was cancelled meanwhile

    def _reverted(self, artifact):
        w = self.world
        if w.seat is not NVME:
            w.at_source.pop(artifact, None)
        w.dumping = False
        self.on(Event.FAILED)

    def _delivered(self):
        w = self.world
        if w.seat is WAITING:
            self.on(Event.FAILED)
            return
        if w.reverts and w.seat is ACTIVE and not w.artifact:
            self._dumped_again()
            return
        w.artifact = self.one.note.artifact
        w.tick("source")
        if w.seat is ACTIVE:
            w.seat = NVME
        w.dumping = False
        w.tick("source")
        self.on(Event.TREE_ENDED)

    def _dumped_again(self):
        w = self.world
        w.reverts, w.dumps = False, w.dumps + 1
        w.at_source = {}
        w.tick("source")
        artifact = f"s{w.version}+{w.dumps}"
        w.at_source[artifact] = w.version
        try:
            Target(w).deliver(artifact)
            w.tick("source")
        except (TargetDies, Refuses):
            self._reverted(artifact)
            return
        if not self.on(Event.VERIFIED, artifact=artifact):
            self._reverted(artifact)

    def _ending(self):
        self.on(Event.TREE_ENDED)

    def _releasing(self):
        try:
            Target(self.world).release(self.one.note.artifact)
        except TargetDies:
            pass  # it is told again
        except Refuses:
            self.on(Event.REJECTED)
        else:
            self.on(Event.CONTINUES)

    def _reclaiming(self):
        w = self.world
        if w.claim == "successor":
            self.on(Event.CLAIMED_ELSEWHERE, why="another has the claim")
            return
        w.claim = "self"
        w.tick("source")
        w.claim = ""  # from here on it is the pod's, as before
        w.stopped = False
        self.on(Event.CLAIMED)

    def _cancelling(self):
        w = self.world
        if w.owed:
            try:
                Target(w).cancelled()
                w.owed = False
            except (TargetDies, Refuses):
                pass  # told again, by whoever comes
        self.on(Event.CANCEL_OWED)


class Target:
    """The agent of the successor's node, for one call."""

    def __init__(self, world):
        self.world = world

    def state(self):
        w = self.world
        return found_target(
            parts=w.parts, delivered=bool(w.arrived), continues=bool(w.taken or w.continues)
        )

    def expect(self):
        self.world.tick("target")
        if self.world.successor != "waits":
            raise Refuses

    def came(self):
        self.expect()
        step(self.state(), Event.PARTS)
        self.world.parts = True

    def deliver(self, artifact):
        self.expect()
        self.do(step(self.state(), Event.DELIVERY), artifact)

    def release(self, artifact):
        self.world.tick("target")
        w = self.world
        taken = step(self.state(), Event.RELEASE)
        if Act.ADOPT in taken.acts and (w.successor != "waits" or artifact not in w.arrived):
            raise Refuses
        if w.successor == "gone" and not w.taken:
            raise Refuses
        self.do(taken, artifact)

    def cancelled(self):
        self.world.tick("target")
        self.do(step(self.state(), Event.CANCELLED), "")

    def gone(self):
        self.do(step(self.state(), Event.POD_GONE), "")

    def do(self, taken, artifact):
        for act in taken.acts:
            self.world.tick("target")
            self._do(act, artifact)
        self.world.tick("target")  # done, and the answer is lost

    def _do(self, act, artifact):
        w = self.world
        match act:
            case Act.NOTE_ARRIVAL:
                w.arrived[artifact] = w._of(artifact)
            case Act.DROP_OLDER:
                w.arrived = {k: v for k, v in w.arrived.items() if k == artifact}
            case Act.ADOPT:
                if w.claim == "self" or w.successor != "waits":
                    raise Refuses
                w.claim = "successor"
                w.tick("target")
                if w.successor != "waits":
                    raise Refuses
                w.continues, w.successor = artifact, "runs"
            case Act.NOTE_TAKEN:
                w.taken = artifact
            case Act.DROP_PARTS:
                w.parts = False
            case Act.DROP_ARRIVAL | Act.DROP_UNCLAIMED:
                w.arrived = {}
