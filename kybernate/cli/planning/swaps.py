"""What swaps cost, measured: seats are parked and woken, and what that took is put together."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Protocol

import click

from kybernate.core.simulate.world import Costs
from kybernate.core.tiers.tiers import Speed
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MOVES = {"park": "checkpoint", "wake": "restore", "dump": "dump", "restore": "restore"}
"""The phase of each in which the bytes are moved: by the driver, or by CRIU."""
_Found = dict[str, list[tuple[int, float, float]]]
"""Of each step its times: bytes, seconds in which they were moved, and seconds besides."""


class Place(Protocol):
    """Where seats are parked and woken. Raises ClickException, with what to do next."""

    memory: int
    """Bytes of its smallest GPU."""
    without_nvme: str
    """Why nothing goes to NVMe here, as a sentence; empty if it does."""

    def park(self, seat: str, tier: Tier) -> tuple[int, Mapping[str, float]]:
        """Once it is there: bytes of GPU memory that it put away, and seconds by phase."""
        ...

    def wake(self, seat: str) -> Mapping[str, float]:
        """Once it is active: seconds by phase."""
        ...


def measure(place: Place, seats: Sequence[str], rounds: int) -> tuple[Costs, Speed | None]:
    """Each seat is woken, then parked and woken so many times. The medians over all rounds, and
    those of NVMe where the place has it. Raises ClickException."""
    found: _Found = {}
    for seat in seats:
        place.wake(seat)
        for _ in range(rounds):
            _round(place, seat, found)
    wake, park = _rate(found["wake"]), _rate(found["park"])
    memory = place.memory / 1e9
    measured = Costs(memory, wake / 1e9, park / 1e9, _besides(found, "park", "wake"))
    return measured, None if place.without_nvme else _nvme(found)


def _round(place: Place, seat: str, found: _Found) -> None:
    took = {}
    held, took["park"] = place.park(seat, Tier.RAM)
    if not place.without_nvme:
        _, took["dump"] = place.park(seat, Tier.NVME)
        _, took["restore"] = place.park(seat, Tier.RAM)
    took["wake"] = place.wake(seat)
    if not held:
        raise click.ClickException(f"seat {seat} holds no GPU memory: name one that has its model")
    for step, phases in took.items():
        if "all" not in phases:
            raise click.ClickException(
                f"what the {step} of {seat} took is not known, as a request came between: run this "
                "while nobody asks for it"
            )
        moving = phases.get(_MOVES[step], phases["all"])
        found.setdefault(step, []).append((held, moving, max(0.0, phases["all"] - moving)))


def _nvme(found: _Found) -> Speed:
    write, read = _rate(found["dump"]), _rate(found["restore"])
    return Speed(write, read, _besides(found, "dump", "restore"))


def _rate(those: Iterable[tuple[int, float, float]]) -> float:
    """Bytes per second."""
    return median(held / max(moving, 1e-6) for held, moving, _ in those)


def _besides(found: _Found, *steps: str) -> float:
    return median(rest for step in steps for _, _, rest in found[step])
