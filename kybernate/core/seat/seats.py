"""The life of a seat: one transition table, from which docs/reference/node/states.md is rendered.

The states say who may hold GPU memory: in `OCCUPYING` states the seat's processes hold theirs, or
might, so nobody else may be given it. A seat leaves them only by an event that says its memory
is confirmed free, or by `disbelieved`, since it may never have been in them: then its GPUs go to
nobody until its kyb-init has said where it is.
"""

from __future__ import annotations

import textwrap
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from kybernate.errors import IllegalTransitionError
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping


class SeatEvent(StrEnum):
    """What can happen to a seat. Each is a fact already: intents are states."""

    GO = "go"
    STARTED = "started"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    PARK = "park"
    PARKED = "parked"
    PARK_REVERTED = "park-reverted"
    WAKE = "wake"
    AWAKE = "awake"
    WAKE_REVERTED = "wake-reverted"
    DUMP = "dump"
    DUMPED = "dumped"
    DUMP_REVERTED = "dump-reverted"
    SAVED = "saved"
    UPLOADED = "uploaded"
    FETCHED = "fetched"
    ADOPT = "adopt"
    ADOPT_REVERTED = "adopt-reverted"
    ADOPTED = "adopted"
    RECEIVED = "received"
    RESTORE = "restore"
    RESTORED = "restored"
    RESTORE_REVERTED = "restore-reverted"
    FAIL = "fail"
    ENDED = "ended"
    DELETE = "delete"
    FOUND = "found"
    FOUND_RUNNING = "found-running"
    FOUND_PARKED = "found-parked"
    DISBELIEVED = "disbelieved"


EVENT_MEANING: Mapping[SeatEvent, str] = MappingProxyType(
    {
        SeatEvent.GO: "its turn has come: the command is started",
        SeatEvent.STARTED: "the workload listens on its port, or holds a CUDA context",
        SeatEvent.DRAIN: "another seat needs the GPU: no new request starts",
        SeatEvent.UNDRAIN: "nobody needs the GPU any more: requests start again",
        SeatEvent.PARK: "nothing is in flight: lock, checkpoint and freeze begin",
        SeatEvent.PARKED: "the tree is frozen and its device memory confirmed free",
        SeatEvent.PARK_REVERTED: "the driver would not lock it in time: it runs on as it was",
        SeatEvent.WAKE: "its memory is free: thaw, restore and unlock begin",
        SeatEvent.AWAKE: "every process is running again",
        SeatEvent.WAKE_REVERTED: "the GPU was not free after all: it stays parked, untouched",
        SeatEvent.DUMP: "the RAM is needed, or it was asked for: the frozen tree is written down",
        SeatEvent.DUMPED: "its artifact is sealed, and its processes are ended",
        SeatEvent.DUMP_REVERTED: "it could not be dumped, or was wake-requested: it stays in RAM",
        SeatEvent.SAVED: "a copy of it was asked for, and is written down: it stays in RAM",
        SeatEvent.UPLOADED: "its artifact is verified in the object store, and only there",
        SeatEvent.FETCHED: "its artifact is back on the node's NVMe",
        SeatEvent.ADOPT: "another pod's artifact is its to continue from: its command never starts",
        SeatEvent.ADOPT_REVERTED: "the artifact can't be had: it begins by its command",
        SeatEvent.ADOPTED: "it continues from another pod's artifact, which is in the object store",
        SeatEvent.RECEIVED: "it continues from another pod's artifact, which is on the node's NVMe",
        SeatEvent.RESTORE: "it was wake-requested, or there is room: its processes are recreated",
        SeatEvent.RESTORED: "its processes are back, frozen as they were dumped",
        SeatEvent.RESTORE_REVERTED: "they could not be recreated: its artifact is untouched",
        SeatEvent.FAIL: "a step failed for good: the tree is killed and restarted",
        SeatEvent.ENDED: "no process of it is left: the container may start again",
        SeatEvent.DELETE: "the pod is gone, and all its processes",
        SeatEvent.FOUND: "it has processes, and no record tells of them for certain",
        SeatEvent.FOUND_RUNNING: "it is on its GPUs, or has room there: it runs on",
        SeatEvent.FOUND_PARKED: "it holds no device memory, and is frozen",
        SeatEvent.DISBELIEVED: "lines of the journal are lost, and its record clashes with another",
    }
)

STATE_MEANING: Mapping[SeatState, str] = MappingProxyType(
    {
        SeatState.WAITING: "bound to a group; no process yet, kyb-init waits at the gate",
        SeatState.UNVERIFIED: "found without a record: its GPUs go to nobody until it is asked",
        SeatState.ADOPTING: "it may continue from an artifact; kyb-init is told to await a tree",
        SeatState.STARTING: "the command runs and has not started to serve",
        SeatState.ACTIVE: "in GPU memory, serving",
        SeatState.DRAINING: "in GPU memory, finishing what is in flight",
        SeatState.PARKING: "being locked, checkpointed and frozen",
        SeatState.PARKED: "frozen, its device memory in the host's RAM",
        SeatState.DUMPING: "frozen in RAM, being written to the node's NVMe",
        SeatState.PARKED_NVME: "without processes, all its state on the node's NVMe",
        SeatState.PARKED_OBJECT: "without processes, all its state in the object store",
        SeatState.RESTORING: "its processes being recreated from NVMe, frozen",
        SeatState.WAKING: "being thawed, restored and unlocked",
        SeatState.FAILED: "a step failed; being killed, its GPU given to nobody meanwhile",
        SeatState.GONE: "the pod no longer exists",
    }
)

