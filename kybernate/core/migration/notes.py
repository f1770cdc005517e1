"""What an agent notes of a move of one of its seats, and what the next agent makes of that. Pure.

    met        the successor was there: something may have come there since
    kept       its node has verified and kept the state `artifact`; this one, that it is its own
    done       the successor continues, and nothing ever wakes the seat here again

A note that is kept binds only while the seat is as it was then: once the workload may have
continued here it is `outdated`, and is as if the successor had just been met.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.types import NodeName, PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class MoveNote:
    """`pod` continues as `successor` on `node`, since the operation of this name asks for that.
    `lost`: why it continues nowhere, though its tree is ended."""

    operation: str
    pod: PodRef
    successor: PodRef
    node: NodeName
    artifact: str = ""
    done: bool = False
    lost: str = ""

    def record(self) -> dict[str, object]:
        """The journal's form; `note_of` reads it."""
        return {
            "operation": self.operation,
            "artifact": self.artifact,
            "done": self.done,
            "lost": self.lost,
            "namespace": self.pod.namespace,
            "pod": self.pod.name,
            "uid": self.pod.uid,
            "successor": self.successor.name,
            "successor_uid": self.successor.uid,
            "node": self.node,
        }


def note_of(record: Mapping[str, object]) -> MoveNote:
    """The note that `MoveNote.record` wrote."""
    namespace = str(record["namespace"])
    return MoveNote(
        operation=str(record["operation"]),
        pod=PodRef(namespace, str(record["pod"]), PodUid(str(record["uid"]))),
        successor=PodRef(namespace, str(record["successor"]), PodUid(str(record["successor_uid"]))),
        node=NodeName(str(record["node"])),
        artifact=str(record["artifact"]),
        done=bool(record["done"]),
        lost=str(record.get("lost", "")),
    )


def delivered(note: MoveNote, artifact: str) -> MoveNote:
    """The other node keeps this state of the pod."""
    return replace(note, artifact=artifact)


def outdated(note: MoveNote) -> MoveNote:
    """The workload may continue here: what the other node keeps is not its newest state then."""
    return replace(note, artifact="")


def done(note: MoveNote, lost: str = "") -> MoveNote:
    """The workload never continues here any more; `lost`: nor anywhere else, and why."""
    return replace(note, done=True, lost=lost)
