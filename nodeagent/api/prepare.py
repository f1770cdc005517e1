"""PreStartContainer: from a device ID to the pod that holds it, and the CDI file it shall have."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from kybernate import keys
from kybernate.errors import (
    ConfigError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.retry import retry, steadily
from kybernate.ports import SeatSpec
from kybernate.types import GpuUuid, GroupName, SeatName
from nodeagent.guard import devices
from nodeagent.seat.record import Seat, SeatIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kybernate.ports import Holder
    from kybernate.types import Gpu, Group, PodRef, PodUid
    from nodeagent.kube.pods import PodCache, PodFacts
    from nodeagent.seat.node import Inventory, Node

log = logging.getLogger(__name__)

_SPEC_DEADLINE = 5.0
_PAUSES = steadily(1.0)
_RETRY_FOR = 120.0


class Seats(Protocol):
    """The seats of the node, which the loop has."""

    node: Node

    def add(self, seat: Seat) -> None:
        """A seat is new."""
        ...

    def pod_gone(self, uid: PodUid) -> None:
        """The pod no longer exists, or has ended for good."""
        ...


class Pods(Protocol):
    """The API server's word on pods."""

    async def read(self, namespace: str, name: str) -> PodFacts | None:
        """The pod now; None if it asks for no seat. NotFoundError, RetryableError."""
        ...

    async def started(self, namespace: str, name: str) -> frozenset[PodUid]:
        """UIDs of the pods of this name whose sandbox is ready on this node, as the container
        runtime says. RetryableError."""
        ...

    def mark_seat(self, facts: PodFacts, seat: SeatName) -> None:
        """Write kyb.ai/seat into the pod, soon; queued."""
        ...

    def touch(self, pod: PodRef) -> None:
        """Have the kubelet look at the pod again, soon: it retries by itself after 11 s only."""
        ...


