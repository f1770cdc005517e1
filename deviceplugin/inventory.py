"""What a node has: GPUs, links and groups over time, and what the agent is told of them. Pure.

Groups are formed once. What a GPU does later changes only its health: one that falls off the bus
stays here by its UUID and index, so that its seats turn unhealthy together and recover together,
and no group changes its name or members under a pod. Only a person forms groups again, by the
profiles; and of the groups that pods hold, that may change nothing but the number of seats.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from kybernate.core.ledger.topology import form_groups, groups_of
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from kybernate.gen import agent_pb2
from kybernate.types import GroupName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kybernate.settings.plugin import SeatsConfig
    from kybernate.types import Gpu, GpuUuid, Group, Link

NODES = "nodes"
"""The device strategy for container runtimes without CDI."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the driver reports at one moment."""

    gpus: tuple[Gpu, ...]
    links: Mapping[frozenset[GpuUuid], Link]
    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A seat that a pod holds: the ID that the kubelet gave, and the pod's own group.

    `vram` in bytes per GPU; None is the whole GPU.
    """

    device_id: str
    group: GroupName
    vram: int | None = None


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the agent says: the seats held, and how many bytes the host's memory may park.

    `awaited` are the groups of pods that are bound here and have no ID yet, one entry for each.
    """

    park_budget: int
    seats: tuple[Held, ...] = ()
    awaited: tuple[str, ...] = ()

    def groups(self) -> frozenset[GroupName]:
        """The groups that pods hold seats of, or are bound to."""
        return frozenset([seat.group for seat in self.seats] + [*map(GroupName, self.awaited)])


@dataclass(frozen=True, slots=True)
class Inventory:
    """A node's GPUs, links and groups. GPUs are ordered by index.

    `troubles` says why a GPU isn't healthy. `holdings` is None before the agent was ever heard.
    """

    gpus: tuple[Gpu, ...] = ()
    links: Mapping[frozenset[GpuUuid], Link] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    strategy: str = "cdi"
    troubles: Mapping[GpuUuid, str] = field(default_factory=dict)
    holdings: Holdings | None = None

    def resources(self) -> tuple[str, ...]:
        """The seat resources that this node has groups for, in the order of the profiles."""
        return tuple(dict.fromkeys(group.resource for group in self.groups))

    def group(self, name: str) -> Group | None:
        """The group of this name."""
        return next((group for group in self.groups if group.name == name), None)

    def healthy(self, group: Group) -> bool:
        """Whether every GPU of a group works."""
        lost = {gpu.uuid for gpu in self.gpus if not gpu.healthy}
        return lost.isdisjoint(group.gpus)

    def held(self) -> frozenset[GroupName] | None:
        """The groups that pods hold, None if nobody has said yet."""
        return self.holdings.groups() if self.holdings else None


def first_inventory(config: SeatsConfig, seen: Sighting) -> Inventory:
    """The inventory of a node that nothing is known of. Raises ConfigError."""
    gpus = tuple(sorted(seen.gpus, key=lambda gpu: gpu.index))
    groups = groups_of(config, gpus, seen.links)
    versions = (seen.driver_version, seen.cuda_version)
    return Inventory(gpus, seen.links, groups, *versions, config.device_strategy)


def next_inventory(config: SeatsConfig, before: Inventory, seen: Sighting) -> Inventory:
    """`before` with what `seen` shows; GPUs never seen before get groups of their own.

    A GPU keeps the index under which it was seen first. A new GPU joins no group that exists,
    except in the place of one that is lost and that no pod's group contains.
    """
    before = _exchanged(before, seen)
    kept = _described_again(before.gpus, seen.gpus)
    new = [] if _unsettled(before, seen) else _renumbered(kept, seen.gpus)
    links = {**before.links, **seen.links}
    profiles = [entry.profile() for entry in config.profiles]
    configured = {len(entry.gpus) for entry in config.gpu_topology.groups}
    formed = [profile for profile in profiles if profile.group_size not in configured]
    taken = [group.name for group in before.groups]
    return replace(
        before,
        gpus=tuple(sorted([*kept, *new], key=lambda gpu: gpu.index)),
        links=links,
        groups=before.groups + (form_groups(new, links, formed, taken=taken) if new else ()),
        driver_version=seen.driver_version or before.driver_version,
        cuda_version=seen.cuda_version or before.cuda_version,
    )


def with_health(before: Inventory, troubles: Mapping[GpuUuid, str]) -> Inventory:
    """`before`, its GPUs healthy except for those that have a trouble, a sentence each."""
    return replace(
        before,
        gpus=tuple(replace(gpu, healthy=gpu.uuid not in troubles) for gpu in before.gpus),
        troubles=dict(troubles),
    )


