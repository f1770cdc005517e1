"""CheckpointPolicy: what pods of a namespace do not say of their seats themselves, and when."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from kybernate import keys
from kybernate.api.asked import READY, condition
from kybernate.api.events import stamp
from kybernate.api.gpunodes import Condition  # noqa: TC001 - pydantic reads it
from kybernate.api.lenient import mapping, mappings, read_selector, text, whole
from kybernate.api.podnotes import ON_PREEMPT
from kybernate.api.restores import ELSE
from kybernate.api.schema import CAMEL, TIME, checked, items, labels, one_of, rule
from kybernate.api.schema import text as words
from kybernate.api.schema import whole as number
from kybernate.api.turns import (
    CHOICES,
    MOST_PRIORITY,
    MOST_WEIGHT,
    ON_REQUEST,
    TIERS,
    max_wait,
    min_residency,
    prefetch,
    priority,
    read_idle,
    read_turn,
)
from kybernate.core.policy.balance import Rule
from kybernate.core.policy.effective import Policy, PutAway, Relation, Slot, in_order
from kybernate.core.policy.schedule import read_times
from kybernate.core.policy.snapshots import Snapshots
from kybernate.core.quantity import parse_duration
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kybernate.core.policy.findings import Findings

    Json = dict[str, Any]

BALANCED = "Balanced"
"""The second condition of a CheckpointPolicy, where it has `rebalance`."""

_MOST_PRECEDENCE = 1_000_000
_MOST_TIMES = 16
_MOST_LABELS = 16
_DURATION = r"^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$"
_LEAST_EVERY_S, _MOST_EVERY_S = 60.0, 7 * 86_400.0
_CRON = r"^[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4}$"
_LABEL_CHARS = 317
_SAYS_SOMETHING = "has(self.turn) || has(self.idle) || has(self.prefetch)"
_PREFETCH = r"^(always|never|[1-9][0-9]{0,5})$"
_LEAST_PER_GIB, _LEAST_NO_PROGRESS_S = 1, 10.0
_ABOVE, _EVERY = 50, "30m"


def _duration(told: str) -> Any:
    return words(32, told, least=1, pattern=_DURATION)


@dataclass(frozen=True, slots=True)
class Expression:
    """What is wanted of one label."""

    __pydantic_config__ = checked(
        rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn take values; Exists and DoesNotExist take none",
        )
    )
    key: Annotated[str, words(_LABEL_CHARS, "The label.", least=1)]
    operator: Annotated[str, one_of(Relation)]
    values: Annotated[tuple[Annotated[str, words(63)], ...], items(64, "set")] = ()


@dataclass(frozen=True, slots=True)
class Selector:
    """Labels of the pods; {}: all pods of the namespace."""

    __pydantic_config__ = CAMEL
    match_labels: Annotated[
        dict[str, str] | None,
        labels(_MOST_LABELS, "Labels that a pod must have, with these values."),
    ] = None
    match_expressions: Annotated[
        tuple[Expression, ...],
        items(_MOST_LABELS, "atomic", "Further conditions on a pod's labels; all must be true."),
    ] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """When the seat wants its GPUs, in the words of the annotation kyb.ai/turn."""

    __pydantic_config__ = checked(
        rule(
            f"!has(self.weight) || !has(self.mode) || self.mode != '{ON_REQUEST}'",
            "a seat that waits for requests has no weight; leave weight out, or write mode: always",
        ),
        rule(
            "has(self.mode) || has(self.weight) || has(self.minResidency) || has(self.maxWait) || "
            "has(self.priority)",
            "write mode, weight, minResidency, maxWait or priority",
        ),
    )
    mode: Annotated[
        str | None,
        one_of(
            CHOICES,
            "on-request: the seat wakes for a request. always: the seat always wants its GPUs, "
            "and takes turns with others of this mode. auto: always for pods of Jobs and for pods "
            "without a model and a port, on-request for others.",
        ),
    ] = None
    weight: Annotated[
        int | None,
        number(
            32,
            "Weight of the seat among seats of its namespace that take turns.",
            least=1,
            most=MOST_WEIGHT,
        ),
    ] = None
    min_residency: Annotated[
        str | None,
        _duration(
            "A seat that has traffic keeps its GPUs for at least this long after a wake, such as "
            "5s; at most for pod_residency_s of its agent."
        ),
    ] = None
    max_wait: Annotated[
        str | None,
        _duration(
            "A seat whose requests have waited for this long comes before seats of any priority, "
            "such as 5m; never sooner than after max_wait_s of its agent."
        ),
    ] = None
    priority: Annotated[
        int | None,
        number(
            32,
            "Priority of the seat's requests among those of other seats; at most the pod's own, "
            "that of its PriorityClass.",
            least=-MOST_PRIORITY,
            most=MOST_PRIORITY,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Idle:
    """After how long without use a seat leaves each tier, as in the annotation kyb.ai/idle."""

    __pydantic_config__ = checked(
        rule(
            "has(self.vram) || has(self.ram) || has(self.nvme) || has(self.object)",
            "name a tier: vram, ram, nvme or object",
        )
    )
    vram: Annotated[
        str | None, _duration("Time after which the seat leaves GPU memory for RAM, such as 10m.")
    ] = None
    ram: Annotated[
        str | None, _duration("Time after which the seat leaves RAM for NVMe, such as 1h.")
    ] = None
    nvme: Annotated[
        str | None,
        _duration("Time after which the seat leaves NVMe for the object store, such as 4h."),
    ] = None
    object: Annotated[
        str | None,
        _duration(
            "Time after which a Deployment is scaled to zero, until a request for its model "
            "comes: all its pods must have rested in the object store for so long. No annotation "
            "sets this."
        ),
    ] = None


_Prefetch = Annotated[
    str | None,
    words(
        8,
        "When an offloaded seat is brought into RAM ahead of need, while RAM has room to spare. "
        "always; never; or a number: once so many requests per hour are expected.",
        pattern=_PREFETCH,
    ),
]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What counts for a while, from certain times on."""

    __pydantic_config__ = checked(rule(_SAYS_SOMETHING, "write turn, idle or prefetch"))
    cron: Annotated[
        str,
        words(
            100,
            'When the entry begins: minute, hour, day of month, month and day of week, such as "0 '
            '8 * * 1-5".',
            pattern=_CRON,
        ),
    ]
    duration: Annotated[str, _duration("How long the entry holds, such as 10h; at most 8784h.")]
    time_zone: Annotated[
        str,
        words(64, "Time zone of cron, such as Europe/Berlin; absent: UTC.", least=1),
    ] = "UTC"
    turn: Turn | None = None
    idle: Idle | None = None
    prefetch: _Prefetch = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Which snapshots of a pod are kept. The newest always is."""

    __pydantic_config__ = CAMEL
    last: Annotated[
        int,
        number(
            32, "Keep this many of the newest snapshots of each pod.", least=1, most=1000, default=1
        ),
    ] = 1
    daily: Annotated[
        int,
        number(
            32, "Keep the last snapshot of each of this many days in UTC, today included.", most=366
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class Regular:
    """Regular snapshots of each pod while it runs."""

    __pydantic_config__ = CAMEL
    every: Annotated[
        str,
        _duration(
            "Interval between two snapshots of a pod, from 1m to 168h. Each pod has its own "
            "moments within it."
        ),
    ]
    to: Annotated[
        str | None,
        one_of(
            (Tier.NVME, Tier.OBJECT),
            "Tier of the snapshots; absent: the deepest tier that the node has and "
            "kyb.ai/park-tier allows.",
        ),
    ] = None
    keep: Annotated[
        Keep | None,
        Field(description="How many snapshots of each pod are kept; absent: the newest one."),
    ] = None
    parallel: Annotated[
        int, number(32, "How many pods are snapshotted at a time.", least=1, most=100, default=1)
    ] = 1


@dataclass(frozen=True, slots=True)
class EvictionLimits:
    """How states of the policy's pods are put away into the object store so that the pods may go:
    by drains, people and scaling to zero. They count beside those of the controller, and not for
    preemption and RebalanceRequests. `secondsPerGiB` and `noProgress` count for the policy's
    snapshots, too."""

    __pydantic_config__ = checked(
        rule(
            "has(self.parallel) || has(self.secondsPerGiB) || has(self.noProgress)",
            "write parallel, secondsPerGiB or noProgress",
        )
    )
    parallel: Annotated[
        int | None,
        number(32, "How many of the policy's pods are put away at a time.", least=1, most=100),
    ] = None
    seconds_per_gib: Annotated[
        int | None,
        Field(alias="secondsPerGiB"),
        number(
            32,
            "How long a state may take for each GiB, beyond 2 minutes, before it is cancelled; of "
            "an eviction at most evict_s_per_gib of the controller.",
            least=_LEAST_PER_GIB,
            most=86_400,
        ),
    ] = None
    no_progress: Annotated[
        str | None,
        _duration(
            "How long a state may make no progress before it is cancelled, from 10s; of an "
            "eviction at most evict_idle_s of the controller."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Pods move to a less busy group of GPUs of their node, without an approval. To write this
    takes the verb `approve` for RebalanceRequests."""

    __pydantic_config__ = checked(
        rule(
            "!has(self.every) || duration(self.every) >= duration('1m')",
            "every is 1m at least",
        )
    )
    above: Annotated[
        int,
        number(
            32,
            "A pod leaves its group from this load of its GPUs on: the percentage of about the "
            "last quarter of an hour in which their seats served requests.",
            least=1,
            most=100,
            default=_ABOVE,
        ),
    ] = _ABOVE
    every: Annotated[
        str,
        _duration(
            "One pod moves in this time at most, of the policy and on a node, from 1m, such as "
            f"{_EVERY}."
        ),
    ] = _EVERY
    seconds: Annotated[
        int,
        number(32, "Most seconds that a move may be expected to take; absent: no limit."),
    ] = 0