_LIVE = (
    SeatState.STARTING,
    SeatState.ACTIVE,
    SeatState.DRAINING,
    SeatState.PARKING,
    SeatState.PARKED,
    SeatState.DUMPING,
    SeatState.PARKED_NVME,
    SeatState.PARKED_OBJECT,
    SeatState.RESTORING,
    SeatState.WAKING,
)

TIER_OF: Mapping[SeatState, Tier] = MappingProxyType(
    {
        SeatState.PARKED: Tier.RAM,
        SeatState.DUMPING: Tier.RAM,
        SeatState.PARKED_NVME: Tier.NVME,
        SeatState.RESTORING: Tier.NVME,
        SeatState.PARKED_OBJECT: Tier.OBJECT,
    }
)
"""Where the state of a parked seat is; it holds no GPU memory in any of these states."""

RESTING: Mapping[Tier, SeatState] = MappingProxyType(
    {
        Tier.RAM: SeatState.PARKED,
        Tier.NVME: SeatState.PARKED_NVME,
        Tier.OBJECT: SeatState.PARKED_OBJECT,
    }
)
"""The state of a seat that is parked in a tier and is not on its way to another."""

AT_GATE = frozenset({SeatState.WAITING, SeatState.ADOPTING})
"""States in which the seat has no process but kyb-init, which has started nothing yet."""

WITHOUT_TREE = frozenset({SeatState.PARKED_NVME, SeatState.PARKED_OBJECT})
"""States in which the seat has no process but kyb-init: all it is is an artifact."""

OCCUPYING: frozenset[SeatState] = frozenset({*_LIVE, SeatState.FAILED} - TIER_OF.keys())
"""States in which the seat's GPUs are, or may be, in use by it."""

_TABLE: dict[tuple[SeatState, SeatEvent], SeatState] = {
    (SeatState.WAITING, SeatEvent.GO): SeatState.STARTING,
    (SeatState.STARTING, SeatEvent.STARTED): SeatState.ACTIVE,
    (SeatState.ACTIVE, SeatEvent.DRAIN): SeatState.DRAINING,
    (SeatState.DRAINING, SeatEvent.UNDRAIN): SeatState.ACTIVE,
    (SeatState.DRAINING, SeatEvent.PARK): SeatState.PARKING,
    (SeatState.PARKING, SeatEvent.PARKED): SeatState.PARKED,
    (SeatState.PARKING, SeatEvent.PARK_REVERTED): SeatState.ACTIVE,
    (SeatState.PARKED, SeatEvent.WAKE): SeatState.WAKING,
    (SeatState.WAKING, SeatEvent.AWAKE): SeatState.ACTIVE,
    (SeatState.WAKING, SeatEvent.WAKE_REVERTED): SeatState.PARKED,
    (SeatState.PARKED, SeatEvent.DUMP): SeatState.DUMPING,
    (SeatState.DUMPING, SeatEvent.DUMPED): SeatState.PARKED_NVME,
    (SeatState.DUMPING, SeatEvent.DUMP_REVERTED): SeatState.PARKED,
    (SeatState.DUMPING, SeatEvent.SAVED): SeatState.PARKED,
    (SeatState.PARKED_NVME, SeatEvent.UPLOADED): SeatState.PARKED_OBJECT,
    (SeatState.PARKED_OBJECT, SeatEvent.FETCHED): SeatState.PARKED_NVME,
    (SeatState.WAITING, SeatEvent.ADOPT): SeatState.ADOPTING,
    (SeatState.ADOPTING, SeatEvent.ADOPT_REVERTED): SeatState.WAITING,
    (SeatState.ADOPTING, SeatEvent.ADOPTED): SeatState.PARKED_OBJECT,
    (SeatState.ADOPTING, SeatEvent.RECEIVED): SeatState.PARKED_NVME,
    (SeatState.ADOPTING, SeatEvent.ENDED): SeatState.WAITING,
    (SeatState.PARKED_NVME, SeatEvent.RESTORE): SeatState.RESTORING,
    (SeatState.RESTORING, SeatEvent.RESTORED): SeatState.PARKED,
    (SeatState.RESTORING, SeatEvent.RESTORE_REVERTED): SeatState.PARKED_NVME,
    (SeatState.FAILED, SeatEvent.ENDED): SeatState.WAITING,
    (SeatState.FAILED, SeatEvent.DELETE): SeatState.GONE,
    (SeatState.WAITING, SeatEvent.DELETE): SeatState.GONE,
    (SeatState.ADOPTING, SeatEvent.DELETE): SeatState.GONE,
    (SeatState.WAITING, SeatEvent.FOUND): SeatState.UNVERIFIED,
    (SeatState.ADOPTING, SeatEvent.FOUND): SeatState.UNVERIFIED,
    (SeatState.PARKED, SeatEvent.FOUND): SeatState.UNVERIFIED,
    (SeatState.UNVERIFIED, SeatEvent.FOUND_RUNNING): SeatState.STARTING,
    (SeatState.UNVERIFIED, SeatEvent.FOUND_PARKED): SeatState.PARKED,
    (SeatState.UNVERIFIED, SeatEvent.ENDED): SeatState.WAITING,
    (SeatState.UNVERIFIED, SeatEvent.DELETE): SeatState.GONE,
}
# A parked seat holds no GPU memory, so it must not come to occupy any by failing: it just ends.
_TABLE |= {(s, SeatEvent.FAIL): SeatState.FAILED for s in _LIVE if s not in TIER_OF}
_TABLE |= {(state, SeatEvent.ENDED): SeatState.WAITING for state in _LIVE}
_TABLE |= {(state, SeatEvent.DELETE): SeatState.GONE for state in _LIVE}
# Only records of seats that would hold GPU memory can clash.
_TABLE |= {(s, SeatEvent.DISBELIEVED): SeatState.WAITING for s in SeatState if s in OCCUPYING}

