"""What a node offers, and every answer to the kubelet that follows from it. Pure.

The plugin forms groups once: what a GPU does later changes only its health. A GPU that falls off
the bus stays in the inventory by its UUID and index, so that its seats become unhealthy together
and recover together, and no group changes its name or its members under a pod.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.core.topology import form_groups, groups_of, seat_ids
from kybernate.gen import agent_pb2, deviceplugin_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kybernate.settings.plugin import SeatsConfig
    from kybernate.types import Gpu, GpuUuid, Group, Link

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the driver reports at one moment."""

    gpus: tuple[Gpu, ...]
    links: Mapping[frozenset[GpuUuid], Link]
    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """A node's GPUs, links and groups. GPUs are ordered by index."""

    gpus: tuple[Gpu, ...] = ()
    links: Mapping[frozenset[GpuUuid], Link] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""

    def resources(self) -> tuple[str, ...]:
        """The seat resources that this node has groups for, in the order of the profiles."""
        return tuple(dict.fromkeys(group.resource for group in self.groups))

    def healthy(self, group: Group) -> bool:
        """Whether every GPU of a group works."""
        lost = {gpu.uuid for gpu in self.gpus if not gpu.healthy}
        return lost.isdisjoint(group.gpus)


def first_inventory(config: SeatsConfig, seen: Sighting) -> Inventory:
    """The inventory of a plugin that has just started. Raises ConfigError."""
    gpus = tuple(sorted(seen.gpus, key=lambda gpu: gpu.index))
    groups = groups_of(config, gpus, seen.links)
    return Inventory(gpus, seen.links, groups, seen.driver_version, seen.cuda_version)


def next_inventory(config: SeatsConfig, before: Inventory, seen: Sighting) -> Inventory:
    """`before` with the health that `seen` shows; GPUs never seen before get groups of their own.

    A GPU keeps the index under which it was seen first. A new GPU joins no group that exists.
    """
    now = {gpu.uuid: gpu for gpu in seen.gpus}
    kept = [replace(gpu, healthy=gpu.uuid in now and now[gpu.uuid].healthy) for gpu in before.gpus]
    new = _renumbered(kept, seen.gpus)
    links = {**before.links, **seen.links}
    profiles = [entry.profile() for entry in config.profiles]
    configured = {len(entry.gpus) for entry in config.gpu_topology.groups}
    formed = [profile for profile in profiles if profile.group_size not in configured]
    return Inventory(
        tuple(sorted([*kept, *new], key=lambda gpu: gpu.index)),
        links,
        before.groups + (form_groups(new, links, formed) if new else ()),
        seen.driver_version or before.driver_version,
        seen.cuda_version or before.cuda_version,
    )


def all_lost(before: Inventory) -> Inventory:
    """The inventory while the driver doesn't answer at all."""
    return replace(before, gpus=tuple(replace(gpu, healthy=False) for gpu in before.gpus))


def device_list(inventory: Inventory, resource: str) -> deviceplugin_pb2.ListAndWatchResponse:
    """What ListAndWatch streams. No NUMA topology: the kubelet would put it before the groups."""
    devices = [
        deviceplugin_pb2.Device(ID=seat, health=HEALTHY if inventory.healthy(group) else UNHEALTHY)
        for group in inventory.groups
        if group.resource == resource
        for seat in seat_ids(group)
    ]
    return deviceplugin_pb2.ListAndWatchResponse(devices=devices)


def allocate(request: deviceplugin_pb2.AllocateRequest) -> deviceplugin_pb2.AllocateResponse:
    """One CDI device per ID and nothing else, since the kubelet replays this answer for ever."""
    return deviceplugin_pb2.AllocateResponse(
        container_responses=[
            deviceplugin_pb2.ContainerAllocateResponse(
                cdi_devices=[
                    deviceplugin_pb2.CDIDevice(name=f"{keys.CDI_KIND}={seat}")
                    for seat in container.devices_ids
                ]
            )
            for container in request.container_requests
        ]
    )


def still_awaited(awaited: Sequence[str], on_the_way: Iterable[str]) -> tuple[str, ...]:
    """`awaited` less one entry for each ID that is allocated but whose container isn't made yet.

    The agent learns which pod holds an ID only in PreStartContainer; until then it still awaits
    the group, and the next pod would be steered into the same one.
    """
    left = list(awaited)
    for seat in on_the_way:
        group = _group(seat)
        if group in left:
            left.remove(group)
    return tuple(left)


def prefer(
    available: Sequence[str], must_include: Sequence[str], size: int, awaited: Sequence[str]
) -> tuple[str, ...]:
    """The `size` IDs to take out of `available`.

    First `must_include`, then a free ID for each awaited group (the oldest first), then the IDs
    of groups that nobody awaits, in natural order. Fewer than `size` if there are no more.
    """
    chosen = list(dict.fromkeys(must_include))
    free = sorted(set(available) - set(chosen), key=_natural)
    for group in awaited:
        match = next((seat for seat in free if _group(seat) == group), None)
        if match is not None and len(chosen) < size:
            chosen.append(match)
            free.remove(match)
    free.sort(key=lambda seat: _group(seat) in awaited)
    return tuple(chosen + free[: max(0, size - len(chosen))])


def inventory_report(inventory: Inventory) -> agent_pb2.ReportInventoryRequest:
    """What the agent is told."""
    return agent_pb2.ReportInventoryRequest(
        gpus=[
            agent_pb2.Gpu(
                uuid=gpu.uuid,
                index=gpu.index,
                product=gpu.product,
                memory_bytes=gpu.memory,
                numa=gpu.numa,
                healthy=gpu.healthy,
            )
            for gpu in inventory.gpus
        ],
        links=[
            agent_pb2.Link(a=a, b=b, kind=kind.name.lower())
            for (a, b), kind in sorted(
                (sorted(pair), link) for pair, link in inventory.links.items()
            )
        ],
        groups=[
            agent_pb2.Group(
                name=group.name,
                resource=group.resource,
                gpus=group.gpus,
                seats=group.seats,
                active_slots=group.active_slots,
            )
            for group in inventory.groups
        ],
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
    )


def _renumbered(kept: Sequence[Gpu], seen: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs of `seen` that aren't in `kept`, on indices that are free."""
    known = {gpu.uuid for gpu in kept}
    taken = {gpu.index for gpu in kept}
    new: list[Gpu] = []
    for gpu in sorted(seen, key=lambda gpu: gpu.index):
        if gpu.uuid in known:
            continue
        index = gpu.index if gpu.index not in taken else max(taken) + 1
        taken.add(index)
        new.append(replace(gpu, index=index))
    return new


def _group(seat: str) -> str:
    return seat.rpartition("-seat-")[0]


def _natural(seat: str) -> tuple[str, int, str]:
    group, _, number = seat.rpartition("-seat-")
    return group, int(number) if number.isdecimal() else 0, seat