@dataclass(frozen=True, slots=True)
class Spec:
    """Which pods the policy selects, and what holds for them unless their own annotations say
    otherwise."""

    __pydantic_config__ = checked(
        rule(
            f"{_SAYS_SOMETHING} || has(self.onPreempt) || has(self.onRestoreFailure) || "
            "has(self.snapshots) || has(self.limits) || has(self.rebalance) || "
            "(has(self.schedule) && self.schedule.size() > 0)",
            "it says nothing; write turn, idle, prefetch, schedule, snapshots, limits, rebalance, "
            "onPreempt or onRestoreFailure",
        )
    )
    selector: Selector
    precedence: Annotated[
        int,
        number(
            32,
            "If several policies select a pod, the one with the highest precedence governs it; "
            "among equals, the first by name.",
            most=_MOST_PRECEDENCE,
        ),
    ] = 0
    turn: Turn | None = None
    idle: Idle | None = None
    prefetch: _Prefetch = None
    schedule: Annotated[
        tuple[Scheduled, ...],
        items(
            _MOST_TIMES,
            "atomic",
            "What holds at certain times instead. If several entries hold now, the first one "
            "counts.",
        ),
    ] = ()
    snapshots: Regular | None = None
    limits: EvictionLimits | None = None
    rebalance: Rebalance | None = None
    on_preempt: Annotated[
        str | None,
        one_of(
            ON_PREEMPT,
            "What happens to a pod whose seat a pod of higher priority gets. pause: its state "
            "goes into the object store, and the pod that replaces it continues. kill: it is "
            "deleted.",
        ),
    ] = None
    on_restore_failure: Annotated[
        str | None,
        one_of(
            ELSE,
            "What happens to a pod whose artifact (kyb.ai/restore-from) can't be restored. start: "
            "it starts cold. fail: it waits for the artifact, then fails; it never starts cold.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The policy's snapshots."""

    __pydantic_config__ = CAMEL
    total: Annotated[int, number(32, "Number of snapshots that are kept.")] = 0
    under_way: Annotated[int, number(32, "Number of snapshots under way.")] = 0
    newest: Annotated[str | None, TIME] = None


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """What the controller sees of the policy's effect. Agents don't read it."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, number()] = 1
    matched: Annotated[int, number(32, "Number of pods with seats that the policy selects.")] = 0
    governed: Annotated[int, number(32, "Number of those pods that this policy governs.")] = 0
    snapshots: Artifacts | None = None
    conditions: Annotated[
        tuple[Condition, ...],
        items(
            8,
            "type",
            "Ready: True if the policy holds; the reason says why not. Balanced, with "
            "spec.rebalance: True if no pod is to move.",
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """The object as a whole."""

    __pydantic_config__ = CAMEL
    spec: Spec
    status: PolicyStatus | None = None


def read_policy(item: Mapping[str, Any]) -> Policy:
    """The policy that a CheckpointPolicy of the API server is. Pure.

    Raises ConfigError, naming the field, for one that governs no pod: it says what can't be.
    """
    meta, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    return Policy(
        uid=text(meta.get("uid")),
        namespace=text(meta.get("namespace")),
        name=text(meta.get("name")),
        selector=read_selector(mapping(spec.get("selector")), "spec.selector"),
        precedence=whole(spec.get("precedence")),
        words=_words(spec, "spec"),
        schedule=tuple(
            _slot(one, f"spec.schedule[{at}]")
            for at, one in enumerate(mappings(spec.get("schedule")))
        ),
        snapshots=_snapshots(mapping(spec.get("snapshots"))),
        limits=_limits(mapping(spec.get("limits"))),
        rebalance=_rule(spec.get("rebalance")),
    )


def read_policies(items: Iterable[Mapping[str, Any]]) -> tuple[Policy, ...]:
    """Those of a namespace that count, in their order; what can't be read counts for nothing."""
    found = []
    for item in items:
        with suppress(ConfigError):
            found.append(read_policy(item))
    return in_order(found)


def dump_policy_status(found: Findings, before: object, generation: int, now: float) -> Json:
    """The status as the API server is to have it, given what it has (`before`)."""
    said = READY, found.reason, found.message
    ready = found.reason.holds
    told: Json = {
        "observedGeneration": generation,
        "matched": found.matched,
        "governed": found.governed,
        "conditions": [condition(said, before, generation, now, true=ready)],
        # It is merged into what is there.
        "snapshots": None,
    }
    if (balanced := found.balanced) is not None:
        even = balanced.reason.holds
        load = BALANCED, balanced.reason, balanced.message
        told["conditions"].append(condition(load, before, generation, now, true=even))
    if found.snapshots is not None:
        there, under_way, newest = found.snapshots
        told["snapshots"] = {"total": there, "underWay": under_way}
        told["snapshots"]["newest"] = stamp(newest) if newest else None
    return told


def _snapshots(given: Json) -> Snapshots | None:
    if not given:
        return None
    every = parse_duration(text(given.get("every")), "spec.snapshots.every")
    if not _LEAST_EVERY_S <= every <= _MOST_EVERY_S:
        raise ConfigError(
            "spec.snapshots.every", f"{given['every']!r} is not between 1m and 168h (a week)"
        )
    to, keep = text(given.get("to")), mapping(given.get("keep"))
    try:
        tier = Tier(to) if to else None
    except ValueError as error:
        raise ConfigError("spec.snapshots.to", f"{to[:100]!r}; write nvme or object") from error
    last, daily = whole(keep.get("last"), 1), whole(keep.get("daily"))
    return Snapshots(every, tier, last, daily, whole(given.get("parallel"), 1))


def _rule(given: object) -> Rule | None:
    if given is None:
        return None
    said = mapping(given)
    told = text(said.get("every")) or _EVERY
    every = parse_duration(told, "spec.rebalance.every")
    if every < _LEAST_EVERY_S:
        raise ConfigError("spec.rebalance.every", f"{told!r} is less than 1m")
    return Rule(whole(said.get("above"), _ABOVE) / 100, every, whole(said.get("seconds")))


def _limits(given: Json) -> PutAway:
    idle, told = None, text(given.get("noProgress"))
    if told:
        idle = parse_duration(told, "spec.limits.noProgress")
        if idle < _LEAST_NO_PROGRESS_S:
            raise ConfigError("spec.limits.noProgress", f"{told!r} is less than 10s")
    per_gib = whole(given.get("secondsPerGiB")) or None
    return PutAway(whole(given.get("parallel")) or None, per_gib, idle)


def _slot(given: Json, where: str) -> Slot:
    lasts = parse_duration(text(given.get("duration")), f"{where}.duration")
    try:
        times = read_times(text(given.get("cron")), text(given.get("timeZone")) or "UTC", lasts)
    except ValueError as error:
        raise ConfigError(where, str(error)) from error
    return Slot(times, _words(given, where))


def _words(given: Json, where: str) -> Mapping[str, str]:
    """What it says, by annotation, in the words of annotations; read once, so that what can't be
    is told now."""
    found = dict(_said(given))
    try:
        read_turn(found, of_job=False, callable_=False)
        read_idle(found)
        for read in (min_residency, max_wait, prefetch, priority):
            read(found)
    except ConfigError as error:
        raise ConfigError(where, str(error)) from error
    return found


def _said(given: Json) -> Iterator[tuple[str, str]]:
    turn, idle = mapping(given.get("turn")), mapping(given.get("idle"))
    weight = whole(turn.get("weight"))
    if mode := text(turn.get("mode")) or (CHOICES[-1] if weight else ""):
        yield keys.TURN, f"{mode},weight={weight}" if weight else mode
    if named := [f"{tier}={text(idle[tier])}" for tier in TIERS if tier in idle]:
        yield keys.IDLE, ",".join(named)
    own = {keys.MIN_RESIDENCY: turn.get("minResidency"), keys.MAX_WAIT: turn.get("maxWait")}
    own[keys.PREFETCH] = given.get("prefetch")
    if (ranks := turn.get("priority")) is not None:
        own[keys.PRIORITY] = str(ranks)
    yield from ((name, text(said)) for name, said in own.items() if said is not None)
    if preempted := text(given.get("onPreempt")):
        yield keys.ON_PREEMPT, preempted
    if otherwise := text(given.get("onRestoreFailure")):
        yield keys.RESTORE_ELSE, otherwise
