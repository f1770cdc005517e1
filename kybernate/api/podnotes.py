"""What single annotations of a pod mean. Each function raises ConfigError, naming the annotation,
what is wrong with it and what to write instead. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.core.quantity import parse_duration, parse_quantity
from kybernate.errors import ConfigError
from kybernate.types import Link, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    Notes = Mapping[str, str]

LINKS = tuple(link.name.lower().replace("_", "-") for link in sorted(Link, reverse=True))
"""The kinds of links as people write them, the best first."""

_LINKS = {name.replace("-", ""): Link[name.replace("-", "_").upper()] for name in LINKS} | {
    "numa": Link.NUMA_NODE,
    "pcie": Link.PCIE_SWITCH,
}


@lru_cache(256)
def parse_link(text: str) -> Link | None:
    """The kind of link that a person or an agent names, or None if there is no such kind."""
    return _LINKS.get(text.lower().replace("-", "").replace("_", "").replace(" ", ""))


def vram(notes: Notes) -> int | None:
    """Peak bytes per GPU; None if the pod doesn't say."""
    stated = notes.get(keys.VRAM)
    return None if stated is None else parse_quantity(stated, keys.VRAM)


def products(notes: Notes) -> tuple[str, ...]:
    """The GPU products that the pod accepts; empty means any."""
    parts = (part.strip() for part in notes.get(keys.GPU_PRODUCT, "").split("|"))
    return tuple(part for part in parts if part)


def topology(notes: Notes) -> Link | None:
    """The worst link that the pod accepts between its GPUs; None if any will do."""
    stated = notes.get(keys.GPU_TOPOLOGY)
    if stated is None:
        return None
    link = parse_link(stated)
    if link is None:
        raise ConfigError(
            keys.GPU_TOPOLOGY, f"is {stated[:100]!r}; write one of {', '.join(LINKS)}"
        )
    return link


def park_tier(notes: Notes) -> Tier:
    """The deepest tier that the seat's state may go to."""
    stated = notes.get(keys.PARK_TIER, Tier.OBJECT)
    try:
        return Tier(stated)
    except ValueError as error:
        raise ConfigError(
            keys.PARK_TIER,
            f"is {stated[:100]!r}; write the deepest tier that its state may go to: "
            f"{', '.join(Tier)}",
        ) from error


def ready_within(notes: Notes) -> float | None:
    """Seconds within which a wake is timely; None if the pod doesn't say."""
    stated = notes.get(keys.READY_WITHIN)
    return None if stated is None else parse_duration(stated, keys.READY_WITHIN)


def ready_active(notes: Notes) -> bool:
    """Whether the pod is ready only while its seat is active, and not while it is parked."""
    return _is_second(notes, keys.READY_WHILE, "wakeable", "active")


ON_PREEMPT = ("pause", "kill")
"""What may become of a pod for a more important one."""


def expendable(notes: Notes) -> bool:
    """Whether the pod may be deleted for a more important one."""
    return _is_second(notes, keys.ON_PREEMPT, *ON_PREEMPT)


def keeps_connections(notes: Notes) -> bool:
    """Whether idle connections stay when the seat is parked."""
    return _is_second(notes, keys.CONNECTIONS, "end", "keep")


def leaves_nccl(notes: Notes) -> bool:
    """Whether the pod itself sees to it that what NCCL holds can be checkpointed."""
    return _is_second(notes, keys.NCCL, "parkable", "as-is")


def _is_second(notes: Notes, name: str, first: str, second: str) -> bool:
    """Without the annotation it is the first."""
    stated = notes.get(name, first)
    if stated not in (first, second):
        raise ConfigError(name, f"is {stated[:100]!r}; write {first} or {second}")
    return stated == second
