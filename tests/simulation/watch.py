"""What must hold on a node: at every change of a seat, and when all is quiet again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.artifacts.holds import ARRIVED, DROP, LEFT, OUTLIVED, SAVED
from kybernate.core.seat.seats import OCCUPYING, WITHOUT_TREE
from kybernate.core.swap.swap import fits, takes_turns
from kybernate.ports import ProcessState
from kybernate.types import PodUid, SeatState
from nodeagent.seat.node import IN_RAM
from nodeagent.seat.parts.saved import Begins
from tests.unit.core.swap.invariant import violations

if TYPE_CHECKING:
    import asyncio

    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat
    from tests.kit.machine.processes import FakeProcess
    from tests.simulation.cluster import Pod
    from tests.simulation.peers import Around


class Watch:
    """Observes the agents of a node: implements `nodeagent.seat.node.Observer`. `steps` counts
    changes of seats' states."""

    def __init__(self, life: Around) -> None:
        self._life = life
        self._states: dict[PodUid, SeatState] = {}
        self._before: dict[PodUid, int] = {}
        self._for_the_guard: set[int] = set()
        self.steps = 0

    @property
    def _node(self) -> Node | None:
        return self._life.node

    @property
    def _seats(self) -> dict[PodUid, Seat]:
        return self._node.seats if self._node else {}

    # --- at every change --------------------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """Check the invariant whenever a state changes."""
        before = self._states.get(seat.uid)
        self._states[seat.uid] = seat.state
        if before is seat.state or self._node is None:
            return
        self.steps += 1
        self._life.note(f"{seat.identity.name}: {before} -> {seat.state} ({seat.history.reason})")
        if seat.state in OCCUPYING and before not in OCCUPYING:
            self._life.found += violations(self._node.swap_view())
        if seat.state in (SeatState.PARKING, SeatState.RESTORING):
            self._see_room(self._node)
        if seat.state is SeatState.PARKING:
            self._see_drained(seat.uid)
        if seat.state is SeatState.PARKED:
            self._see_off_gpus(seat)
        if (before, seat.state) == (SeatState.PARKING, SeatState.ACTIVE):
            self._for_the_guard |= {p.pid for p in self._tree(seat) if p.strayed}

    def _tree(self, seat: Seat) -> list[FakeProcess]:
        return [p for p in self._life.machine.procs.values() if p.handle == seat.tree.handle]

    def _see_room(self, node: Node) -> None:
        plan = self._life.plan
        if plan.tiers and not plan.lose_journal:
            taken, budget = self.in_ram(), node.park_budget
            if taken > budget:
                self._life.found.append(f"parked seats take {taken} of {budget} bytes of RAM")

    def _see_drained(self, uid: PodUid) -> None:
        for proxy in self._life.proxies:
            if proxy.loop is not None and proxy.in_flight.get(uid) and uid in proxy.leases:
                self._life.found.append(f"{uid} is parked under requests of {proxy.name}")

    def _see_off_gpus(self, seat: Seat) -> None:
        for one in self._tree(seat):
            if one.alive and one.memory and one.cuda is not ProcessState.CHECKPOINTED:
                gpus = ", ".join(one.memory)
                self._life.found.append(f"{seat.identity.name} is parked, and {one.pid} on {gpus}")

    def seat_gone(self, seat: Seat) -> None:
        """Forgotten."""
        self._states.pop(seat.uid, None)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """In calm weather, and where nothing but the agent is killed, nothing may be lost."""
        self._life.note(f"{seat.identity.name}: {reason}: {sentence}")
        if self._life.plan.kind == "kills" and reason == "SeatFailed":
            self._life.found.append(f"{seat.identity.name} was lost: {sentence}")

    def in_ram(self) -> int:
        """Bytes that parked seats take in the host's RAM."""
        kept = (SeatState.PARKING, *IN_RAM)
        node = self._node
        return sum(node.park_size(s) for s in self._seats.values() if node and s.state in kept)

    # --- when the weather has cleared -------------------------------------------------------------

    def count_from_here(self) -> None:
        """Every pod must answer once more from now on."""
        pods = self._life.cluster.pods
        self._before = {uid: self._answered(uid) for uid in pods}

    def _answered(self, uid: PodUid) -> int:
        return sum(proxy.answered.get(uid, 0) for proxy in self._life.proxies)

    def unserved(self) -> list[Pod]:
        """Pods that have neither answered since, nor are gone without a trace."""
        return [pod for pod in self._life.cluster.pods.values() if not self._settled(pod)]

    def _settled(self, pod: Pod) -> bool:
        if pod.gone or pod.deleting:
            return pod.gone and pod.uid not in self._seats
        return self._answered(pod.uid) > self._before.get(pod.uid, 0)

    def quiet(self) -> bool:
        """Whether nothing is under way. While no agent is up, its start is."""
        if self._life.cluster.agent is None:
            return False
        resting = (SeatState.ACTIVE, SeatState.PARKED, *WITHOUT_TREE)
        seats = self._seats.values()
        idle = all(
            s.state in resting and _done(s.tasks.work) and _done(s.tasks.watch) for s in seats
        )
        idle = idle and not self._to_go() and not self._gates_askew()
        return idle and not any(any(p.in_flight.values()) for p in self._life.proxies)

    def restless(self) -> str:
        """What is under way, for a finding; empty if nothing is."""
        if self.quiet():
            return ""
        seats = [f"{seat.identity.name} {self.describe(uid)}" for uid, seat in self._seats.items()]
        agent = [] if self._life.cluster.agent else ["no agent is up"]
        found = "; ".join(agent + self._to_go() + seats)
        return f"{self._life.plan.node} does not come to rest: {found}"

    def _to_go(self) -> list[str]:
        """Records of artifacts, and folders, that are dropped as soon as that succeeds."""
        journal = self._life.machine.journal.items()
        arrived = [(key, one) for key, one in journal if key.startswith(ARRIVED)]
        unwanted = [key for key, one in arrived if one["successor"] not in self._seats]
        dropped = [key for key, _ in journal if key.startswith((DROP, OUTLIVED))]
        return dropped + unwanted + self._folders_left()

    def _folders_left(self) -> list[str]:
        """Of dumps and fetches that no seat has any more; a journal that lost some of itself may
        not know."""
        plan = self._life.plan
        if plan.lose_tail or plan.lose_journal or plan.spoil_journal:
            return []
        left = []
        for folder in self._life.machine.folders.keys() & {f"/dumps/{uid}" for uid in self._seats}:
            seat = self._seats[PodUid(folder.removeprefix("/dumps/"))]
            if seat.saved.images != folder and not seat.saved.paging:
                left.append(folder)
        return left

    def describe(self, uid: PodUid) -> str:
        """The seat, for a finding."""
        seat = self._seats.get(uid)
        if seat is None:
            return "the agent has no such seat"
        ending, connected = seat.ending.asked, seat.contact.connected
        return f"{seat.state} ({seat.history.reason}), {ending=}, {connected=}"

    def look_around(self) -> None:
        """All is quiet: nothing may be left of the storm."""
        machine, found = self._life.machine, self._life.found
        parked = {s.tree.handle for s in self._seats.values() if s.state is SeatState.PARKED}
        for handle in machine.frozen ^ parked:
            found.append(f"{handle} is {'not ' if handle in parked else ''}frozen")
        for process in machine.procs.values():
            if not process.alive or process.cuda is ProcessState.NO_CUDA:
                continue
            wanted = ProcessState.CHECKPOINTED if process.handle in parked else ProcessState.RUNNING
            if process.cuda is not wanted:
                found.append(f"{process.uid} is {process.cuda}, should be {wanted}")
        self._look_for_strayed()
        self._look_for_starved()
        self._look_below()

    def _look_for_strayed(self) -> None:
        """Every seat that is awake is on the GPUs that its record names. What strayed as a park
        began that was put off is ended by the next park, or by the guard, which isn't simulated."""
        for seat in self._seats.values():
            tree = [one for one in self._tree(seat) if one.pid not in self._for_the_guard]
            there = {gpu for one in tree if one.alive for gpu in one.memory}
            if seat.state is SeatState.ACTIVE and not there <= set(seat.identity.gpus):
                said = ", ".join(seat.identity.gpus)
                self._life.found.append(f"{seat.identity.name} is on {sorted(there)}, not {said}")

    def _look_for_starved(self) -> None:
        """Nobody who always wants its GPUs rests in RAM beside GPUs that are free."""
        node = self._node
        view = node.swap_view() if node else None
        for seat in view.seats if view else ():
            rests = view and seat.state is SeatState.PARKED and takes_turns(seat, view)
            if node and view and rests and not view.draining and fits(view, seat.uid):
                late = seat.not_before <= node.world.now()
                self._life.found += [f"{seat.name} is parked beside free GPUs"] if late else []

    def _gates_askew(self) -> set[PodUid]:
        """Seats whose TCP is held back though their tree is there, or the other way round."""
        shut, seats = self._life.machine.gates, self._seats.values()
        return {s.uid for s in seats if (s.uid in shut) is not (s.state in WITHOUT_TREE)}

    def _look_below(self) -> None:
        """Where no tree is, TCP is held back, and a saved state is kept; nowhere else."""
        machine, found, seats = self._life.machine, self._life.found, self._seats
        plan = self._life.plan
        treeless = {uid for uid, seat in seats.items() if seat.state in WITHOUT_TREE}
        for uid in self._gates_askew():
            found.append(f"{uid}: TCP is {'' if uid in machine.gates else 'not '}held back")
        for artifact in {seats[uid].saved.artifact for uid in treeless} - machine.vault.keys():
            found.append(f"{artifact} is gone")
        if not (plan.lose_tail or plan.lose_journal or plan.spoil_journal):
            self._look_for_leftovers()

    def _look_for_leftovers(self) -> None:
        machine, found, seats = self._life.machine, self._life.found, self._seats
        noted = (LEFT, SAVED, ARRIVED)
        kept = {key.partition("/")[2] for key in machine.journal if key.startswith(noted)}
        kept |= {seat.saved.artifact for seat in seats.values()}
        # What one could not go on from, and was started anew without, is left to people.
        anew = {
            s.wishes.restore.uid
            for s in seats.values()
            if s.wishes.restore and s.saved.begins is Begins.AGAIN
        }
        kept |= {name for name, one in machine.vault.items() if one.snapshot.uid in anew}
        for artifact in machine.vault.keys() - kept:
            found.append(f"{artifact} is kept for nobody")


def _done(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()
