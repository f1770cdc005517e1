"""Which workloads may share GPUs, and how few GPUs that takes. Pure.

Each workload has a place of its own, as a container has: it is woken on the GPUs that it is given,
and on no others. Those that are given the same GPUs are played for a day under the product's swap
decision, and share them only if each is in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kybernate.core.simulate.outcome import percentile
from kybernate.core.simulate.place import Late, Place, together
from kybernate.core.simulate.workloads import GB, HOURS
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kybernate.core.simulate.workloads import Chance, Workload
    from kybernate.core.simulate.world import Costs

ALWAYS: Final = 0.95
"""Who is busy for so much of each hour shares with nobody, and isn't played."""
MOST_REQUESTS: Final = 300_000
"""A day of more takes longer than anybody waits."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Workloads that must not share: two with one another, or one with anybody."""

    workloads: tuple[Workload, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Saving:
    """What a cluster would look like."""

    places: tuple[Place, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def workloads(self) -> int:
        """How many there are: pods of one owner are one."""
        there = [one for place in self.places for one in place.workloads]
        return len({(one.namespace, one.owner or one.name) for one in there})

    @property
    def today(self) -> int:
        """GPUs, each workload having its own."""
        return sum(one.gpus for place in self.places for one in place.workloads)

    @property
    def gpus(self) -> int:
        """GPUs that do."""
        return sum(place.gpus for place in self.places)

    @property
    def p99(self) -> float:
        """The wait (s) that 99 of 100 requests for workloads that share don't exceed."""
        waits = sorted(wait for place in self.places for those in place.waits for wait in those)
        return percentile(waits, 0.99) if waits else 0.0

    @property
    def parked_gib(self) -> float:
        """Host memory for the workloads that share, were all of them parked."""
        there = [one for place in self.places if place.shared for one in place.workloads]
        return sum(one.gb / GB * one.gpus for one in there)


def save(workloads: Sequence[Workload], costs: Costs, chance: Callable[[str], Chance]) -> Saving:
    """Give each workload the first place where all stay in time, the busiest workload first."""
    alone = [Conflict((one,), why) for one in workloads if (why := _alone(one, costs))]
    keys = {one.workloads[0].key for one in alone}
    might = [one for one in workloads if one.key not in keys]
    _bounded(might)
    places: list[Place] = []
    conflicts: list[Conflict] = []
    for one in sorted(might, key=lambda one: (-_load(one), one.key)):
        conflicts += _give(one, places, costs, chance)
    places += [Place(one.workloads) for one in alone]
    return Saving(tuple(places), (*alone, *conflicts))


def _give(
    one: Workload, places: list[Place], costs: Costs, chance: Callable[[str], Chance]
) -> list[Conflict]:
    """Put the workload in a place; returns with whom it can't share."""
    conflicts: list[Conflict] = []
    for number, place in enumerate(places):
        if place.gpus != one.gpus:
            continue
        found = together((*place.workloads, one), costs, chance)
        if isinstance(found, Place):
            places[number] = found
            return conflicts
        if not place.shared:
            (other,) = place.workloads
            conflicts.append(Conflict((other, one), _why(other, one, found, costs)))
    places.append(Place((one,)))
    return conflicts


def _alone(one: Workload, costs: Costs) -> str:
    """Why it shares with nobody; empty if it might."""
    if one.gb > costs.gpu_gb:
        raise ConfigError(
            f"{one.where}: vram_gib",
            f"{one.gb / GB:g} GiB are {one.gb:.4g} GB, and a GPU has {costs.gpu_gb:g} (--gpu-gb)",
        )
    if min(one.busy(hour) for hour in range(HOURS)) >= ALWAYS:
        return f"it is busy for {ALWAYS:.0%} or more of each hour"
    return ""


def _wake(one: Workload, costs: Costs) -> float:
    return costs.fixed + one.gb / costs.wake


def _load(one: Workload) -> float:
    return sum(one.busy(hour) for hour in range(HOURS))


def _bounded(workloads: Sequence[Workload]) -> None:
    requests = sum(sum(one.by_hour) for one in workloads)
    if requests > MOST_REQUESTS:
        busiest = max(workloads, key=lambda one: sum(one.by_hour))
        raise ConfigError(
            f"{busiest.where}: requests_per_hour",
            f"with all others {requests:.0f} requests a day, and more than {MOST_REQUESTS} take "
            "too long to play; leave out the busiest, which need GPUs of their own",
        )


def _why(a: Workload, b: Workload, found: Late, costs: Costs) -> str:
    hour = found.full
    if hour is None:
        hour = max(range(HOURS), key=lambda hour: a.busy(hour) * b.busy(hour))
    said = [f"at {hour}:00 they are busy for {a.busy(hour):.0%} and {b.busy(hour):.0%} of the time"]
    need, other = (min(costs.gpu_gb, one.gb * (1 + costs.room)) for one in (a, b))
    if need + other > costs.gpu_gb:
        said.append(f"they don't fit beside each other ({need:.0f} + {other:.0f} GB)")
    late = found.workload
    if late is not None:
        swap = costs.fixed + (b if late is a else a).gb / costs.park + _wake(late, costs)
        said.append(f"{late.key} is due within {late.p99:g} s, and a swap takes {swap:.1f} s")
    elif found.full is None:
        said.append("their requests would be parked in flight")
    return "; ".join(said)
