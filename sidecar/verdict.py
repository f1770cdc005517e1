"""How a probe is answered, from what is known of the seat. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_CAN_ANSWER = frozenset({"running", "starting", "active", "draining"})
_AWAY = frozenset({"parking", "parked", "waking", "dumping", "restoring"})
_OVER = frozenset({"failed", "gone", "lost"})
LOST = "lost"
"""Our own word: process 1 of the seat's container has hung up, and nobody listens in its place."""


class Verdict(Enum):
    """What the kubelet gets to hear."""

    ASK = "ask"
    """Whatever the workload answers."""
    YES = "yes"
    NO = "no"


@dataclass(frozen=True, slots=True)
class View:
    """The seat as process 1 told it last. `state` is empty while it never told anything.

    `started` is when the command was let go (of our clock, s), None before; `serves` is whether
    any probe of it has succeeded since.
    """

    state: str = ""
    started: float | None = None
    serves: bool = False
    sentence: str = ""


def judge(role: str, view: View) -> Verdict:
    """The answer to a probe of this role.

    A workload at the gate is alive and has nothing to start up, but is not ready. A parked one is
    ready: it answers within the time that its pod promises, which the readiness gate minds.
    """
    if not view.state or view.state in _CAN_ANSWER:
        return Verdict.ASK
    if view.state in _AWAY:
        return Verdict.YES
    if view.state in _OVER or role == "readiness":
        return Verdict.NO
    return Verdict.YES


def spared(role: str, grace: float, view: View, now: float) -> bool:
    """Whether a failing workload still counts as alive: it is in its start-up time.

    The kubelet counts that time from the container's start, and a command may wait long at the
    gate; here it counts from the command's own start, until it has first succeeded.
    """
    if role != "liveness" or view.serves or view.started is None:
        return False
    return now - view.started < grace
