"""Cut a node's GPUs into groups, and name the seats on them.

Groups are configured by a person, or formed so that the GPUs of a group reach each other well.
What "well" means, in this order: as many groups as fit, as few of them as possible on more than one
NUMA node, as many as possible whose *worst* link is of the best kind (then of the second best, and
so on), then the same for single pairs of GPUs, then the lowest indices. A group's worst link
comes first because a collective operation runs at the pace of its slowest path.

The result depends on the GPUs only, never on the order in which they are given.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import chain, combinations
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link, Profile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from kybernate.settings.plugin import SeatsConfig

    Links = Mapping[frozenset[GpuUuid], Link]

EXACT_LIMIT = 16
"""Up to this many GPUs the best cut is found; beyond, the best per NUMA node."""

MAX_DEVICE_ID = 63
"""The kubelet's limit for a device ID, in characters."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group that a person configured: its name, and its GPUs by index.

    `seats` and `active_slots` are its own, or None for those of the profile of its size.
    """

    name: str
    gpus: tuple[int, ...]
    seats: int | None = None
    active_slots: int | None = None


def groups_of(config: SeatsConfig, gpus: Sequence[Gpu], links: Links) -> tuple[Group, ...]:
    """The groups that a node with these GPUs has under `config`. Raises ConfigError."""
    return form_groups(
        gpus,
        links,
        [entry.profile() for entry in config.profiles],
        [
            GroupSpec(entry.name, entry.gpus, entry.seats_per_group, entry.active_slots)
            for entry in config.gpu_topology.groups
        ],
    )


def form_groups(
    gpus: Sequence[Gpu],
    links: Links,
    profiles: Sequence[Profile],
    configured: Sequence[GroupSpec] = (),
    taken: Iterable[GroupName] = (),
) -> tuple[Group, ...]:
    """All groups of a node, in the order of `profiles`; none formed has a name that is `taken`.

    A profile takes the configured groups of its size; if there is none, groups are formed. A
    profile larger than the node gets no group. Raises ConfigError, which names a field as in the
    configuration file.
    """
    by_index = {gpu.index: gpu for gpu in gpus}
    _check(configured, by_index, profiles)
    groups: list[Group] = []
    names = set(taken)
    for profile in profiles:
        specs = [spec for spec in configured if len(spec.gpus) == profile.group_size]
        if not specs:
            cuts = partition(gpus, links, profile.group_size)
            specs = [GroupSpec(group_name(one, names), one) for one in map(_indices, cuts)]
        names.update(GroupName(spec.name) for spec in specs)
        groups += [_group(spec, by_index, profile) for spec in specs]
    _check_names(groups, configured)
    return tuple(groups)


def partition(gpus: Sequence[Gpu], links: Links, size: int) -> tuple[tuple[Gpu, ...], ...]:
    """The best cut of `gpus` into groups of `size`; what remains is left out."""
    ordered = sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))
    if len(ordered) <= EXACT_LIMIT:
        return _best_cut(ordered, links, size)
    groups: list[tuple[Gpu, ...]] = []
    for island in _islands(ordered):
        groups += _best_cut(island, links, size)
    used = {gpu.uuid for gpu in chain.from_iterable(groups)}
    rest = [gpu for gpu in ordered if gpu.uuid not in used]
    groups += [tuple(rest[at : at + size]) for at in range(0, len(rest) - size + 1, size)]
    return tuple(sorted(groups, key=_indices))


def link_between(links: Links, a: GpuUuid, b: GpuUuid) -> Link:
    """How two GPUs reach each other; the worst kind if nothing is known, the best within one."""
    if a == b:
        return Link.NVLINK
    return links.get(frozenset((a, b)), Link.SYSTEM)


def worst_link(links: Links, gpus: Iterable[GpuUuid]) -> Link:
    """The worst link between any two of `gpus`; of a single GPU, the best kind."""
    pairs = combinations(tuple(gpus), 2)
    return min((link_between(links, a, b) for a, b in pairs), default=Link.NVLINK)


def seat_ids(group: Group) -> tuple[str, ...]:
    """The device IDs of a group's seats, in order."""
    return tuple(keys.seat_name(group.name, number) for number in range(1, group.seats + 1))


def group_name(indices: Sequence[int], taken: Collection[str] = ()) -> str:
    """The name of a formed group: "G" and its indices, apart where one has two digits. GPU 13 and
    GPUs 1 and 3 would be the same: where that name is taken, each index has a dash before it."""
    name = "G" + ("-" if any(index > 9 for index in indices) else "").join(map(str, indices))
    return "G" + "".join(f"-{index}" for index in indices) if name in taken else name


