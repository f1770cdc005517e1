"""What a pod says of its seat's turns, of its idle times, and of prefetching. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kybernate import keys
from kybernate.core.quantity import parse_duration
from kybernate.errors import ConfigError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

ON_REQUEST: Final = "on-request"
ALWAYS: Final = "always"
AUTO: Final = "auto"
VRAM: Final = "vram"
"""What `kyb.ai/idle` calls GPU memory; it calls tiers by their names."""

CHOICES = (ON_REQUEST, ALWAYS, AUTO)
MOST_WEIGHT = 1000
_WEIGHT = "weight="
_LEAST_S, _HOUR_S, _MOST_S = 1.0, 3600.0, 366 * 86400.0
# The journal takes no infinite number.
_PREFETCHED: Mapping[str, float] = MappingProxyType({"always": 0.0, "never": 1e12})
_MOST_DIGITS = 6
MOST_PRIORITY = 1_000_000_000
"""That of a PriorityClass that isn't the system's."""
_LEAVES: Mapping[str, Tier] = MappingProxyType(
    {VRAM: Tier.RAM, Tier.RAM.value: Tier.NVME, Tier.NVME.value: Tier.OBJECT}
)
"""Where a seat goes from there."""
TIERS = (*_LEAVES, Tier.OBJECT.value)
"""What a seat leaves for want of use, from the fastest on; with the last of them goes its pod."""
_DEPTH = (Tier.RAM, Tier.NVME, Tier.OBJECT)


def read_turn(notes: Mapping[str, str], *, of_job: bool, callable_: bool) -> float | None:
    """The seat's weight among those that always want their GPUs; None: it waits for requests.

    Of itself (`auto`) a seat of a Job always wants them; of the others, one that can be called
    (`callable_`: its pod names a model or a port) waits, and one that nobody can call would wait
    for ever, so it does not. Raises ConfigError, naming the annotation.
    """
    kind, _, rest = notes.get(keys.TURN, AUTO).partition(",")
    if kind not in CHOICES:
        raise ConfigError(keys.TURN, f"is {kind[:100]!r}; write {', '.join(CHOICES)}")
    weight = _weight(rest) if rest else 1
    if kind == ON_REQUEST and rest:
        raise ConfigError(
            keys.TURN, f"{ON_REQUEST} has no weight; leave it out, or write {ALWAYS},{rest[:100]}"
        )
    waits = kind == ON_REQUEST or (kind == AUTO and callable_ and not of_job)
    return None if waits else float(weight)


def read_own_idle(notes: Mapping[str, str]) -> Mapping[str, float]:
    """As `read_idle`, of what a pod may say itself.

    Raises ConfigError, too, for `object`: scaling a Deployment takes a right to it, which those who
    write pods need not have.
    """
    found = read_idle(notes)
    if Tier.OBJECT.value in found:
        raise ConfigError(
            keys.IDLE,
            "object= has a Deployment scaled to zero, which a CheckpointPolicy alone may say "
            "(spec.idle.object); leave it out",
        )
    return found


def read_idle(notes: Mapping[str, str]) -> Mapping[str, float]:
    """Seconds without use after which the seat leaves GPU memory (`vram`), RAM, NVMe, or, with its
    pod, the object store.

    Raises ConfigError, naming the annotation; also if a state would go deeper than
    `kyb.ai/park-tier` lets it.
    """
    found: dict[str, float] = {}
    for part in notes[keys.IDLE].split(",") if keys.IDLE in notes else ():
        tier, _, time = part.strip().partition("=")
        if tier not in TIERS or tier in found:
            raise ConfigError(
                keys.IDLE,
                f"{part[:100]!r} names no tier that a seat leaves, or one twice; write for example "
                "vram=30s,ram=5m,nvme=1h",
            )
        found[tier] = parse_duration(time, keys.IDLE)
        if not _LEAST_S <= found[tier] <= _MOST_S:
            raise ConfigError(keys.IDLE, f"{part[:100]!r} is not between 1s and 8784h (a year)")
        _check_depth(tier, notes)
    return found


def min_residency(notes: Mapping[str, str]) -> float | None:
    """Seconds for which a seat that has traffic stays once it woke; None: as its agent has it.

    Raises ConfigError, naming the annotation.
    """
    return _time(notes, keys.MIN_RESIDENCY, 0.0, _HOUR_S, "0s and 1h")


def max_wait(notes: Mapping[str, str]) -> float | None:
    """Seconds after which the seat's demand comes before all priorities; None: as its agent has it.

    Raises ConfigError, naming the annotation.
    """
    return _time(notes, keys.MAX_WAIT, _LEAST_S, 24 * _HOUR_S, "1s and 24h")


def prefetch(notes: Mapping[str, str]) -> float | None:
    """Calls per hour from which on the seat is brought into RAM ahead of need: 0 for always;
    None: as its agent has it.

    Raises ConfigError, naming the annotation.
    """
    text = notes.get(keys.PREFETCH)
    if text is None or text in _PREFETCHED:
        return None if text is None else _PREFETCHED[text]
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= _MOST_DIGITS and int(text)):
        raise ConfigError(
            keys.PREFETCH,
            f"is {text[:100]!r}; write always, never, or how many requests per hour must be "
            "expected, a whole number from 1 to 999999",
        )
    return float(text)


def priority(notes: Mapping[str, str], of_pod: int = 0) -> int:
    """What the seat's requests rank among those of other seats: what is said, but no more than
    `of_pod`, the priority that its pod was granted, since that would be at the expense of others.

    Raises ConfigError, naming the annotation.
    """
    text = notes.get(keys.PRIORITY)
    if text is None:
        return of_pod
    digits = text.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and len(digits) <= len(str(MOST_PRIORITY))
    if not plain or int(digits) > MOST_PRIORITY:
        raise ConfigError(
            keys.PRIORITY,
            f"is {text[:100]!r}; write a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}",
        )
    return min(int(text), of_pod)


def _time(
    notes: Mapping[str, str], name: str, least: float, most: float, between: str
) -> float | None:
    text = notes.get(name)
    if text is None:
        return None
    found = parse_duration(text, name)
    if not least <= found <= most:
        raise ConfigError(name, f"{text[:100]!r} is not between {between}")
    return found


def _weight(text: str) -> int:
    digits = text.strip().removeprefix(_WEIGHT)
    plain = digits.isascii() and digits.isdigit() and len(digits) <= len(str(MOST_WEIGHT))
    if not text.strip().startswith(_WEIGHT) or not plain or not 1 <= int(digits) <= MOST_WEIGHT:
        raise ConfigError(
            keys.TURN,
            f"{text[:100]!r} is no weight; write for example {ALWAYS},{_WEIGHT}4, a whole number "
            f"from 1 to {MOST_WEIGHT}",
        )
    return int(digits)


def _check_depth(tier: str, notes: Mapping[str, str]) -> None:
    deepest = notes.get(keys.PARK_TIER, Tier.OBJECT.value)
    into = _LEAVES.get(tier, Tier.OBJECT)
    if deepest in set(_DEPTH) and _DEPTH.index(into) > _DEPTH.index(Tier(deepest)):
        raise ConfigError(
            keys.IDLE,
            f"{tier}= sends its state to {into}, and {keys.PARK_TIER} is {deepest}; leave {tier}= "
            f"out, or set {keys.PARK_TIER}: {into}",
        )
