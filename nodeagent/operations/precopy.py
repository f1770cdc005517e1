"""Pre-copies: a snapshot of a seat that is to be evicted, made while it serves.

The eviction then sends only what has changed since, so the pod's requests wait less. A pre-copy is
an operation beside the eviction's; its artifact is held until the eviction has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.seat.operations import Kind
from kybernate.types import Tier
from nodeagent.operations.record import Ask

if TYPE_CHECKING:
    from nodeagent.operations.record import Operation

_BEHIND = "_precopy"
"""Behind an eviction's name. No caller's operation has such a name: none may have a `_`."""
_SHARE = 0.5
"""Of the eviction's time. What is left is for what the eviction itself does."""


def name_of(eviction: str) -> str:
    """The pre-copy of the eviction of this name."""
    return eviction + _BEHIND


def eviction_of(name: str) -> str:
    """The eviction that the operation of this name is the pre-copy of; empty for any other."""
    return name.removesuffix(_BEHIND) if name.endswith(_BEHIND) else ""


def asked_by(eviction: Operation, now: float) -> Ask:
    """What an eviction asks for; `now` in wall-clock seconds."""
    return Ask(
        Kind.SAVE,
        name_of(eviction.name),
        eviction.uid,
        why=f"before {eviction.name}",
        limit=max(1.0, (eviction.due_at - now) * _SHARE),
        tier=Tier.OBJECT,
    )
