"""One box: the agent's loop, journal and guard behind local ports, and a kyb-init for each model.

It is the agent of a node without its cluster: who is in GPU memory is decided by the same core, and
what is done about it is journalled and carried out by the same parts. What the kubelet, the device
plugin and the API server do in a cluster is done here: models come from a file, GPUs from NVML,
processes are started by `Launcher`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kybernate import keys
from kybernate.adapters.files.journal import FileJournal
from kybernate.adapters.kernel.memory import KernelMemory
from kybernate.adapters.kernel.pidfds import Pidfds
from kybernate.adapters.kernel.stopper import SignalFreezer
from kybernate.adapters.nvml import Nvml
from kybernate.core.seat.seats import OCCUPYING, TIER_OF
from kybernate.dataclass import dataclass
from kybernate.errors import (
    DeadlineError,
    DriverError,
    KybernateError,
    NotFoundError,
    RefusedError,
)
from kybernate.lib.rounds import rounds
from kybernate.local.box import GpuRow, ModelRow
from kybernate.local.folders import Numbers
from kybernate.local.launch import Command, Launcher
from kybernate.local.link import Link
from kybernate.local.logs import Log
from kybernate.local.measured import Measured
from kybernate.local.ports import Doors, NoContainers, NoEvents
from kybernate.local.processes import BoxInits, BoxProcs
from kybernate.local.specs import any_of, declared, group_of, placed, seat_of, why_left_out
from kybernate.types import PodUid, SeatState, Tier
from nodeagent.app.install import install_kyb_init, kyb_inits
from nodeagent.app.loop import Loop
from nodeagent.app.recover import recover
from nodeagent.app.recoveroffload import clear_of_the_gone
from nodeagent.app.wiring import blocking, traced
from nodeagent.guard.announce import Roster
from nodeagent.guard.outside import Outside
from nodeagent.guard.warden import Warden
from nodeagent.kube.activity import Activity
from nodeagent.offload.gates import OFFLOADED
from nodeagent.operations.wire import expected_wake
from nodeagent.seat.leases import Leases
from nodeagent.seat.node import Inventory, Node, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from kybernate.adapters.cuda.driver import CudaHelpers
    from kybernate.local.folders import Folders
    from kybernate.local.launch import Groups
    from kybernate.local.ports import Servers
    from kybernate.local.specs import ModelSpec
    from kybernate.ports import CooperationPhase, Freezer, Inits
    from kybernate.settings.agent import AgentSettings
    from kybernate.types import Gpu
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat
    from proxy.desk import Desk

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL = 0.02
_LOOK = 5.0
_LOGS_KEPT = 86400.0
_LAST_LINES, _LAST_WORDS = 2048, 300
_HOME = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True)
class _Model:
    """A model of the file, its GPUs (or the first of those that it may be on), and its log."""

    spec: ModelSpec
    gpus: tuple[Gpu, ...]
    uid: PodUid
    log: Log
    pinned: bool


class Engine:
    """Implements `kybernate.local.box.Box`. Make it on a running event loop.

    `helpers` are started by the caller, before all else, for their slow import.
    """

    def __init__(
        self,
        folders: Folders,
        helpers: CudaHelpers,
        settings: AgentSettings,
        servers: Servers,
        kyb_init: Path,
    ) -> None:
        folders.make()
        self._folders = folders
        self._servers = servers
        self._nvml = Nvml(renews=True)
        procs = BoxProcs(folders.seats)
        self._procs = procs
        parts = _parts(settings, folders, procs, self._inventory)
        none = NoContainers()
        world = World(
            gpus=self._nvml,
            helpers=helpers,
            freezer=parts.freezer,
            procs=procs,
            doors=Doors(folders.seats, procs, parts.inits, self._do_part),
            specs=none,
            pod_resources=none,
            images=none,
            journal=FileJournal(folders.state / "journal", _HOME.read_text().strip()),
            blocking=blocking,
            asking=self._nvml.ask,
            now=time.monotonic,
            wall=time.time,
            offloading=parts.offloading,
        )
        self.world = world
        leases, memory = Leases(settings.lease_break_s), KernelMemory()
        self.node = Node(
            *(settings, world, leases),
            park_budget=settings.park_bytes,
            healthy=self._is_healthy,
            start_limit=self._start_limit,
        )
        self.loop = Loop(self.node, memory=memory, pinned=self._pinned)
        outside = Outside(procs, memory, Pidfds(), NoEvents(), Roster(), lambda: True)
        self._activity = Activity(self.node)
        self._measured = Measured(Numbers(folders.state / "vram.json", "vram"), self.node)
        self._warden = Warden(self.loop, outside)
        program = install_kyb_init(kyb_init, folders.state / "bin")
        self._spans = traced(self.node, settings)
        self._launcher = Launcher(program, folders.seats, self._ended, parts.groups)
        self._models: dict[str, _Model] = {}
        self._coming: dict[PodUid, asyncio.Task[None]] = {}
        self._link: Link | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # --- its life -------------------------------------------------------------------------------

    async def start(self, specs: Iterable[ModelSpec], owned: Callable[[], None]) -> None:
        """Take up what an earlier process left, and have these models from now on. `owned` is
        called once the box is this process's, before it starts a model. Raises RefusedError if
        another one serves from the same folder, or if what is left was started in another way,
        DriverError without a GPU."""
        running = self._procs.inits()
        self._see_alike(running.values())
        self.node.found(await self._look())
        records = await recover(self.loop)
        owned()
        self._activity.resume(records)
        self.node.observe(self._activity)
        self.node.observe(self._measured)
        self.node.hear_demand(self._activity)
        self.node.set_inventory(await self._look())
        await self.apply(specs, running)
        for uid in self.node.seats.keys() - {model.uid for model in self._models.values()}:
            log.info("%s is not in the file any more: it is ended", self.node.seats[uid])
            self._end_left(uid, running.get(uid))
        looking = rounds(self._look_again, _LOOK, "looking at the GPUs")
        self._tasks = [
            asyncio.create_task(part)
            for part in (
                self._drop_unknown(),
                self._warden.run(),
                self.loop.watch_memory(),
                self.loop.reports.run(),
                self._activity.run(),
                looking,
            )
        ]

    async def apply(
        self, specs: Iterable[ModelSpec], running: Mapping[PodUid, int] | None = None
    ) -> None:
        """Have just these models. Those whose command, address, variables, GPUs or memory changed
        are ended and made again; all others are not touched. `running`: kyb-inits by model."""
        wanted, inventory = list(specs), self.node.inventory or Inventory()
        healthy = tuple(gpu for gpu in inventory.gpus if gpu.healthy)
        gpus = placed(wanted, healthy)
        models = {one.name: self._model(one, gpus[one.name]) for one in wanted if one.name in gpus}
        for spec in wanted:
            if spec.name not in models:
                log.error("%s", why_left_out(spec, healthy))
        before, self._models = self._models, models
        for old in before.values():
            if old.uid not in {model.uid for model in models.values()}:
                self._end_left(old.uid, None)
        self._measured.only(one.uid for one in models.values() if one.spec.by_parks)
        self._regroup()
        known = {old.uid for old in before.values()}
        for model in models.values():
            await self._have(model, fresh=model.uid not in known, running=running or {})
        self.loop.kick()

    def _see_alike(self, inits: Iterable[int]) -> None:
        """Raise RefusedError unless all of these were started as those are that come now."""
        contained = self.world.offloading is not None
        for pid in inits:
            with contextlib.suppress(NotFoundError):
                if (self._procs.pid_in_container(pid) == 1) is not contained:
                    raise RefusedError(
                        f"models of this box were started {'without' if contained else 'with'} "
                        "tiers.nvme: start kybernate serve as it was, end it without --keep, and "
                        "then change that"
                    )

    async def _drop_unknown(self) -> None:
        """Artifacts of models that ended with an earlier boot, or while nobody served."""
        offloading = self.world.offloading
        if offloading is None:
            return
        try:
            found = await offloading.vault.ls(Tier.NVME)
        except (KybernateError, OSError) as error:
            log.warning("what lies on NVMe of models that ended can't be listed: %s", error)
            return
        for one in found:
            self.loop.custody.see_held(one.id, "its model has ended")
        await clear_of_the_gone(self.loop)

    async def stop(self, *, keep: bool) -> None:
        """End all models, or with `keep` leave them as they are for the next `start`."""
        if not keep:
            await self._end(self._launcher.running())
        self._close()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    async def give_up(self) -> None:
        """What was to come after `start`, or that itself, failed: models that ran before this
        process are left as they are, all others end."""
        await self._end(self._launcher.started())
        self._close()

    def _close(self) -> None:
        self._launcher.leave()
        self._launcher.tidy()
        for task in (*self._tasks, *self._coming.values()):
            task.cancel()
        self.world.helpers.close()
        self.world.journal.close()

    async def _end(self, uids: Iterable[PodUid]) -> None:
        seats = [self.node.seats[uid] for uid in uids if uid in self.node.seats]
        patience = max((seat.identity.grace for seat in seats), default=0.0)
        for seat in seats:
            self._launcher.release(seat.uid)
            self._launcher.signal(seat.uid, signal.SIGTERM)
        until = time.monotonic() + patience
        while self._alive(seats) and time.monotonic() < until:  # noqa: ASYNC110 - of several
            await asyncio.sleep(_POLL)
        for seat in self._alive(seats):
            name = seat.identity.model
            log.warning("model %s did not end within %g s: it is killed", name, patience)
            await self._kill(seat.uid)

    def _alive(self, seats: Iterable[Seat]) -> list[Seat]:
        return [seat for seat in seats if self._launcher.pid(seat.uid) is not None]

    async def _kill(self, uid: PodUid) -> None:
        seat = self.node.seats.get(uid)
        if seat is not None and seat.tree.handle:
            with contextlib.suppress(KybernateError):
                limit = self.node.settings.confirm_deadline_s
                await self.world.freezer.kill(seat.tree.handle, limit)
        self._launcher.signal(uid, signal.SIGKILL)

    # --- models and their seats -----------------------------------------------------------------

    def _model(self, spec: ModelSpec, gpus: tuple[Gpu, ...]) -> _Model:
        uid = spec.uid(gpus)
        spec = replace(spec, measured=self._measured.of(uid))
        return _Model(spec, gpus, uid, Log(self._folders.logs / f"{uid}.log"), spec.pin)

    async def _have(self, model: _Model, *, fresh: bool, running: Mapping[PodUid, int]) -> None:
        seat = self.node.seats.get(model.uid)
        if model.uid in self._coming:
            return
        if seat is not None and seat.ending.deleted:
            self._coming[model.uid] = asyncio.create_task(self._have_again(model))
            return
        if seat is None:
            self.loop.add(seat_of(model.spec, model.gpus, self.world.now(), self.world.wall()))
        else:
            seat.may_take(model.spec.grace)
            self.loop.declared(seat, declared(model.spec))
        await self.world.doors.open(model.uid)
        if fresh:
            self._launcher.keep(model.uid, self._command(model), running.get(model.uid))

    async def _have_again(self, model: _Model) -> None:
        """It left the file and came back: it is had once all of what it was has ended."""
        folder = self._folders.seats / model.uid
        while model.uid in self.node.seats or folder.exists():  # noqa: ASYNC110 - of others
            await asyncio.sleep(_POLL)
        del self._coming[model.uid]
        wanted = self._models.get(model.spec.name)
        if wanted is not None and wanted.uid == model.uid:
            await self._have(wanted, fresh=True, running={})
            self.loop.kick()

    def _command(self, model: _Model) -> Command:
        spec = model.spec
        # The seat's own GPU is told to one that may be anywhere as it starts.
        visible = ",".join(gpu.uuid for gpu in model.gpus)
        own = {key: value for key, value in os.environ.items() if value not in spec.secrets}
        given = {**own, "PORT": str(spec.port), **dict(spec.env)}
        return Command(spec.argv, {**given, keys.ENV_CUDA_VISIBLE: visible}, model.log)

    def _end_left(self, uid: PodUid, pid: int | None) -> None:
        """A seat that no model has any more: its processes end, then it is forgotten."""
        self._launcher.release(uid)
        if not self._launcher.signal(uid, signal.SIGTERM) and pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self.loop.pod_gone(uid)

    def _ended(self, uid: PodUid, code: int | None) -> None:
        model = next((one for one in self._models.values() if one.uid == uid), None)
        if model is None:
            return
        ended = f"model {model.spec.name}: its command ended"
        if code is not None:
            ended += f" with status {code}"
        if code:
            log.warning("%s", ended)
        if self._link is not None:
            self._link.ended(uid, f"{ended} before it served{_last_words(model.log)}")

    def _regroup(self) -> None:
        """The node has a group for each set of GPUs that a model has, or had when it began."""
        inventory = self.node.inventory or Inventory()
        healthy = tuple(gpu for gpu in inventory.gpus if gpu.healthy)
        own = [
            any_of(healthy) if model.spec.anywhere else group_of(model.gpus)
            for model in self._models.values()
        ]
        groups = {group.name: group for group in own}
        for seat in self.node.seats.values():
            one = seat.identity
            gpus = [gpu for gpu in map(inventory.gpu, one.gpus) if gpu is not None]
            there = replace(group_of(tuple(gpus)), name=one.group, gpus=one.gpus)
            groups.setdefault(one.group, there)
        self.node.set_inventory(replace(inventory, groups=tuple(groups.values())))

    # --- GPUs -----------------------------------------------------------------------------------

    def _inventory(self) -> Inventory | None:
        return self.node.inventory

    async def _look(self) -> Inventory:
        gpus = await self._nvml.ask(self._nvml.devices, 10.0)
        if not gpus:
            raise DriverError("nvmlDeviceGetCount", 0, "this box has no GPU")
        driver, cuda = await self._nvml.ask(self._nvml.driver_versions, 5.0)
        groups = self.node.inventory.groups if self.node.inventory else ()
        return Inventory(gpus, (), groups, driver, cuda)

    async def _look_again(self) -> None:
        for model in self._models.values():
            self._cut_log(model)
        self._launcher.tidy()
        self._forget_logs()
        found = await self._look()
        if found != self.node.inventory:
            self.node.set_inventory(found)
            self.loop.fail_lost()
            self.loop.kick()

    def _cut_log(self, model: _Model) -> None:
        """Not of one that CRIU has: it recreates a tree only where its files are as long again."""
        seat = self.node.seats.get(model.uid)
        if seat is None or seat.state not in OFFLOADED:
            model.log.cut()

    def _forget_logs(self) -> None:
        """Of models that are no more, or were made again, a day after they last wrote."""
        present = {model.uid for model in self._models.values()} | self.node.seats.keys()
        until = self.world.wall() - _LOGS_KEPT
        for path in self._folders.logs.glob("*.log*"):
            uid = path.name.lstrip(".").partition(".")[0]
            with contextlib.suppress(FileNotFoundError):
                if uid not in present and path.stat().st_mtime < until:
                    path.unlink()

    # --- what the loop asks ---------------------------------------------------------------------

    async def _is_healthy(self, seat: Seat) -> bool:
        model = self._models.get(seat.identity.model)
        if model is None or model.uid != seat.uid or not model.spec.check:
            return True
        return await self._servers.serves(model.spec.address, model.spec.check)

    def _start_limit(self, seat: Seat) -> float | None:
        model = self._models.get(seat.identity.model)
        return model.spec.start_limit if model is not None and model.uid == seat.uid else None

    async def _do_part(self, uid: PodUid, phase: CooperationPhase, limit: float) -> str:
        model = next((one for one in self._models.values() if one.uid == uid), None)
        if model is None or not model.spec.cooperate:
            return ""
        return await self._servers.do_part(model.spec, phase, limit)

    def _pinned(self) -> Mapping[PodUid, str]:
        why = "it is pinned (pin: true in the file, or POST /api/models/pin/MODEL)"
        return {model.uid: why for model in self._models.values() if model.pinned}

    # --- Box ------------------------------------------------------------------------------------

    def models(self) -> tuple[ModelRow, ...]:
        """See `Box.models`."""
        return tuple(self._row(model) for model in self._models.values())

    def gpus(self) -> tuple[GpuRow, ...]:
        """See `Box.gpus`."""
        inventory, foreign = self.node.inventory or Inventory(), self.node.foreign
        return tuple(
            GpuRow(gpu.uuid, gpu.index, gpu.product, gpu.memory, foreign.get(gpu.uuid, 0))
            for gpu in inventory.gpus
        )

    def count(self) -> None:
        """See `Box.count`."""
        self.node.count_states()

    def join(self, desk: Desk) -> None:
        """See `Box.join`."""
        self._link = Link(self.loop.proxies, desk)

    async def park(self, model: str, deadline: float) -> None:
        """See `Box.park`."""
        seat = self._seat(model)
        before = seat.history.last_park_ms
        if seat.state in OCCUPYING:
            self._refuse_pinned(model)
            self.loop.operators.send_away(seat.uid, "somebody asked for it")
            await asyncio.sleep(0)  # it is decided next

        def left(now: Seat) -> bool:
            # Whoever is asked for wakes at once.
            if now.state not in OCCUPYING or now.history.last_park_ms != before:
                return True
            self._refuse_unparkable(model, now)
            return False

        await self._until(model, left, deadline)

    async def wake(self, model: str, deadline: float) -> None:
        """See `Box.wake`."""
        self.loop.operators.request_wake(self._seat(model).uid, "somebody asked for it")
        await self._until(model, lambda now: now.state is SeatState.ACTIVE, deadline)

    async def unload(self, model: str, deadline: float) -> None:
        """See `Box.unload`."""
        seat = self._seat(model)
        life = seat.history.generation

        def over(now: Seat) -> bool:
            # A request that came meanwhile may have had it started again.
            return now.state is SeatState.WAITING or now.history.generation != life

        if await self.loop.operators.unload(seat.uid):
            self._launcher.signal(seat.uid, signal.SIGTERM)
        grace = min(deadline, seat.identity.grace)
        with contextlib.suppress(DeadlineError):
            await self._until(model, over, grace)
        if not over(self._seat(model)):
            await self._kill(seat.uid)
        await self._until(model, over, deadline)

    def pin(self, model: str, *, pinned: bool) -> None:
        """See `Box.pin`."""
        self._known(model).pinned = pinned
        self.loop.kick()

    async def logs(self, model: str, *, follow: bool) -> AsyncIterator[bytes]:
        """See `Box.logs`."""
        async for piece in self._known(model).log.read(follow=follow):
            yield piece

    async def _until(self, model: str, met: Callable[[Seat], bool], deadline: float) -> None:
        until = self.world.now() + deadline
        while not met(self._seat(model)):
            if self.world.now() >= until:
                seat = self._seat(model)
                raise DeadlineError(f"model {model} is {seat.state}: {seat.why}")
            await asyncio.sleep(_POLL)

    def _refuse_pinned(self, model: str) -> None:
        if self._known(model).pinned:
            path = f"POST /api/models/unpin/{model}"
            raise RefusedError(f"model {model} is pinned: unpin it first ({path})")

    def _refuse_unparkable(self, model: str, seat: Seat) -> None:
        """Where states leave RAM there may be room for it soon."""
        why = seat.backoff.unparkable
        if why and seat.state is SeatState.ACTIVE and self.world.offloading is None:
            self.loop.operators.let_stay(seat.uid)
            raise RefusedError(f"model {model} can't be parked now: {why}")

    def _known(self, model: str) -> _Model:
        found = self._models.get(model)
        if found is None:
            raise NotFoundError(f"the file has no model {model!r} that this box can run")
        return found

    def _seat(self, model: str) -> Seat:
        seat = self.node.seats.get(self._known(model).uid)
        if seat is None:
            raise NotFoundError(f"model {model} has just ended, and is made again; try again")
        return seat

    def _row(self, model: _Model) -> ModelRow:
        seat = self.node.seats.get(model.uid)
        gpus: tuple[str, ...] = tuple(gpu.uuid for gpu in model.gpus)
        if seat is None:
            why = "its last processes have ended, and it is made again"
            return ModelRow(model.spec.name, SeatState.WAITING, gpus, why=why, pinned=model.pinned)
        gpus = seat.identity.gpus
        tier, held = TIER_OF.get(seat.state), sum(seat.tree.held.values())
        using = seat.state in OCCUPYING
        wake = 0.0 if seat.state is SeatState.ACTIVE else expected_wake(seat) if tier else None
        return ModelRow(
            name=model.spec.name,
            state=seat.state,
            gpus=gpus,
            size=self.node.seen.get(seat.uid, 0) if using else held,
            tier=tier.value if tier else "",
            wake_s=wake,
            address=seat.contact.address,
            why=seat.why,
            active_since=seat.history.active_since,
            idle_since=seat.demand.idle_since,
            in_flight=seat.demand.in_flight,
            waiting=seat.demand.waiting,
            wakes=seat.history.wakes,
            pinned=model.pinned,
            phases=seat.history.phases,
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What differs where models leave RAM: each has a container then, see `local.nvme`."""

    freezer: Freezer
    inits: Inits
    offloading: Offloading | None = None
    groups: Groups | None = None


def _parts(
    settings: AgentSettings,
    folders: Folders,
    procs: BoxProcs,
    inventory: Callable[[], Inventory | None],
) -> _Parts:
    """Raises ConfigError."""
    if settings.criu is None:
        freezer = SignalFreezer(lambda pid: procs.pod_uid_of(pid) is not None, procs)
        return _Parts(freezer, BoxInits())
    from kybernate.adapters.container.inits import KernelInits  # noqa: PLC0415 - where it is used
    from kybernate.local import nvme  # noqa: PLC0415 - slow, only where it is used

    cgroups, inits = nvme.BoxFreezer(folders), KernelInits(kyb_inits(settings))
    offloading = nvme.offloading(settings, cgroups, inits, procs, inventory)
    return _Parts(cgroups, inits, offloading, cgroups)


def _last_words(written: Log) -> str:
    """The last line of a log, for a sentence; it is the command's own."""
    lines = written.tail(_LAST_LINES).decode(errors="replace").split("\n")
    last = next((one.strip() for one in reversed(lines) if one.strip()), "")
    kept = "".join(one if one.isprintable() else " " for one in last[-_LAST_WORDS:])
    return f"; the last line of its log: {kept}" if kept else ""