def _group(spec: GroupSpec, by_index: Mapping[int, Gpu], profile: Profile) -> Group:
    active = spec.active_slots or profile.active_slots
    seats = spec.seats or profile.seats_per_group
    return Group(
        GroupName(spec.name),
        profile.resource,
        tuple(by_index[index].uuid for index in sorted(spec.gpus)),
        seats if profile.allow_overprovision else active,
        active,
    )


def _indices(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    return tuple(gpu.index for gpu in gpus)


def _islands(ordered: Sequence[Gpu]) -> Iterator[Sequence[Gpu]]:
    for numa in sorted({gpu.numa for gpu in ordered}):
        local = [gpu for gpu in ordered if gpu.numa == numa]
        for at in range(0, len(local), EXACT_LIMIT):
            yield local[at : at + EXACT_LIMIT]


def _best_cut(gpus: Sequence[Gpu], links: Links, size: int) -> tuple[tuple[Gpu, ...], ...]:
    """The best cut of at most EXACT_LIMIT GPUs: always settle the lowest GPU that is left."""

    @cache
    def worth(members: tuple[int, ...]) -> int:
        return group_worth([gpus[at] for at in members], links)

    @cache
    def best(left: tuple[int, ...], spare: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        if len(left) < size:
            return 0, ()
        low, others = left[0], left[1:]
        top: tuple[int, tuple[tuple[int, ...], ...]] = (-1, ())
        for mates in combinations(others, size - 1):
            members = (low, *mates)
            rest = tuple(at for at in others if at not in mates)
            value, groups = best(rest, spare)
            value += worth(members)
            if value > top[0]:
                top = (value, (members, *groups))
        if spare:
            without = best(others, spare - 1)
            top = without if without[0] > top[0] else top
        return top

    _, groups = best(tuple(range(len(gpus))), len(gpus) % size)
    return tuple(tuple(gpus[at] for at in members) for members in groups)


def group_worth(gpus: Sequence[Gpu], links: Links) -> int:
    """What a group adds to a cut; cuts with as many groups compare by the sum.

    One number of eight bits per rank (a cut of EXACT_LIMIT GPUs has at most 120 pairs), so that
    adding counts and comparing ranks from the first to the last are plain integer operations.
    """
    uuids = [gpu.uuid for gpu in gpus]
    pairs = Counter(link_between(links, a, b) for a, b in combinations(uuids, 2))
    worth = sum(count << 8 * kind for kind, count in pairs.items())
    worth += 1 << 8 * (len(Link) + worst_link(links, uuids))
    together = len({gpu.numa for gpu in gpus}) == 1
    return worth + (together << 8 * 2 * len(Link))


def _check(
    configured: Sequence[GroupSpec], by_index: Mapping[int, Gpu], profiles: Sequence[Profile]
) -> None:
    seats = {profile.group_size: profile.seats_per_group for profile in profiles}
    owner: dict[tuple[int, int], str] = {}
    for number, spec in enumerate(configured):
        where = f"gpuTopology.groups[{number}]"
        size = len(spec.gpus)
        if size not in seats:
            raise ConfigError(
                f"{where}.gpus",
                f"{spec.name} has {size} GPUs and no profile has groupSize {size}; "
                "add a profile or change the group",
            )
        if len(keys.seat_name(spec.name, spec.seats or seats[size])) > MAX_DEVICE_ID:
            raise ConfigError(
                f"{where}.name",
                f"{spec.name} makes device IDs longer than {MAX_DEVICE_ID} characters; shorten it",
            )
        for place, index in enumerate(spec.gpus):
            field = f"{where}.gpus[{place}]"
            _check_index(field, index, by_index)
            if (size, index) in owner:
                raise ConfigError(
                    field,
                    f"GPU {index} is already in {owner[size, index]}; "
                    f"groups of {size} GPUs can't share one",
                )
            owner[size, index] = spec.name


def _check_index(field: str, index: int, by_index: Mapping[int, Gpu]) -> None:
    if index not in by_index:
        known = ", ".join(map(str, sorted(by_index))) or "none"
        raise ConfigError(field, f"this node has no GPU {index}; it has {known}")


def _check_names(groups: Sequence[Group], configured: Sequence[GroupSpec]) -> None:
    count = Counter(group.name for group in groups)
    for number, spec in enumerate(configured):
        if count[GroupName(spec.name)] > 1:
            raise ConfigError(
                f"gpuTopology.groups[{number}].name",
                f"{spec.name} names two groups of this node; give each its own name",
            )
