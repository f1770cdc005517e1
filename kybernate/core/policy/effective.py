"""What counts for a pod: its annotations, and the CheckpointPolicies of its namespace. Pure.

A policy says in the words of annotations what pods do not say themselves. For each annotation that
a policy may speak of, the first of these counts:

    annotation   the pod's own
    schedule     of the policy that governs the pod, the first time that is now and speaks of it
    policy       what this policy says for always

and where none of them says anything, the agent's setting does. One policy governs a pod: of those
that select it the one of the highest precedence, of several such the first by name.
"""

from __future__ import annotations

import math
from dataclasses import field
from enum import StrEnum
from heapq import nsmallest
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from kybernate import keys
from kybernate.dataclass import dataclass
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kybernate.core.policy.balance import Rule
    from kybernate.core.policy.schedule import Times
    from kybernate.core.policy.snapshots import Snapshots

MOST = 64
"""Policies of a namespace that count: each pod is held against all of them."""

_EMPTY: Mapping[str, str] = MappingProxyType({})


class Source(StrEnum):
    """Where a value comes from."""

    ANNOTATION = "annotation"
    SCHEDULE = "schedule"
    POLICY = "policy"


class Relation(StrEnum):
    """How a label must be for a pod to be selected, as Kubernetes calls it."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Label(NamedTuple):
    """What a selector wants of one label."""

    name: str
    relation: Relation
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels has it so."""
        value = labels.get(self.name)
        match self.relation:
            case Relation.IN:
                return value in self.values
            case Relation.NOT_IN:
                return value not in self.values
            case Relation.EXISTS:
                return value is not None
            case Relation.DOES_NOT_EXIST:
                return value is None


@dataclass(frozen=True, slots=True)
class Slot:
    """What counts at certain times: words by annotation."""

    times: Times
    words: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PutAway:
    """How states of a policy's pods are put away so that the pods may go: how many at a time, in
    how many seconds for each GiB, and for how many seconds without a byte; None: as the controller
    has it."""

    parallel: int | None = None
    per_gib: float | None = None
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A CheckpointPolicy. `words`: what it says of its pods for always, by annotation."""

    uid: str
    namespace: str
    name: str
    selector: tuple[Label, ...] = ()
    precedence: int = 0
    words: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    schedule: tuple[Slot, ...] = ()
    snapshots: Snapshots | None = None
    limits: PutAway = field(default_factory=PutAway)
    rebalance: Rule | None = None

    @property
    def rank(self) -> tuple[int, str]:
        """The smallest governs."""
        return -self.precedence, self.name

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a pod of its namespace with these labels."""
        return all(one.matches(labels) for one in self.selector)


class Value(NamedTuple):
    """What an annotation says, or would say, and where that comes from."""

    text: str
    source: Source


@dataclass(frozen=True, slots=True)
class Effective:
    """What counts for a pod. `values` by annotation; `policy`: the name of the one that governs it,
    empty if none does; `until`: when that may change by itself, in seconds since 1970."""

    values: Mapping[str, Value]
    policy: str = ""
    until: float = math.inf

    def over(self, notes: Mapping[str, str]) -> Mapping[str, str]:
        """The pod's annotations with these values."""
        if all(one.source is Source.ANNOTATION for one in self.values.values()):
            return notes
        return {**notes, **{name: one.text for name, one in self.values.items()}}


def in_order(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Those of a namespace that count, the first that selects a pod governs it."""
    return tuple(nsmallest(MOST, policies, key=lambda one: one.rank))


def governing(policies: Sequence[Policy], labels: Mapping[str, str]) -> Policy | None:
    """Which of a namespace's policies, `in_order`, governs a pod with these labels."""
    return next((one for one in policies if one.selects(labels)), None)


def effective(
    labels: Mapping[str, str],
    notes: Mapping[str, str],
    policies: Sequence[Policy],
    now: float,
) -> Effective:
    """What counts now (in seconds since 1970) for a pod with these labels and annotations, whose
    namespace has these policies, `in_order`."""
    own = {name: Value(notes[name], Source.ANNOTATION) for name in SPOKEN_OF if name in notes}
    policy = governing(policies, labels)
    if policy is None:
        return Effective(own)
    found = {name: Value(text, Source.POLICY) for name, text in policy.words.items()}
    scheduled, until = _scheduled(policy, now)
    found |= {name: Value(text, Source.SCHEDULE) for name, text in scheduled.items()}
    fitting = {
        name: one._replace(text=_fitting(name, one.text, notes)) for name, one in found.items()
    }
    said = {name: one for name, one in fitting.items() if one.text}
    return Effective({**said, **own}, policy.name, until)


def _scheduled(policy: Policy, now: float) -> tuple[dict[str, str], float]:
    found: dict[str, str] = {}
    until = math.inf
    for slot in policy.schedule:
        is_now, changes = slot.times.now(now)
        until = min(until, changes)
        if is_now:
            # Of several the first counts.
            found = {**slot.words, **found}
    return found, until


SPOKEN_OF = (
    *(keys.TURN, keys.IDLE, keys.MIN_RESIDENCY, keys.MAX_WAIT, keys.PREFETCH),
    *(keys.PRIORITY, keys.ON_PREEMPT, keys.RESTORE_ELSE),
)
"""The annotations of which a policy may say what they would."""


def _fitting(name: str, text: str, notes: Mapping[str, str]) -> str:
    """What of it means anything for a pod with these annotations."""
    if name == keys.RESTORE_ELSE and keys.RESTORE_FROM not in notes:
        return ""
    return _no_deeper(text, notes) if name == keys.IDLE else text


_STAYING = MappingProxyType(
    {
        Tier.RAM.value: (Tier.RAM.value, Tier.NVME.value, Tier.OBJECT.value),
        Tier.NVME.value: (Tier.NVME.value, Tier.OBJECT.value),
    }
)
"""By the deepest tier that a state may go to: those that it does not leave for a deeper one."""


def _no_deeper(idle: str, notes: Mapping[str, str]) -> str:
    """The idle times, less those that the pod's own `park-tier` rules out: a policy speaks of many
    pods, and not all of its times are for each."""
    staying = _STAYING.get(notes.get(keys.PARK_TIER, ""), ())
    return ",".join(part for part in idle.split(",") if part.partition("=")[0] not in staying)