def reformed(config: SeatsConfig, before: Inventory, held: frozenset[GroupName]) -> Inventory:
    """`before` with the groups of a new configuration.

    Raises ConfigError, which names a field as in the file, if the groups don't fit the node, or if
    one of `held` would lose its name, its GPUs or its resource.
    """
    if held and config.device_strategy != before.strategy:
        raise ConfigError(
            "deviceStrategy",
            f"{config.device_strategy} can't take the place of {before.strategy} while pods hold "
            f"{_names(held)}; delete them first, or keep it",
        )
    groups = _kept_cuts(config, before, groups_of(config, before.gpus, before.links), held)
    found = {group.name: group for group in groups}
    problems = [
        _change(config, before, group, found)
        for group in before.groups
        if group.name in held and not _same(group, found.get(group.name))
    ]
    if problems:
        (field_name, first), *rest = problems
        raise ConfigError(field_name, "\n".join([first, *(f"{f}: {p}" for f, p in rest)]))
    return replace(before, groups=groups, strategy=config.device_strategy)


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
                trouble=inventory.troubles.get(gpu.uuid, ""),
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
        device_strategy=inventory.strategy,
    )


def _described_again(kept: Sequence[Gpu], seen: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs of `kept`, what never changes of them as `seen` says."""
    now = {gpu.uuid: gpu for gpu in seen}
    return [
        replace(now[old.uuid], index=old.index, healthy=old.healthy) if old.uuid in now else old
        for old in kept
    ]


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


def _strangers(before: Inventory, seen: Sighting) -> tuple[list[Gpu], list[Gpu]]:
    """The GPUs that are missing, and those that nobody knows, by index."""
    now, known = {gpu.uuid for gpu in seen.gpus}, {gpu.uuid for gpu in before.gpus}
    missing = [gpu for gpu in before.gpus if gpu.uuid not in now]
    return missing, sorted(
        (gpu for gpu in seen.gpus if gpu.uuid not in known), key=lambda gpu: gpu.index
    )


def _unsettled(before: Inventory, seen: Sighting) -> bool:
    """Whether a new GPU may stand for a lost one, and nobody has said yet what is held."""
    missing, new = _strangers(before, seen)
    return bool(missing and new) and before.holdings is None


def _exchanged(before: Inventory, seen: Sighting) -> Inventory:
    """`before` with new GPUs in the places of lost ones whose groups nobody holds."""
    missing, new = _strangers(before, seen)
    held = before.held()
    if held is None or not missing or not new:
        return before
    busy = {uuid for group in before.groups if group.name in held for uuid in group.gpus}
    places = [gpu for gpu in missing if gpu.uuid not in busy]
    taken = {old.uuid: replace(gpu, index=old.index) for old, gpu in zip(places, new, strict=False)}
    return replace(
        before,
        gpus=tuple(taken.get(gpu.uuid, gpu) for gpu in before.gpus),
        links={pair: link for pair, link in before.links.items() if pair.isdisjoint(taken)},
        groups=tuple(
            replace(group, gpus=tuple(taken[u].uuid if u in taken else u for u in group.gpus))
            for group in before.groups
        ),
    )


def _kept_cuts(
    config: SeatsConfig,
    before: Inventory,
    wanted: tuple[Group, ...],
    held: frozenset[GroupName],
) -> tuple[Group, ...]:
    """`wanted`, but a size of which pods hold groups keeps its cut where nobody has configured one.

    Links may have changed since it was made, and another cut would be better now.
    """
    configured = {len(entry.gpus) for entry in config.gpu_topology.groups}
    kept = list(wanted)
    for resource in dict.fromkeys(group.resource for group in wanted):
        now = [group for group in wanted if group.resource == resource]
        old = [group for group in before.groups if group.resource == resource]
        formed = len(now[0].gpus) not in configured
        if formed and any(group.name in held for group in old):
            seats, active = now[0].seats, now[0].active_slots
            cut = [replace(group, seats=seats, active_slots=active) for group in old]
            kept = [group for group in kept if group.resource != resource] + cut
    order = list(dict.fromkeys(group.resource for group in wanted))
    return tuple(sorted(kept, key=lambda group: order.index(group.resource)))


def _same(old: Group, new: Group | None) -> bool:
    return new is not None and (old.resource, old.gpus) == (new.resource, new.gpus)


def _change(
    config: SeatsConfig,
    before: Inventory,
    group: Group,
    found: Mapping[GroupName, Group],
) -> tuple[str, str]:
    """Which field changes a held group, and what to do instead."""
    index = {gpu.uuid: gpu.index for gpu in before.gpus}
    indices = [index[uuid] for uuid in group.gpus]
    back = f"keep {{name: {group.name}, gpus: {indices}}}, or delete the pods that hold it first"
    for number, entry in enumerate(config.gpu_topology.groups):
        where = f"gpuTopology.groups[{number}]"
        if entry.name == group.name:
            return f"{where}.gpus", f"{group.name} is held and can't get other GPUs; {back}"
        if sorted(entry.gpus) == indices:
            return (
                f"{where}.name",
                f"{group.name} is held and can't be renamed to {entry.name}; {back}",
            )
    if group.resource not in {one.resource for one in found.values()}:
        return "profiles", f"{group.resource} can't go while {group.name} is held; {back}"
    return "gpuTopology.groups", f"{group.name} is held and can't go; {back}"


def _names(groups: frozenset[GroupName]) -> str:
    return "seats of " + ", ".join(sorted(groups))
