"""What the container runtime asks when it is to checkpoint or restore a managed container.

`kyb-runtime` stands in for runc (docs/how-to/install/runtime-wrapper.md). For a checkpoint the
seat is parked in RAM, as for any other reason, and held there, thawed and without a connection to
its agent, until the runtime has its image; then it is frozen again, and wakes if it was awake. A
restored tree says hello like any tree without a record, is found parked, and its seat is woken.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.container.seatsocket import FrameReader, ProtocolError, encode
from kybernate.core.seat.seats import AT_GATE, OCCUPYING, WITHOUT_TREE
from kybernate.errors import KybernateError, NotFoundError, RefusedError
from kybernate.types import SeatState
from nodeagent.seat.parts.wishes import HELD
from nodeagent.seat.restored import Restored

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from kybernate.types import PodUid
    from nodeagent.api.runtimemarks import Containers, Imaging, Marks
    from nodeagent.guard.outside import Deciding
    from nodeagent.seat.parts.tree import Process
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

PROTOCOL = "1"
_ASK_LIMIT = 5.0
_FRAME_LIMIT = 2048
_PARK_LIMIT = 300.0
"""Seconds that a seat may take to finish its requests and leave its GPUs."""
_LOOK = 0.02
_PARK_LOOK = 0.25
_HOLDABLE = OCCUPYING - {SeatState.STARTING, SeatState.FAILED} | {
    SeatState.PARKED,
    SeatState.DUMPING,
    SeatState.RESTORING,
}


class RuntimeDoor:
    """Implements `node.Observer`; made before the seats are recovered. `lost` is told of a seat
    whose process 1 has ended meanwhile."""

    def __init__(
        self,
        deciding: Deciding,
        lost: Callable[[PodUid], None],
        marks: Marks,
        imaging: Imaging,
        containers: Containers,
        folder: Path,
    ) -> None:
        self._node = deciding.node
        self._life = deciding.life
        self._steps = deciding.steps
        self._operators = deciding.operators
        self._lost = lost
        self._marks = marks
        self._imaging = imaging
        self._containers = containers
        self._socket = folder / "runtime.sock"
        self._known: dict[PodUid, tuple[Process, str]] = {}
        self._restored = Restored(self._node, self._life, self._operators.request_wake)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._node.observe(self)

    async def serve(self) -> None:
        """Mark the containers that run, let go who was held by the last agent, and listen."""
        self._drop_ended()
        for seat in tuple(self._node.seats.values()):
            self._mark(seat)
            if seat.wishes.leave == HELD:
                self._begin(self._release(seat))
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._socket)
        finally:
            os.umask(before)

    def close(self) -> None:
        """Serve no more; who is held stays so until the next agent."""
        if self._server is not None:
            self._server.close()

    # --- which containers are ours --------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._mark(seat)
        self._restored.changed(seat)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._forget(seat.uid)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Events are for people."""

    def _mark(self, seat: Seat) -> None:
        known = self._known.get(seat.uid)
        if seat.tree.init is None:
            self._forget(seat.uid)
            if seat.wishes.leave == HELD or seat.uid in self._imaging.held:
                self._let_go(seat, awake=False)
        elif known is None or known[0] != seat.tree.init:
            self._forget(seat.uid)
            try:
                container = self._containers.container_id_of(seat.tree.init.pid)
            except NotFoundError:
                return
            if container is not None:
                self._known[seat.uid] = (seat.tree.init, container)
                self._write(container, seat.tree.init)
                self._restored.entered(seat, container)

    def _write(self, container: str, init: Process) -> None:
        try:
            self._marks.put(container, init)
        except OSError as error:
            log.warning("the runtime is not told of container %s: %s", container, error)

    def _forget(self, uid: PodUid) -> None:
        self._restored.forget(uid)
        known = self._known.pop(uid, None)
        if known is not None:
            self._marks.remove(known[1])

    def _drop_ended(self) -> None:
        for container, init in self._marks.all().items():
            if not self._node.world.procs.alive(init.pid, init.start):
                self._marks.remove(container)

    # --- the door -------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            words = await asyncio.wait_for(_first_frame(reader), _ASK_LIMIT)
            answer = await self.answer(words)
            with suppress(ConnectionError):  # who announces a restore doesn't wait for it
                writer.write(encode(*answer))
                await writer.drain()
        except (ProtocolError, TimeoutError, OSError) as error:
            log.warning("a caller at the runtime's door is dropped: %s", error)
        finally:
            writer.close()

    async def answer(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """What kyb-runtime is answered: `ready`, or `refuse` and a sentence."""
        match words:
            case ("checkpoint", "1", container):
                try:
                    await self._hold(container)
                except KybernateError as error:
                    log.warning("no checkpoint of container %s: %s", container, error)
                    return ("refuse", str(error))
                return ("ready",)
            case ("restore", "1", container):
                self._expect(container)
                return ("ready",)
            case _:
                why = f"this node's agent speaks protocol {PROTOCOL} of kyb-runtime only"
                return ("refuse", why)

    def _expect(self, container: str) -> None:
        self._restored.expect(container)
        for uid, (_, one) in tuple(self._known.items()):
            if one == container:  # its hello was faster
                self._restored.entered(self._node.seats[uid], container)

    # --- a checkpoint ---------------------------------------------------------------------------

    async def _hold(self, container: str) -> None:
        """Bring the seat to where the runtime may take its image. Raises RefusedError."""
        seat = self._seat_in(container)
        if seat.wishes.leave:
            raise RefusedError(
                f"it must stay away from its GPUs: {seat.wishes.leave}; try again later"
            )
        awake = seat.state in OCCUPYING or seat.demand.called
        try:
            self._operators.send_away(seat.uid, HELD, stays_away=True)
            await self._parked(seat)
            await self._node.save(seat, synced=True)
        except (KybernateError, OSError):
            self._let_go(seat, awake=awake)
            raise
        self._imaging.held.add(seat.uid)
        seat.backoff.hold(math.inf)
        await self._node.world.doors.shut(seat.uid)
        self._node.world.freezer.thaw(seat.tree.handle)
        log.info("%s: stands without GPU memory; the container runtime takes its image", seat)
        self._life.work(seat, self._held(seat, awake=awake))

    def _seat_in(self, container: str) -> Seat:
        uid = next((uid for uid, (_, one) in self._known.items() if one == container), None)
        seat = self._node.seats.get(uid) if uid is not None else None
        if seat is None:
            raise RefusedError("the agent has no seat of this container yet; try again in a moment")
        if seat.state in WITHOUT_TREE:
            raise RefusedError(
                f"pod {seat.identity.pod} is offloaded, and its container is empty; its "
                f"artifact is {seat.saved.artifact}; wake it first, or use that"
            )
        if seat.state not in _HOLDABLE or seat.ending.asked or seat.unverified:
            raise RefusedError(
                f"pod {seat.identity.pod} is {seat.state.value}; try again once it serves"
            )
        root, init = seat.tree.root, seat.tree.init
        if root is not None and init is not None:
            self._see_dumpable(root.pid, init.pid)
        return seat

    def _see_dumpable(self, tree: int, init: int) -> None:
        """A restore of ours gives a tree with System V memory an IPC namespace below its
        container's, and CRIU knows no such namespace below that of the process 1 that it dumps."""
        if not self._containers.share_ipc(tree, init):
            raise RefusedError(
                "its System V shared memory has been in a namespace of its own since Kybernate "
                "restored it, which the container runtime can't save; save it by `kubectl kyb "
                "snapshot`, or restart its container before"
            )

    async def _parked(self, seat: Seat) -> None:
        until = self._node.world.now() + _PARK_LIMIT
        while not _stands_whole(seat):
            lost = seat.ending.asked or self._node.seats.get(seat.uid) is not seat
            if lost or seat.state in {*WITHOUT_TREE, *AT_GATE, SeatState.FAILED}:
                raise RefusedError(f"its seat is {seat.state.value} now: {seat.history.reason}")
            if self._node.world.now() >= until:
                why = "its memory still comes in from its artifact" if seat.saved.paging else ""
                raise RefusedError(
                    f"it has not left GPU memory within {_PARK_LIMIT:g} s: "
                    f"{why or seat.backoff.unparkable or seat.history.reason}"
                )
            await asyncio.sleep(_PARK_LOOK if seat.state in OCCUPYING else _LOOK)

    async def _held(self, seat: Seat, *, awake: bool) -> None:
        """Until the runtime has its image: then as it was before. Its end comes to `_mark`."""
        await self._steps.undisturbed(seat)
        if self._alive(seat):
            await self._steps.settle(seat)
        self._let_go(seat, awake=awake)

    def _let_go(self, seat: Seat, *, awake: bool) -> None:
        self._imaging.held.discard(seat.uid)
        seat.backoff.free()
        if self._node.seats.get(seat.uid) is not seat:
            return
        self._operators.let_stay(seat.uid)
        if awake and self._alive(seat):
            self._operators.request_wake(seat.uid, "it was awake before its checkpoint")
        self._begin(self._reopen(seat))

    async def _reopen(self, seat: Seat) -> None:
        await self._node.world.doors.open(seat.uid)
        if not self._alive(seat):
            self._lost(seat.uid)

    async def _release(self, seat: Seat) -> None:
        """After a restart: once the last agent's checkpoint is over, and the seat stands again."""
        await self._steps.undisturbed(seat)
        if seat.tasks.work is not None:
            await asyncio.wait({seat.tasks.work})
        if seat.wishes.leave == HELD:
            self._let_go(seat, awake=True)

    def _alive(self, seat: Seat) -> bool:
        init = seat.tree.init
        return init is not None and self._node.world.procs.alive(init.pid, init.start)

    def _begin(self, what: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _stands_whole(seat: Seat) -> bool:
    """Whether it is parked, with all of its memory: an image would have zeros for what a lazy
    restore has not brought in."""
    at_work = seat.tasks.work is not None and not seat.tasks.work.done()
    return seat.state is SeatState.PARKED and not at_work and not seat.saved.paging


async def _first_frame(reader: asyncio.StreamReader) -> tuple[str, ...]:
    frames = FrameReader(_FRAME_LIMIT)
    while data := await reader.read(_FRAME_LIMIT):
        if found := frames.feed(data):
            return found[0]
    raise ProtocolError("it hung up without a word")
