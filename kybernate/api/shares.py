"""Share: what a namespace gets of GPUs that others want, too, and how much it may use."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from kybernate.api.events import stamp
from kybernate.api.gpunodes import Condition, Use
from kybernate.api.lenient import mapping, mappings, number, text, whole
from kybernate.api.pods import seconds
from kybernate.api.schema import CAMEL, DEFAULT, checked, items, rule
from kybernate.api.schema import text as words
from kybernate.api.schema import whole as integer
from kybernate.core.policy.shares import DAY, PAR, Share, Used
from kybernate.core.quantity import parse_duration
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.policy.shares import Found

    Json = dict[str, Any]

WITHIN_QUOTA = "WithinQuota"
"""The one condition of a Share."""

_MOST_WEIGHT = 100_000
_LEAST_WINDOW_S, _MOST_WINDOW_S = 60.0, 31 * DAY
_GIB = 1 << 30
_DURATION = r"^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$"


@dataclass(frozen=True, slots=True)
class Quota:
    """How much the namespace may use; absent: no limit."""

    __pydantic_config__ = checked(
        rule(
            "has(self.gpuSeconds) || has(self.parkedGiBPerNode)",
            "name a quota: gpuSeconds or parkedGiBPerNode",
        )
    )
    gpu_seconds: Annotated[
        int | None,
        integer(
            told="Seconds in which the namespace's seats may be active in each window, times "
            "their GPUs. After that its seats come after those of other namespaces; its "
            "requests still wake them.",
        ),
    ] = None
    parked_gib_per_node: Annotated[
        int | None,
        Field(alias="parkedGiBPerNode"),
        integer(
            32,
            "GiB of each node's RAM that the namespace's parked seats may take. Seats beyond that "
            "leave RAM for the next tier, if kyb.ai/park-tier allows it.",
            most=1_000_000,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ShareSpec:
    """How much the namespace gets, and how much it may use."""

    __pydantic_config__ = checked(
        rule(
            "!has(self.window) || (duration(self.window) >= duration('1m') && "
            "duration(self.window) <= duration('744h'))",
            "window must be between 1m and 744h (31 days)",
        )
    )
    weight: Annotated[
        int,
        integer(
            32,
            "Weight of the namespace against others whose seats always want the same GPUs; a "
            f"namespace without a Share has {PAR}. The namespace's seats divide its part by their "
            "own weights.",
            least=1,
            most=_MOST_WEIGHT,
            default=PAR,
        ),
    ] = PAR
    window: Annotated[
        str,
        words(
            32,
            "Length of the window in which use is counted, from 1m to 744h; each window starts "
            "from zero. Windows begin at multiples of this length since 1970 in UTC, so 24h is a "
            "day.",
            pattern=_DURATION,
            **{DEFAULT: "24h"},
        ),
    ] = "24h"
    quota: Quota | None = None


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """What the controller sees of the Share's effect."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, integer()] = 1
    used: Annotated[
        Use | None,
        Field(
            description="What the namespace has used since the window began, as far as nodes have "
            "reported."
        ),
    ] = None
    conditions: Annotated[
        tuple[Condition, ...],
        items(
            8,
            "type",
            "WithinQuota: True if the namespace is within its quota; the reason says why not.",
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class ShareObject:
    """The object as a whole; its name is the namespace's."""

    __pydantic_config__ = checked(
        rule(
            "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
            "a Share has the name of its namespace: at most 63 of a-z, 0-9 and -",
        )
    )
    spec: ShareSpec
    status: ShareStatus | None = None


@cache
def _statuses() -> TypeAdapter[ShareStatus]:
    # An agent reads Shares and writes none.
    return TypeAdapter(ShareStatus)


def read_share(item: Mapping[str, Any]) -> Share:
    """What a Share of the API server says. Pure. Raises ConfigError, naming the field, for one that
    says what can't be: it counts for nothing."""
    spec = mapping(item.get("spec"))
    quota = mapping(spec.get("quota"))
    weight = whole(spec.get("weight"), PAR)
    if not 1 <= weight <= _MOST_WEIGHT:
        raise ConfigError("spec.weight", f"is {weight}; write 1 to {_MOST_WEIGHT}")
    window = parse_duration(text(spec.get("window")) or "24h", "spec.window")
    if not _LEAST_WINDOW_S <= window <= _MOST_WINDOW_S:
        raise ConfigError("spec.window", f"{spec['window']!r} is not between 1m and 744h (31 days)")
    most = quota.get("parkedGiBPerNode")
    seconds_ = quota.get("gpuSeconds")
    return Share(
        text(mapping(item.get("metadata")).get("name")),
        weight / PAR,
        window,
        None if seconds_ is None else float(whole(seconds_)),
        None if most is None else whole(most) * _GIB,
        read_use(mapping(item.get("status")).get("used")),
    )


def read_use(found: object) -> Used:
    """What a Share's status, or a row of a GPUNode's, says was used; what can't be read is none."""
    row = mapping(found)
    return Used(
        seconds(text(row.get("since"))) or 0.0,
        number(row.get("gpuSeconds")),
        number(row.get("parkedGiBHours")),
        whole(row.get("wakes")),
        whole(row.get("parkedBytes")),
    )


def dump_share_status(found: Found, before: object, generation: int, now: float) -> Json:
    """The status as the API server is to have it, given what it has (`before`)."""
    conditions = mappings(mapping(before).get("conditions"))
    last = next((one for one in conditions if one.get("type") == WITHIN_QUOTA), {})
    status, used = str(found.reason.holds), found.used
    condition = {
        "type": WITHIN_QUOTA,
        "status": status,
        "reason": found.reason.value,
        "message": found.message[:32768],
        "lastTransitionTime": (
            last["lastTransitionTime"] if last.get("status") == status else stamp(now)
        ),
        "observedGeneration": generation,
    }
    told: Json = _statuses().dump_python(
        ShareStatus(generation, dump_use(used)), mode="json", by_alias=True, exclude_none=True
    )
    return {**told, "conditions": [condition]}


def dump_use(used: Used) -> Use:
    """As a status says it, in numbers of a few digits."""
    return Use(
        stamp(used.begins),
        round(used.gpu_seconds, 1),
        round(used.parked_gib_hours, 3),
        used.wakes,
        used.parked_bytes,
    )
