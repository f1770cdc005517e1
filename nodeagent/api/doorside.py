"""The seats' side of the loop: what each seat's kyb-init says at its socket."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import AT_GATE, SeatEvent, shown
from kybernate.core.tiers.whereabouts import told
from kybernate.errors import NotFoundError
from kybernate.ports import GatePhase
from kybernate.types import SeatState
from nodeagent.seat.parts.saved import Begins
from nodeagent.seat.parts.tree import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kybernate.ports import GateHello
    from kybernate.types import PodUid
    from nodeagent.artifacts.adopt import Adoptions
    from nodeagent.offload.offload import Offload
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)


class DoorSide:
    """Takes what comes in at the seats' doors. `accept_running` accepts, as it is, what runs in a
    seat whose record was lost.

    Implements `ports.SeatListener`.
    """

    def __init__(
        self,
        node: Node,
        life: Lifecycle,
        offload: Offload,
        adoptions: Adoptions,
        accept_running: Callable[[Seat], Coroutine[object, object, None]],
        kick: Callable[[], None],
    ) -> None:
        self._node = node
        self._life = life
        self._offload = offload
        self._adoptions = adoptions
        self._accept_running = accept_running
        self._kick = kick

    def on_hello(self, uid: PodUid, hello: GateHello) -> None:
        """kyb-init is at the door."""
        seat = self._node.seats.get(uid)
        if seat is None:
            return
        try:
            init = Process(hello.peer_pid, self._node.world.procs.start_time(hello.peer_pid))
        except NotFoundError:
            return
        if seat.tree.init not in (None, init) and not self._outlived(seat):
            seat.contact.queue(hello)
            self._life.watch_end(seat)
            return
        self._welcome(seat, init, hello)
        self._kick()

    def _outlived(self, seat: Seat) -> bool:
        """Whether a new kyb-init may take a seat at once: the old one never started a command."""
        return seat.state in AT_GATE

    def _welcome(self, seat: Seat, init: Process, hello: GateHello) -> None:
        seat.tree.greeted(init)
        seat.contact.greeted(image_mode=hello.image, begun=hello.phase is not GatePhase.WAITING)
        if hello.phase is GatePhase.PARKED and seat.state is SeatState.WAITING:
            # The journal was lost, and with it what was saved of it, and where.
            seat.contact.made()
            self._node.transition(seat, SeatEvent.FOUND, "found offloaded, without a record")
            self._life.fail(seat, seat.history.reason)
            return
        if hello.phase is GatePhase.WAITING and self._node.world.offloading is not None:
            # Whether TCP is held back from its pod since an earlier life, not every record tells,
            # nor what was dumped of that; but what comes for it is no rest of an earlier life.
            self._life.aside(self._offload.gates.reopen(seat))
            if seat.state is SeatState.WAITING and not self._offload.ahead.knows(seat.uid):
                self._life.aside(self._offload.lazies.abandon(seat))
        try:
            if hello.phase is GatePhase.WAITING or not seat.tree.handle:
                tree = self._node.world.procs.child_of(init.pid)
                root = Process(tree, self._node.world.procs.start_time(tree))
                seat.tree.placed(root, self._node.world.freezer.place(tree))
        except NotFoundError as error:
            log.info("%s: ended before its tree was placed: %s", seat, error)
            self._life.watch_end(seat)
            return
        seat.contact.made()
        if seat.state in AT_GATE and hello.phase is not GatePhase.RUNNING:
            self._adoptions.at_gate(seat)
        if hello.phase is GatePhase.WAITING and seat.state is SeatState.STARTING:
            # Not left to the work: one hello after the other could drop it before it looks.
            if late := self._node.start_overdue(seat):
                self._life.fail(seat, late)
            else:
                # Whether there was room may have been asked by nobody, or long ago.
                self._life.work(seat, self._life.start(seat))
        elif hello.phase is GatePhase.RUNNING and seat.state in AT_GATE:
            # The journal knows nothing of its start: it was lost.
            seat.history.found(hello.generation)
            seat.saved.settled(Begins.ADOPTED if seat.wishes.restore else Begins.OPEN)
            self._node.transition(
                seat, SeatEvent.FOUND, "found running, without a record of its start"
            )
            self._life.work(seat, self._accept_running(seat))
        self._life.fail_lost(seat)
        self._node.save(seat)

    def came_back(self, seat: Seat) -> None:
        """What it was is gone: the kyb-init that waits for its place gets it."""
        hello = seat.contact.next_one()
        if hello is not None:
            self.on_hello(seat.uid, hello)

    def on_term(self, uid: PodUid, signum: int) -> None:
        """The container was asked to end."""
        seat = self._node.seats.get(uid)
        if seat is None:
            self._node.world.doors.ok(uid)
            return
        log.info("%s: asked to end by signal %d", seat, signum)
        self._life.end(seat)
        if seat.state is not SeatState.PARKING:
            self._node.world.doors.ok(uid)

    def on_exit(self, uid: PodUid, code: int) -> None:
        """PID 1 is about to exit."""
        seat = self._node.seats.get(uid)
        if seat is not None:
            seat.history.explained(f"its container exited with status {code}")
            self._away(seat)

    def on_lost(self, uid: PodUid) -> None:
        """The connection of PID 1 is closed."""
        seat = self._node.seats.get(uid)
        if seat is not None:
            self._away(seat)

    def _away(self, seat: Seat) -> None:
        seat.contact.lost()
        self._life.watch_end(seat)
        self._kick()

    def on_status(self, uid: PodUid) -> tuple[str, str]:
        """For `kyb-init status`: its state, and why; of a parked one also where it is."""
        seat = self._node.seats.get(uid)
        if seat is None:
            return "unknown", "the agent has no such seat"
        return shown(seat.state), told(seat.state, seat.why, seat.saved.sinks_to)

    def on_probe(self, uid: PodUid) -> str:
        """For `kyb-init probe`: ask the workload only while it can answer."""
        seat = self._node.seats.get(uid)
        if seat is None or seat.state is SeatState.FAILED:
            return "dead"
        asks = (SeatState.STARTING, SeatState.ACTIVE, SeatState.DRAINING)
        return "run" if seat.state in asks else "alive"

    def on_turn(self, uid: PodUid, *, wanted: bool) -> None:
        """The workload knows its phases: it wants its GPUs from now on, or gives up its turn."""
        seat = self._node.seats.get(uid)
        if seat is None or (seat.wishes.acquired, seat.wishes.yields) == (wanted, not wanted):
            return
        # Whose turn is over already gives up none.
        yields = not wanted and seat.state in (SeatState.ACTIVE, SeatState.DRAINING)
        seat.wishes.phase(acquired=wanted, yields=yields)
        self._node.save(seat)
        self._kick()

    def on_progress(self, uid: PodUid, sentence: str) -> None:
        """The workload's sidecar says how far it is: worth a look while it isn't serving yet."""
        seat = self._node.seats.get(uid)
        if (
            seat is not None
            and seat.state is SeatState.STARTING
            and seat.history.reason != sentence
        ):
            seat.history.explained(sentence)
            self._node.changed(seat)
