"""What a node's groups are to each other: which share GPUs, which break which.

It follows from what the node offers alone, so it is found once for each offer and not per pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.ledger.parking import seat_cost
from kybernate.core.ledger.topology import worst_link

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.ledger.ledger import NodeView
    from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link


class Member(NamedTuple):
    """A group among the others of its node.

    `at` are its GPUs' places in the order of their indices. `sharing` are all groups with a GPU in
    common, itself too, and `names` theirs. `breaks` is the best link of a larger group that a pod
    in this one would keep from working as a whole, -1 if there is none. `room` in bytes is what the
    smallest of its GPUs holds. `seats` are those of all that share, `slots` the fewest of one.
    """

    group: Group
    gpus: tuple[Gpu, ...]
    at: tuple[int, ...]
    link: Link
    breaks: int
    sharing: tuple[Group, ...]
    names: frozenset[GroupName]
    room: int
    seats: int
    slots: int
    whole: bool
    """Whether all of its GPUs are there and healthy."""


def member(view: NodeView, group: Group) -> Member:
    """The group among the others of its node."""
    members: dict[GroupName, Member] = view.once_per_offer("members", dict)
    known = members.get(group.name)
    if known is None or known.group is not group:
        known = members[group.name] = _member(view, group)
    return known


def filled(mine: Member, vram: int | None) -> int:
    """Bytes that a seat of the group may fill; see `parking.seat_cost`."""
    if vram is not None and vram <= mine.room:
        return vram * len(mine.gpus)
    return seat_cost(mine.gpus, vram)


def by_name(view: NodeView) -> Mapping[GroupName | None, Group]:
    """The node's groups by their names."""
    return view.once_per_offer("by name", lambda: {one.name: one for one in view.seats.groups})


def gpus_in_order(view: NodeView) -> tuple[Gpu, ...]:
    """The node's GPUs by their indices."""
    return view.once_per_offer(
        "gpus", lambda: tuple(sorted(view.seats.gpus, key=lambda gpu: (gpu.index, gpu.uuid)))
    )


def sharers(view: NodeView, uuid: GpuUuid) -> tuple[Group, ...]:
    """The groups that have the GPU."""
    return view.once_per_offer(
        ("sharers", uuid),
        lambda: tuple(group for group in view.seats.groups if uuid in group.gpus),
    )


def _link(view: NodeView, gpus: frozenset[GpuUuid]) -> Link:
    return view.once_per_offer(("link", gpus), lambda: worst_link(view.seats.links, gpus))


def _member(view: NodeView, group: Group) -> Member:
    mine = frozenset(group.gpus)
    # Each set of GPUs once: a node may tell of hundreds of large groups.
    sets = view.once_per_offer(
        "sets", lambda: tuple(frozenset(other.gpus) for other in view.seats.groups)
    )
    among = [pair for pair in zip(view.seats.groups, sets, strict=True) if mine & pair[1]]
    sharing = tuple(other for other, _ in among)
    larger = {gpus for _, gpus in among if mine < gpus}
    gpus = view.gpus(group)
    return Member(
        group,
        gpus,
        tuple(at for at, gpu in enumerate(gpus_in_order(view)) if gpu.uuid in mine),
        _link(view, mine),
        max((_link(view, one) for one in larger), default=-1),
        sharing,
        frozenset(other.name for other in sharing),
        min((gpu.memory for gpu in gpus), default=0),
        sum(other.seats for other in sharing),
        min((other.active_slots for other in sharing), default=1),
        len(gpus) == len(group.gpus) and all(gpu.healthy for gpu in gpus),
    )
