"""The steps of parking and waking, through the ports. Reads seats, never writes to them.

Each step either does what it says, or undoes it (`Reverted`: the seat is as it was), or says
that the seat's state is lost (`Broken`: kill it and start it again).
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kybernate import keys
from kybernate.core.seat.seats import TIER_OF
from kybernate.errors import (
    DeadlineError,
    DriverError,
    KybernateError,
    NotFoundError,
    RefusedError,
)
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.ports import DumpState, ProcessState
from kybernate.types import SeatState
from nodeagent.seat.parts.tree import Process
from nodeagent.seat.parts.wishes import HELD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from kybernate.ports import DriverHelper
    from kybernate.types import GpuUuid, PodUid
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

T = TypeVar("T")

NVML_DEADLINE = 5.0
_HELPERS = 4
_STATES_DEADLINE = 5.0
_DEVICES_S = 5.0
"""Seconds that the kernel gets to let a container to its devices."""
_ROOM_PATIENCE = 0.25
_POLL = 0.002
_IMAGE_POLL = 0.02
_COMPLAIN_AFTER = 60.0
_NO_CONTEXT = (None, ProcessState.NO_CUDA)
_PARKED = ProcessState.CHECKPOINTED
_NO_REMAP = (1, 801)
"""CUDA_ERROR_INVALID_VALUE and CUDA_ERROR_NOT_SUPPORTED."""
_ENV = "/usr/bin/env"


class Reverted(KybernateError):  # noqa: N818 - an outcome, not always an error
    """The step was undone, or never begun: the seat is as it was before."""


class Broken(KybernateError):  # noqa: N818 - an outcome, not always an error
    """The seat's processes can't be brought back to a known state."""


class Steps:
    """Owns the seats' helpers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.world
        self._helpers: dict[PodUid, DriverHelper] = {}
        self._starting: KeyedLocks[PodUid, asyncio.Lock] = KeyedLocks(asyncio.Lock)
        self._drops: dict[PodUid, int] = {}

    async def holders(self, seat: Seat) -> tuple[tuple[Process, ...], dict[GpuUuid, int]]:
        """The seat's processes on its GPUs, and bytes per GPU where NVML knows them. Broken where
        one of them is on another GPU: no map brings both onto the seat's own."""
        tree = set(self._world.freezer.pids(seat.tree.handle))
        found: set[int] = set()
        held: dict[GpuUuid, int] = {}
        for gpu, processes in (await self._processes(self._reached(seat))).items():
            mine = [(pid, size) for pid, size in processes if pid in tree]
            if gpu not in seat.identity.gpus:
                if astray := [pid for pid, size in mine if size != 0]:
                    raise Broken(_astray(seat, astray[0], gpu))
                continue
            found.update(pid for pid, _ in mine)
            sizes = [size for _, size in mine if size is not None]
            if len(sizes) == len(mine):
                held[gpu] = sum(sizes)
        return self._named(sorted(found)), held

    def _named(self, pids: Iterable[int]) -> tuple[Process, ...]:
        named = []
        for pid in pids:
            with contextlib.suppress(NotFoundError):
                named.append(Process(pid, self._world.procs.start_time(pid)))
        return tuple(named)

    async def _processes(
        self, gpus: tuple[GpuUuid, ...]
    ) -> dict[GpuUuid, tuple[tuple[int, int | None], ...]]:
        read = self._world.gpus.processes
        return await self._world.asking(lambda: {gpu: read(gpu) for gpu in gpus}, NVML_DEADLINE)

    async def started(self, seat: Seat) -> bool:
        """Whether the workload serves: it listens on its port and is healthy, or holds a GPU if it
        has none."""
        if seat.identity.port is None:
            return bool((await self.holders(seat))[0])
        pids = self._world.freezer.pids(seat.tree.handle)
        listens = bool(pids) and self._world.procs.listening(pids, seat.identity.port)
        return listens and await self._node.healthy(seat)

    async def lack_of_room(self, seat: Seat, patience: float = _ROOM_PATIENCE) -> str | None:
        """Why its GPUs haven't the memory free that it needs, or None if they have."""
        until = self._world.now() + patience
        while True:
            lack = await self._lack(seat)
            if lack is None or self._world.now() >= until:
                return lack
            await asyncio.sleep(_POLL)

    async def _lack(self, seat: Seat) -> str | None:
        gpus = seat.identity.gpus
        read = self._world.gpus.used
        used = await self._world.asking(lambda: [read(gpu) for gpu in gpus], NVML_DEADLINE)
        memory = self._node.inventory.memory() if self._node.inventory else {}
        for gpu, taken in zip(gpus, used, strict=True):
            if gpu not in memory:
                return f"GPU {gpu} isn't healthy, or isn't in the plugin's inventory"
            need = self._need(seat, gpu, memory[gpu])
            if taken + need > memory[gpu]:
                return (
                    f"GPU {gpu} has {taken} of {memory[gpu]} bytes in use and the seat needs {need}"
                )
        return None

    def _need(self, seat: Seat, gpu: GpuUuid, memory: int) -> int:
        if gpu in seat.tree.held:
            return seat.tree.held[gpu]
        whole = memory - self._node.settings.reserve_bytes - self._node.foreign.get(gpu, 0)
        return whole if seat.identity.vram is None else seat.identity.vram

    async def argv_prefix(self, seat: Seat) -> tuple[str, ...]:
        """The image's words that come before the pod's. RetryableError, NotFoundError,
        RefusedError. Of a seat that may be anywhere, those which tell the command its GPU."""
        if seat.identity.anywhere:
            visible = ",".join(seat.identity.gpus)
            return _ENV, f"{keys.ENV_CUDA_VISIBLE}={visible}"
        if not seat.contact.image_mode:
            return ()
        command = await self._world.images.command_of(seat.identity.image)
        prefix = command.entrypoint + (() if seat.identity.has_args else command.cmd)
        if not prefix and not seat.identity.has_args:
            raise RefusedError(
                f"image {seat.identity.image} names no command; name one in the pod's container"
            )
        return prefix

    async def helper(self, seat: Seat) -> DriverHelper:
        """The seat's helper, started if there is none. Raises DriverError, DeadlineError."""
        async with self._starting[seat.uid]:
            if seat.uid not in self._helpers:
                self._helpers[seat.uid] = await self._new_helper(seat)
            return self._helpers[seat.uid]

    async def _new_helper(self, seat: Seat) -> DriverHelper:
        drops = self._drops.get(seat.uid, 0)
        helper = await self._world.helpers.start(seat.uid)
        if self._drops.get(seat.uid, 0) != drops or seat.state is SeatState.GONE:
            # Nobody would end it any more.
            helper.kill()
            raise DeadlineError("the seat ended while its helper was started")
        return helper

    def drop_helper(self, seat: Seat) -> None:
        """End the seat's helper, if it has one or is just getting one."""
        self._drops[seat.uid] = self._drops.get(seat.uid, 0) + 1
        helper = self._helpers.pop(seat.uid, None)
        if helper is not None:
            helper.kill()

    def forget(self, seat: Seat) -> None:
        """The seat is gone for good."""
        self.drop_helper(seat)
        self._drops.pop(seat.uid, None)

    async def park(self, seat: Seat) -> dict[str, float]:
        """Lock, checkpoint, freeze, confirm. Returns seconds by phase; Reverted, Broken."""
        phases = dict(await self._checkpoint(seat)) if seat.tree.cuda else {}
        return {**phases, **await self.settle(seat)}

    async def undisturbed(self, seat: Seat) -> None:
        """Return once nobody takes an image of its tree."""
        began = self._world.now()
        while self._world.imaging(seat):
            if self._world.now() >= began + _COMPLAIN_AFTER:
                why = f"{HELD} for longer than {_COMPLAIN_AFTER:g} s, or has left it paused"
                self._node.complain(seat, "CheckpointLong", why)
            await asyncio.sleep(_IMAGE_POLL)

    async def settle(self, seat: Seat, *, may_wake: bool = True) -> dict[str, float]:
        """Freeze the checkpointed tree and see that its memory is free; Reverted, Broken.
        `may_wake`: whether it may wake on its GPUs again where it can't be frozen."""
        await self.undisturbed(seat)
        began = self._world.now()
        try:
            await self._world.freezer.freeze(
                seat.tree.handle, self._node.settings.freeze_deadline_s
            )
        except (DeadlineError, NotFoundError) as error:
            await self._undo(seat, f"its tree could not be frozen: {error}", may_wake=may_wake)
        frozen = self._world.now()
        await self._confirm_free(seat, may_wake=may_wake)
        return {"freeze": frozen - began, "confirm": self._world.now() - frozen}

    async def _checkpoint(self, seat: Seat) -> Mapping[str, float]:
        settings = self._node.settings
        until = self._world.now() + settings.step_deadline_s / 2
        try:
            helper = await self.helper(seat)
            return await helper.park(_pids(seat), settings.lock_timeout_s, settings.step_deadline_s)
        except DeadlineError as error:
            self.drop_helper(seat)
            if await self._all(seat, ProcessState.RUNNING):
                raise Reverted(f"the driver did not begin to park it: {error}") from error
            if self._world.now() < until:
                # The helper was dead, rather than hung: another may take back what it did.
                await self._undo(seat, f"the driver was left in the middle of parking it: {error}")
            raise Broken(f"the driver did not finish parking it: {error}") from error
        except DriverError as error:
            if await self._all(seat, ProcessState.RUNNING):
                raise Reverted(f"the driver would not park it: {error}") from error
            raise Broken(f"the driver failed to park it: {error}") from error

    async def _undo(self, seat: Seat, why: str, *, may_wake: bool = True) -> None:
        if not may_wake or seat.unverified or seat.state in TIER_OF:
            raise Broken(f"{why}, and it has no right to memory of its GPUs")
        try:
            await self.finish_wake(seat)
        except Broken as error:
            raise Broken(f"{why}, and undoing the checkpoint failed: {error}") from error
        raise Reverted(why)

    async def _confirm_free(self, seat: Seat, *, may_wake: bool) -> None:
        """Wait till NVML shows none of its tree on its GPUs; raises Reverted, Broken."""
        until = self._world.now() + self._node.settings.confirm_deadline_s
        while (doubt := await self._doubt(seat, may_wake=may_wake)) is not None:
            if self._world.now() >= until:
                raise Broken(
                    f"{doubt} {self._node.settings.confirm_deadline_s:g} s after the checkpoint"
                )
            await asyncio.sleep(_POLL)

    async def _doubt(self, seat: Seat, *, may_wake: bool) -> str | None:
        """Why its memory can't be called free. It is checkpointed: an error is no way back."""
        try:
            shown = await self._shown(seat, self._reached(seat))
            # It began between the look at the holders and the freeze: it was never checkpointed.
            begun = bool(shown - set(_pids(seat)))
            if begun:
                await self.holders(seat)  # on another GPU nothing of it may run on
        except (DriverError, DeadlineError) as error:
            return f"NVML does not say whether its memory is free ({error})"
        if begun:
            why = "a process of it began to use a GPU while it was parked"
            await self._undo(seat, why, may_wake=may_wake)
        return "NVML still shows its processes on the GPU" if shown else None

    def _reached(self, seat: Seat) -> tuple[GpuUuid, ...]:
        """Its GPUs, and others where what begins late may begin: of a seat that may be anywhere
        all, since its command knows the one where it was started; of a tree that is to wake on
        others than it was on, those that it was on."""
        one = seat.identity
        known = self._node.inventory.memory() if self._node.inventory else {}
        others = known if one.anywhere else seat.tree.gpu_map.keys() & known.keys()
        return (*one.gpus, *(gpu for gpu in others if gpu not in one.gpus))

    async def _on_healthy_gpus(self, seat: Seat) -> bool:
        """Whether NVML shows one of its processes there."""
        return bool(await self._shown(seat, self._healthy(self._reached(seat))))

    def _healthy(self, gpus: Iterable[GpuUuid]) -> tuple[GpuUuid, ...]:
        """Of a lost GPU NVML can say nothing."""
        inventory = self._node.inventory
        healthy = inventory.memory() if inventory else None
        return tuple(gpu for gpu in gpus if healthy is None or gpu in healthy)

    async def _shown(self, seat: Seat, gpus: tuple[GpuUuid, ...]) -> set[int]:
        tree = self._world.freezer.pids(seat.tree.handle) if seat.tree.handle else ()
        mine = {*_pids(seat), *tree}
        rows = (await self._processes(gpus)).values()
        return {pid for row in rows for pid, size in row if pid in mine and size != 0}

    async def open_devices(self, seat: Seat, *, stays: bool = False) -> None:
        """Its container may open its GPUs; what comes of it after an error is undone, unless it
        `stays`. Raises NotFoundError, RetryableError, DeadlineError, OSError."""
        init, procs = seat.tree.init, self._world.procs
        if init is not None:
            device = seat.identity.device_id
            is_there = partial(procs.alive, init.pid, init.start)
            released = self._world.specs.release
            await released(device, init.pid, is_there, _DEVICES_S, stays=stays)

    async def shut_devices(self, seat: Seat) -> None:
        """Its container, which waits for its turn, may open its GPUs no more. Raises as
        `open_devices`."""
        init, procs = seat.tree.init, self._world.procs
        if init is not None:
            is_there = partial(procs.alive, init.pid, init.start)
            device = seat.identity.device_id
            await self._world.specs.shut(device, init.pid, is_there, _DEVICES_S)

    async def wake(self, seat: Seat) -> dict[str, float]:
        """Thaw, restore, unlock, check. Returns seconds by phase; raises Broken. Reverted: the
        driver won't have it on other GPUs than it was on, and it is thawed, but parked as before.
        """
        began = self._world.now()
        self._world.freezer.thaw(seat.tree.handle)
        thawed = self._world.now()
        try:
            phases = await self._restored(seat)
        except Broken as error:
            if await self._was_not_moved(seat, error.__cause__):
                gpus = " and ".join(f"{old} to {new}" for old, new in seat.tree.gpu_map.items())
                why = f"the driver does not move it from GPU {gpus}: {error.__cause__}"
                raise Reverted(why) from error
            raise
        return {"thaw": thawed - began, **phases}

    async def _was_not_moved(self, seat: Seat, error: BaseException | None) -> bool:
        """Whether all that went wrong is that the driver refuses its new GPUs, and it may wake on
        its old ones later. A seat of a group may not: those are another group's, or node's."""
        refused = isinstance(error, DriverError) and error.code in _NO_REMAP
        may_stay = seat.identity.anywhere and bool(seat.tree.gpu_map)
        return may_stay and refused and await self._all(seat, _PARKED)

    async def finish_wake(self, seat: Seat) -> dict[str, float]:
        """From wherever its processes are to RUNNING. Raises Broken."""
        self._world.freezer.thaw(seat.tree.handle)
        return await self._restored(seat)

    async def _restored(self, seat: Seat) -> dict[str, float]:
        # It was let to them when it began, and the runtime may have laid down its own list again.
        with contextlib.suppress(KybernateError, OSError):
            await self.open_devices(seat, stays=True)
        if not seat.tree.cuda:
            return {}
        try:
            return dict(await self._restore(seat))
        except (DeadlineError, DriverError) as error:
            self.drop_helper(seat)
            raise Broken(f"the driver failed to wake it: {error}") from error

    async def _restore(self, seat: Seat) -> Mapping[str, float]:
        deadline, moved = self._node.settings.step_deadline_s, seat.tree.gpu_map
        return await self._ask(seat, lambda one: one.wake(_pids(seat), moved, deadline), deadline)

    async def _ask(
        self, seat: Seat, what: Callable[[DriverHelper], Awaitable[T]], deadline: float
    ) -> T:
        """Have the seat's helper do it. Raises DeadlineError, DriverError.

        One that was dead, rather than hung, has done no harm: another may do it.
        """
        until = self._world.now() + deadline / 2
        for _ in range(_HELPERS - 1):
            try:
                return await what(await self.helper(seat))
            except DeadlineError:
                self.drop_helper(seat)
                if self._world.now() >= until:
                    raise
        return await what(await self.helper(seat))

    async def find_gpus(self, seat: Seat) -> frozenset[GpuUuid]:
        """All GPUs of the node that its tree has memory of, by NVML. Raises DriverError,
        DeadlineError."""
        inventory = self._node.inventory
        tree = set(self._world.freezer.pids(seat.tree.handle))
        rows = await self._processes(tuple(inventory.memory() if inventory else ()))
        return frozenset(
            gpu for gpu, row in rows.items() if any(pid in tree and size != 0 for pid, size in row)
        )

    async def find_cuda(self, seat: Seat) -> tuple[Process, ...]:
        """The tree's processes with a CUDA context, parked or not, by the driver's word."""
        pids = self._world.freezer.pids(seat.tree.handle)
        states = await self._states(seat, pids)
        return self._named(pid for pid in pids if states.get(pid) not in _NO_CONTEXT)

    async def states(self, seat: Seat) -> frozenset[ProcessState]:
        """The different states that its processes are in. Raises DeadlineError, DriverError.

        One that has ended says nothing of the others: NO_CUDA is there only if all have.
        """
        if not seat.tree.cuda:
            return frozenset()
        found = frozenset((await self._states(seat, _pids(seat))).values())
        return found - {ProcessState.NO_CUDA} or found

    async def _states(self, seat: Seat, pids: Sequence[int]) -> Mapping[int, ProcessState]:
        return await self._ask(
            seat, lambda one: one.states(pids, _STATES_DEADLINE), _STATES_DEADLINE
        )

    async def _all(self, seat: Seat, state: ProcessState) -> bool:
        try:
            return await self.states(seat) == {state}
        except (DeadlineError, DriverError):
            self.drop_helper(seat)
            return False

    async def kill(self, seat: Seat) -> None:
        """End every process of the tree. Raises DeadlineError if some live on."""
        self.drop_helper(seat)
        if seat.tree.handle:
            await self._world.freezer.kill(seat.tree.handle, self._node.settings.confirm_deadline_s)
        self._end_empty(seat)

    def _end_empty(self, seat: Seat) -> None:
        """kyb-init takes the end of a tree that is dumped for nothing: end its container."""
        offloading, init = self._world.offloading, seat.tree.init
        if offloading is not None and init is not None:
            with contextlib.suppress(NotFoundError):
                if offloading.dumper.state(init.pid) is not DumpState.RUNNING:
                    offloading.culprits.kill(init.pid, init.start)

    async def gone(self, seat: Seat) -> bool:
        """Whether nothing of it is left, not on the GPUs either."""
        procs = self._world.procs
        if seat.tree.init and procs.alive(seat.tree.init.pid, seat.tree.init.start):
            return False
        if seat.tree.handle and self._world.freezer.pids(seat.tree.handle):
            return False
        if any(procs.alive(process.pid, process.start) for process in seat.tree.cuda):
            return False
        return not seat.tree.cuda or not await self._on_healthy_gpus(seat)


def _astray(seat: Seat, pid: int, gpu: GpuUuid) -> str:
    own = " and ".join(seat.identity.gpus)
    why = f"process {pid} of it uses GPU {gpu}, and the seat is on {own}"
    if seat.identity.anywhere:
        why += "; a model that starts processes later lists its GPU in models.yaml, as in gpus: [0]"
    return why


def _pids(seat: Seat) -> list[int]:
    return [process.pid for process in seat.tree.cuda]