TRANSITIONS: Mapping[tuple[SeatState, SeatEvent], SeatState] = MappingProxyType(_TABLE)


def next_state(state: SeatState, event: SeatEvent) -> SeatState:
    """The state after the event. Raises IllegalTransitionError if the table has no such entry."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        known = ", ".join(e for s, e in TRANSITIONS if s == state) or "none"
        raise IllegalTransitionError(
            f"a seat that is {state} can't take the event {event}; it takes: {known}"
        ) from None


def shown(state: SeatState) -> str:
    """The state's word for people and clients, to whom a parked seat is parked in every tier, and
    one that nobody knows yet, or that has no tree yet, waits."""
    if state in (SeatState.UNVERIFIED, SeatState.ADOPTING):
        return SeatState.WAITING.value
    return SeatState.PARKED.value if state in WITHOUT_TREE else state.value


def render_markdown() -> str:
    """docs/reference/node/states.md, whole."""
    lines = [
        "# The states of a seat",
        "",
        "Rendered from the transition table in `kybernate/core/seat/seats.py`; an event that a",
        "state does not list is a bug and raises.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        *(f'    state "{s}" as {_id(s)}' for s in SeatState if _id(s) != s),
        "    [*] --> waiting: bound",
        *(f"    {_id(s)} --> {_id(t)}: {e}" for (s, e), t in TRANSITIONS.items() if _drawn(s, e)),
        "    gone --> [*]",
        "```",
        "",
        "From every state with a process, `ended` leads to waiting, and `fail` to failed unless it",
        "is parked; from every state, `delete` leads to gone. From every state that holds GPU",
        "memory, `disbelieved` leads to waiting, and its GPUs go to nobody until its kyb-init has",
        "said where it is. GPUNode status and API call a seat parked whichever tier its state",
        "is in, and name the tier beside it; one that is unverified or adopting they call waiting.",
        "A seat that fails while it is parked or unverified stays what it is until its processes",
        "are gone, and its GPUs go to nobody meanwhile.",
        "",
        "| state | holds GPU memory | tier | meaning |",
        "|---|---|---|---|",
        *(
            f"| {state} | {'yes' if state in OCCUPYING else 'no'} | {TIER_OF.get(state, '')} | "
            f"{STATE_MEANING[state]} |"
            for state in SeatState
        ),
        "",
        "What each event means, and where it leads:",
        "",
        *(_wrapped(f"- **{e}** ({_edges(e)}): {EVENT_MEANING[e]}") for e in SeatEvent),
        "",
    ]
    return "\n".join(lines)


def _id(state: SeatState) -> str:
    """A state's name in the diagram, whose names have no hyphen."""
    return state.replace("-", "_")


def _drawn(state: SeatState, event: SeatEvent) -> bool:
    everywhere = {SeatEvent.FAIL, SeatEvent.ENDED, SeatEvent.DELETE, SeatEvent.DISBELIEVED}
    return event not in everywhere or state in {SeatState.ACTIVE, SeatState.FAILED}


def _wrapped(entry: str) -> str:
    return textwrap.fill(entry, 120, subsequent_indent="  ", break_on_hyphens=False)


def _edges(event: SeatEvent) -> str:
    found = [(s, t) for (s, e), t in TRANSITIONS.items() if e == event]
    targets = dict.fromkeys(t for _, t in found)
    return "; ".join(f"{', '.join(s for s, to in found if to == t)} → {t}" for t in targets)