class Preparer:
    """Names seats and writes their CDI files. `kyb_init` is the file mounted as the gate."""

    def __init__(self, seats: Seats, cache: PodCache, pods: Pods, kyb_init: Path) -> None:
        self._seats = seats
        self._node = seats.node
        self._cache = cache
        self._pods = pods
        self._kyb_init = kyb_init
        self._one = asyncio.Lock()
        self._retries: dict[tuple[str, tuple[str, ...]], asyncio.Task[None]] = {}

    def awaited(self, resource: str) -> list[str]:
        """Groups of pods that are bound here and have no seat yet, oldest bind first."""
        bound = self._cache.bound(resource)
        return [str(p.group) for p in bound if p.ref.uid not in self._node.seats]

    async def prepare(self, resource: str, device_ids: Sequence[str]) -> Seat:
        """The seat of the pod that holds these devices, its CDI file and socket in place.

        Idempotent. RetryableError: the cause may pass; the agent continues trying by itself and
        then touches the pod. RefusedError: it never will.
        """
        key = (resource, tuple(device_ids))
        try:
            seat = await self._prepare(resource, device_ids)
        except RetryableError:
            self._retry(key)
            raise
        if (retry := self._retries.pop(key, None)) is not None:
            retry.cancel()
        return seat

    async def _prepare(
        self, resource: str, device_ids: Sequence[str], *, runs: bool = False
    ) -> Seat:
        """`runs`: its container may be there already."""
        if len(device_ids) != 1:
            raise RefusedError(
                f"a container holds {len(device_ids)} seats of {resource}; ask for exactly one"
            )
        try:
            holder = await self._node.world.pod_resources.holder(resource, device_ids)
        except NotFoundError as error:
            raise RetryableError(f"the kubelet does not list {device_ids[0]} yet") from error
        facts = await self._facts(holder)
        await self._same_pod(facts, holder, device_ids[0])
        async with self._one:
            return await self._seat_for(facts, holder, device_ids[0], runs=runs)

    async def _facts(self, holder: Holder) -> PodFacts:
        try:
            facts = await self._pods.read(holder.namespace, holder.pod)
        except RetryableError:
            # A pod that is known here can restart its containers while the API server is away.
            facts = self._cache.named(holder.namespace, holder.pod)
            if facts is None:
                raise
        except NotFoundError as error:
            raise RetryableError(f"pod {holder.namespace}/{holder.pod} does not exist") from error
        except ConfigError as error:
            raise RefusedError(str(error)) from error
        if facts is None or facts.container != holder.container:
            raise RefusedError(
                f"container {holder.container} of pod {holder.namespace}/{holder.pod} holds a seat "
                f"that its spec does not ask for; ask for one {keys.seat_resource(1)} in its limits"
            )
        return facts

    async def _same_pod(self, facts: PodFacts, holder: Holder, device_id: str) -> None:
        """Make sure that this ID is this pod's, and not that of an older pod of its name.

        The kubelet lists names. A pod whose container is about to be created has a sandbox that is
        ready and its ID in the list: so if the only sandbox of the name is this pod's, and after
        that the only ID of the name is this one, they belong together. Raises RetryableError.
        """
        started = await self._pods.started(holder.namespace, holder.pod)
        if started != {facts.ref.uid}:
            others = ", ".join(sorted(started)) or "none"
            raise RetryableError(
                f"pod {facts.ref} has UID {facts.ref.uid}, and those of this name that run here "
                f"are {others}: another pod of the same name is coming or going"
            )
        held = await self._node.world.pod_resources.held()
        name = (holder.namespace, holder.pod)
        mine = sorted(one for one, by in held.items() if (by.namespace, by.pod) == name)
        if mine != [device_id]:
            raise RetryableError(
                f"the kubelet lists {', '.join(mine) or 'nothing'} for pods named {facts.ref}, and "
                f"not {device_id} alone: an older pod of the same name is going"
            )

    async def _seat_for(
        self, facts: PodFacts, holder: Holder, device_id: str, *, runs: bool
    ) -> Seat:
        inventory, group = self._group_of(facts)
        gpus = _gpus_of(inventory, group)
        seat = self._node.seats.get(facts.ref.uid)
        if self._by_device_id():
            _check_same(device_id, group, facts)
        if seat is None:
            name = SeatName(device_id) if self._by_device_id() else self._free_name(group)
            identity = SeatIdentity(
                pod=facts.ref,
                container=holder.container,
                resource=facts.resource,
                device_id=device_id,
                name=name,
                group=group.name,
                gpus=group.gpus,
                vram=facts.vram,
                model=facts.model or facts.ref.name,
                image=facts.image,
                port=facts.port,
                has_args=facts.has_args,
                grace=facts.grace,
                namespace_uid=facts.namespace_uid,
            )
            seat = Seat(identity, self._bound_at(facts), self._node.world.wall())
        elif seat.identity.device_id != device_id:
            seat.is_device(device_id)
            self._node.save(seat)
        folder = await self._node.world.doors.open(facts.ref.uid)
        await self._write(seat, self._spec(seat, gpus, folder, runs=runs))
        if self._cache.is_gone(facts.ref.uid):
            # Of a seat that was there before, its own end closes the door.
            if facts.ref.uid not in self._node.seats:
                await self._node.world.doors.close(facts.ref.uid)
            raise RetryableError(f"pod {facts.ref} was deleted while its seat was prepared")
        if facts.ref.uid not in self._node.seats:
            seat.contact.moved(facts.ip)
            seat.wishes.continues(facts.restore)
            seat.wishes.declared(facts)
            self._seats.add(seat)
        if facts.seat is None:
            self._pods.mark_seat(facts, seat.identity.name)
        return seat

    def _by_device_id(self) -> bool:
        """Whether containers get the GPUs of their device ID, because the runtime has no CDI."""
        return self._node.inventory is not None and self._node.inventory.strategy == "nodes"

    def _bound_at(self, facts: PodFacts) -> float:
        """The bind's wall-clock time on the loop's clock."""
        world = self._node.world
        return world.now() - max(0.0, world.wall() - facts.assigned_at)

    def _group_of(self, facts: PodFacts) -> tuple[Inventory, Group]:
        if facts.group is None:
            raise RefusedError(
                f"pod {facts.ref} has no annotation {keys.ASSIGNED_GROUP}: it never passed the "
                f"extender; set schedulerName: {keys.SCHEDULER_NAME}"
            )
        inventory = self._node.inventory
        if inventory is None:
            raise RetryableError("the device plugin has not reported this node's GPUs yet")
        group = inventory.group(facts.group)
        if group is None:
            raise RefusedError(
                f"group {facts.group} of pod {facts.ref} does not exist on this node; groups here: "
                + ", ".join(g.name for g in inventory.groups)
            )
        if group.resource != facts.resource:
            raise RefusedError(
                f"group {facts.group} has seats of {group.resource}, and pod {facts.ref} asks for "
                f"{facts.resource}"
            )
        return inventory, group

    def _free_name(self, group: Group) -> SeatName:
        here = [s for s in self._node.seats.values() if s.identity.group == group.name]
        if len(here) >= group.seats:
            names = ", ".join(str(s.identity.pod) for s in here)
            text = f"all {group.seats} seats of group {group.name} are held, by {names}"
            if any(seat.ending.asked or seat.ending.deleted for seat in here):
                raise RetryableError(f"{text}; one of them is ending")
            raise RefusedError(f"{text}; delete one of them or bind to another group")
        taken = {seat.identity.name for seat in here}
        numbers = range(1, group.seats + 1)
        names_free = (SeatName(keys.seat_name(group.name, k)) for k in numbers)
        return next(name for name in names_free if name not in taken)

    def _spec(self, seat: Seat, gpus: tuple[Gpu, ...], folder: Path, *, runs: bool) -> SeatSpec:
        uuids = ",".join(gpu.uuid for gpu in gpus)
        env = {
            keys.ENV_GROUP: str(seat.identity.group),
            keys.ENV_SEAT: str(seat.identity.name),
            keys.ENV_INDICES: ",".join(str(gpu.index) for gpu in gpus),
            keys.ENV_CUDA_VISIBLE: uuids,
            keys.ENV_NVIDIA_VISIBLE: uuids,
        }
        mounts = {keys.SEAT_SOCKET_DIR: str(folder), keys.KYB_INIT_PATH: str(self._kyb_init)}
        # What runs has had its turn: to shut it out now would be for good.
        pod = None if runs else seat.uid
        return SeatSpec(gpus, env, mounts, cdi=not self._by_device_id(), pod=pod)

    async def _write(self, seat: Seat, spec: SeatSpec) -> None:
        world, device_id = self._node.world, seat.identity.device_id
        why = await world.blocking(lambda: world.specs.write(device_id, spec), _SPEC_DEADLINE)
        if spec.pod is not None:
            devices.tell(self._node, seat, why)

    # --- continuing without the kubelet ---------------------------------------------------------

    def _retry(self, key: tuple[str, tuple[str, ...]]) -> None:
        if key not in self._retries:
            self._retries[key] = asyncio.create_task(self._try_again(key))

    async def _try_again(self, key: tuple[str, tuple[str, ...]]) -> None:
        def say(error: Exception) -> None:
            log.debug("seat %s: not yet: %s", key[1], error)

        until = asyncio.get_running_loop().time() + _RETRY_FOR
        try:
            await asyncio.sleep(_PAUSES.first)
            seat = await retry(
                lambda: self._prepare(*key), say, on=RetryableError, pauses=_PAUSES, until=until
            )
            self._pods.touch(seat.identity.pod)
        except KybernateError as error:
            log.info("seat %s: %s", key[1], error)
        finally:
            self._retries.pop(key, None)

    async def collect(self) -> None:
        """Remove CDI files whose device the kubelet gives to nobody and no seat holds."""
        async with self._one:
            world = self._node.world
            held = frozenset(await world.pod_resources.held())
            mine = {seat.identity.device_id for seat in self._node.seats.values()}
            for device_id in await world.blocking(world.specs.ids, _SPEC_DEADLINE):
                if device_id not in held and device_id not in mine:
                    await world.blocking(
                        lambda one=device_id: world.specs.remove(one),  # type: ignore[misc]
                        _SPEC_DEADLINE,
                    )

    async def adopt_pods(self) -> bool:
        """Seats of pods that run here and that no journal knows; False if some must wait.

        What is awaited may be the plugin's report, the kubelet or the API server: try again soon,
        since until then others may be given the GPUs that these pods use.
        """
        world, complete = self._node.world, True
        for device_id, holder in (await world.pod_resources.held()).items():
            facts = self._cache.named(holder.namespace, holder.pod)
            if facts is None or facts.ref.uid in self._node.seats or facts.over:
                continue
            try:
                await self._prepare(facts.resource, (device_id,), runs=True)
            except KybernateError as error:
                log.warning("pod %s holds %s, but: %s", facts.ref, device_id, error)
                complete = complete and not isinstance(error, RetryableError | DeadlineError)
        return complete

    def drop_vanished(self, known: frozenset[PodUid]) -> None:
        """After the first listing: of the seats known before it, end those without a pod."""
        for uid in known - self._cache.uids():
            self._seats.pod_gone(uid)


def _check_same(device_id: str, group: Group, facts: PodFacts) -> None:
    """Without CDI, the container has the GPUs of the ID's group already."""
    if device_id.rpartition("-seat-")[0] != group.name:
        raise RefusedError(
            f"the kubelet gave pod {facts.ref} {device_id}, and the pod belongs to {group.name}; "
            "without CDI that can't be mended: delete the pod, so that it is placed again"
        )


def _gpus_of(inventory: Inventory, group: Group) -> tuple[Gpu, ...]:
    found = [inventory.gpu(GpuUuid(uuid)) for uuid in group.gpus]
    gpus = tuple(gpu for gpu in found if gpu is not None)
    if len(gpus) != len(found):
        raise RetryableError(f"GPUs of group {GroupName(group.name)} are missing on this node now")
    return gpus
