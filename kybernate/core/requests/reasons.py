"""Reasons of a CheckpointRequest. Pure."""

from __future__ import annotations

from kybernate.core.reasons import DONE, OPEN, OVER, Reasoned


class Reason(Reasoned):
    """Reasons of the condition Complete of a CheckpointRequest."""

    PENDING = "Pending", OPEN, "the pod is found; its node's agent is asked next"
    POD_NOT_BOUND = "PodNotBound", OPEN, "the pod is on no node yet"
    SEAT_NOT_READY = "SeatNotReady", OPEN, "the agent has no seat of the pod yet"
    SEAT_BUSY = "SeatBusy", OPEN, "another operation is under way for the seat"
    AGENT_UNREACHABLE = "AgentUnreachable", OPEN, "the node's agent can't be asked now"
    DISRUPTION_BUDGET = "DisruptionBudget", OPEN, "a PodDisruptionBudget keeps the pod for now"
    QUEUED = "Queued", OPEN, "as many snapshots or evictions run as may at a time"
    WAITING = "Waiting", OPEN, "the agent has the operation, which waits its turn"
    RUNNING = "Running", OPEN, "the agent carries the operation out"
    PARKED = "Parked", DONE, "the seat is parked, in the tier that was asked for"
    SEALED = "Sealed", DONE, "the artifact is sealed and verified in its tier"
    EVICTED = "Evicted", DONE, "the seat is parked and stays so: its pod may go"
    AWAKE = "Awake", DONE, "the seat is in GPU memory, and runs"
    POD_NOT_FOUND = "PodNotFound", OVER, "the namespace has no pod of this name"
    POD_GONE = "PodGone", OVER, "the pod went before it was done"
    POD_ENDED = "PodEnded", OVER, "the pod has ended, and nothing of it runs"
    NO_SEAT = "NoSeat", OVER, "the pod asks for no seat on a GPU group"
    REFUSED = "Refused", OVER, "the agent can't do this for the seat as it is"
    FAILED = "Failed", OVER, "the agent tried, and could not"
    CANCELLED = "Cancelled", OVER, "somebody took the operation back on the node"
    OPERATION_LOST = "OperationLost", OVER, "the agent knows the operation no more"
    NOT_LET_GO = "NotLetGo", OVER, "a budget or other evictions kept the pod until the deadline"
    STALLED = "Stalled", OVER, "its bytes took too long, or none came for too long; cancelled"
    DEADLINE_EXCEEDED = "DeadlineExceeded", OVER, "not done within spec.deadlineSeconds"
