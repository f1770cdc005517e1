"""Why a request is as it is: one word each, in conditions, events and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Standing(StrEnum):
    """Whether more becomes of a request, and what became of it."""

    RETRYABLE = "retryable"
    SUCCESS = "success"
    TERMINAL = "terminal"


class Reason(StrEnum):
    """Reasons of the condition Complete of a CheckpointRequest."""

    PENDING = "Pending"
    POD_NOT_BOUND = "PodNotBound"
    SEAT_NOT_READY = "SeatNotReady"
    SEAT_BUSY = "SeatBusy"
    AGENT_UNREACHABLE = "AgentUnreachable"
    DISRUPTION_BUDGET = "DisruptionBudget"
    QUEUED = "Queued"
    WAITING = "Waiting"
    RUNNING = "Running"
    PARKED = "Parked"
    SEALED = "Sealed"
    EVICTED = "Evicted"
    AWAKE = "Awake"
    POD_NOT_FOUND = "PodNotFound"
    POD_GONE = "PodGone"
    POD_ENDED = "PodEnded"
    NO_SEAT = "NoSeat"
    REFUSED = "Refused"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    OPERATION_LOST = "OperationLost"
    NOT_LET_GO = "NotLetGo"
    DEADLINE_EXCEEDED = "DeadlineExceeded"

    @property
    def standing(self) -> Standing:
        """Whether more becomes of a request with this reason."""
        return MEANINGS[self].standing


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason says, for the page of objects."""

    standing: Standing
    told: str


_OPEN, _DONE, _OVER = Standing.RETRYABLE, Standing.SUCCESS, Standing.TERMINAL

MEANINGS: Mapping[Reason, Meaning] = MappingProxyType(
    {
        Reason.PENDING: Meaning(_OPEN, "the pod is found; its node's agent is asked next"),
        Reason.POD_NOT_BOUND: Meaning(_OPEN, "the pod is on no node yet"),
        Reason.SEAT_NOT_READY: Meaning(_OPEN, "the agent has no seat of the pod yet"),
        Reason.SEAT_BUSY: Meaning(_OPEN, "another operation is under way for the seat"),
        Reason.AGENT_UNREACHABLE: Meaning(_OPEN, "the node's agent can't be asked now"),
        Reason.DISRUPTION_BUDGET: Meaning(_OPEN, "a PodDisruptionBudget keeps the pod for now"),
        Reason.QUEUED: Meaning(_OPEN, "as many snapshots of the namespace run as may at a time"),
        Reason.WAITING: Meaning(_OPEN, "the agent has the operation, which waits its turn"),
        Reason.RUNNING: Meaning(_OPEN, "the agent carries the operation out"),
        Reason.PARKED: Meaning(_DONE, "the seat is parked, in the tier that was asked for"),
        Reason.SEALED: Meaning(_DONE, "the artifact is sealed and verified in its tier"),
        Reason.EVICTED: Meaning(_DONE, "the seat is parked and stays so: its pod may go"),
        Reason.AWAKE: Meaning(_DONE, "the seat is in GPU memory, and runs"),
        Reason.POD_NOT_FOUND: Meaning(_OVER, "the namespace has no pod of this name"),
        Reason.POD_GONE: Meaning(_OVER, "the pod went before it was done"),
        Reason.POD_ENDED: Meaning(_OVER, "the pod has ended, and nothing of it runs"),
        Reason.NO_SEAT: Meaning(_OVER, "the pod asks for no seat on a GPU group"),
        Reason.REFUSED: Meaning(_OVER, "the agent can't do this for the seat as it is"),
        Reason.FAILED: Meaning(_OVER, "the agent tried, and could not"),
        Reason.CANCELLED: Meaning(_OVER, "somebody took the operation back on the node"),
        Reason.OPERATION_LOST: Meaning(_OVER, "the agent knows the operation no more"),
        Reason.NOT_LET_GO: Meaning(_OVER, "a PodDisruptionBudget kept the pod until the deadline"),
        Reason.DEADLINE_EXCEEDED: Meaning(_OVER, "not done within spec.deadlineSeconds"),
    }
)
