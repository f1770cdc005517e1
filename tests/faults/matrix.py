"""The matrix as data: for every fault and every state of a seat, what its user sees.

`test_matrix.py` has one test per cell; `python -m tests.faults` renders
docs/reference/failure-recovery.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TEST_FILE = "tests/faults/test_matrix.py"

COLUMNS = ("waiting", "active", "parking", "parked", "waking")


FOR_GOOD = "failed the pod for good"


class End(StrEnum):
    """What becomes of a seat's workload; the values are the marks in the document.

    INTACT: the same process continues counting, its pod was Ready throughout.
    UNREADY: the same process continues counting, but its pod wasn't Ready for a moment.
    RESTARTED: the same pod, its container started once more, from the beginning.
    FAILED: the kubelet failed the pod for good, and its controller has to make another.
    """

    INTACT = "intact"
    UNREADY = "not Ready for a moment"
    RESTARTED = "restarted"
    FAILED = "replaced"


@dataclass(frozen=True, slots=True)
class Sees:
    """What the user sees, in a sentence. `event` is searched in the pod's events."""

    sentence: str
    end: End = End.INTACT
    event: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the matrix."""

    row: str
    column: str
    sees: Sees

    @property
    def id(self) -> str:
        """The parameter of its test."""
        return f"{self.row}-{self.column}"

    @property
    def test(self) -> str:
        """Its test, as pytest takes it."""
        return f"{TEST_FILE}::test_cell[{self.id}]"


@dataclass(frozen=True, slots=True)
class Row:
    """One part that breaks, and how the tests break it. `others` are the seats beside those of
    the columns that don't stay as they were, by the names that scene.py gives them."""

    name: str
    fault: str
    cells: tuple[Cell, ...]
    others: Mapping[str, End] = field(default_factory=dict)

    @property
    def probed(self) -> bool:
        """Whether its seats have probes: then there is a sidecar."""
        return self.name == "sidecar"


def _row(name: str, fault: str, *sees: Sees, others: Mapping[str, End] | None = None) -> Row:
    cells = zip(COLUMNS, sees, strict=True)
    return Row(name, fault, tuple(Cell(name, column, one) for column, one in cells), others or {})


MATRIX: tuple[Row, ...] = (
    _row(
        "agent",
        "`kill -9`, while a seat is in each of the states",
        Sees(
            "The seat waits at its gate. The next agent starts it when its turn comes, or "
            "at once if it has come."
        ),
        Sees(
            "The workload serves, and open streams continue. The next agent renews the "
            "proxy's lease."
        ),
        Sees(
            "The next agent undoes the park, and parks the seat again for the request that waits."
        ),
        Sees("The seat stays parked, and wakes on the next request."),
        Sees(
            "The next agent finishes the wake within a second, and the workload answers the "
            "request."
        ),
    ),
    _row(
        "helper",
        "`kill -9` of all processes that make driver calls, and of the one they are forked from",
        Sees("Nothing: a seat gets its helper when it starts."),
        Sees("Nothing: the next park starts another helper."),
        Sees(
            "The agent undoes the park, says so in an event, and parks the seat again.",
            End.INTACT,
            "helper died",
        ),
        Sees("Nothing: the next wake starts another helper."),
        Sees("Another helper finishes the wake, and the workload answers the request."),
    ),
    _row(
        "plugin",
        "`kill -9`",
        Sees(
            "The seat waits, and starts in its turn. The extender binds new pods once the "
            "plugin is back."
        ),
        Sees("The workload serves."),
        Sees("The agent finishes the park."),
        Sees("The seat stays parked, and wakes on the next request."),
        Sees("The agent finishes the wake, and the workload answers the request."),
    ),
    _row(
        "kyb-init",
        "`kill -9` of the container's process 1",
        Sees(
            "The kubelet restarts the container, which waits again and starts in its turn.",
            End.RESTARTED,
        ),
        Sees("The kubelet restarts the container, and the workload starts cold.", End.RESTARTED),
        Sees(
            "The kubelet restarts the container, and the workload starts cold. The seat "
            "that waits for the GPU gets it at once.",
            End.RESTARTED,
        ),
        Sees(
            "The parked state is lost. The kubelet restarts the container, and the workload "
            "starts cold.",
            End.RESTARTED,
        ),
        Sees(
            "The wake ends. The kubelet restarts the container, and the workload starts cold.",
            End.RESTARTED,
        ),
    ),
    _row(
        "sidecar",
        "`kill -9`, while the kubelet asks liveness and readiness every two seconds",
        Sees(
            "The seat waits, and starts in its turn. The kubelet does not take its "
            "container for dead."
        ),
        Sees(
            "The workload serves. Its pod is not Ready until the sidecar runs again.", End.UNREADY
        ),
        Sees(
            "The agent finishes the park. The pod is not Ready until the sidecar runs again.",
            End.UNREADY,
        ),
        Sees(
            "The seat stays parked, and the kubelet does not take its container for dead. "
            "The pod is not Ready until the sidecar runs again.",
            End.UNREADY,
        ),
        Sees(
            "The agent finishes the wake, and the workload answers the request. The pod is "
            "not Ready until the sidecar runs again.",
            End.UNREADY,
        ),
    ),
    _row(
        "workload",
        "`kill -9` of the command; before its start, of the process that would become it",
        Sees(
            "The kubelet restarts the container, which waits again and starts in its turn.",
            End.RESTARTED,
        ),
        Sees(
            "The container ends with the command's status. The kubelet restarts it, and the "
            "workload starts cold.",
            End.RESTARTED,
        ),
        Sees(
            "The kubelet restarts the container, and the workload starts cold. The seat "
            "that waits for the GPU gets it at once.",
            End.RESTARTED,
        ),
        Sees(
            "The kubelet restarts the container: with cgroup v2 at once; with v1, where a "
            "frozen process can't die, on the next request, which the workload answers.",
            End.RESTARTED,
            "started again",
        ),
        Sees(
            "The wake ends. The kubelet restarts the container, and the workload starts cold.",
            End.RESTARTED,
        ),
    ),
    _row(
        "containerd",
        "`kill -9`; containers and their shims live on",
        Sees("The seat waits, and starts in its turn."),
        Sees("The workload serves."),
        Sees("The agent finishes the park."),
        Sees("The seat stays parked, and wakes on the next request."),
        Sees("The agent finishes the wake, and the workload answers the request."),
    ),
    _row(
        "kubelet",
        "`kill -9`; it starts again and registers the plugin again",
        Sees("The seat waits, and starts in its turn."),
        Sees("The workload serves."),
        Sees("The agent finishes the park."),
        Sees("The seat stays parked, and wakes on the next request."),
        Sees("The agent finishes the wake, and the workload answers the request."),
    ),
    _row(
        "controller",
        "`kill -9`, twice, while a CheckpointRequest asks that each of the seats be parked",
        Sees(
            "The seat waits, and starts in its turn. The CheckpointRequest ends at once, "
            "since there is nothing to save."
        ),
        Sees(
            "The workload serves until the agent may park the seat. Then the "
            "CheckpointRequest ends."
        ),
        Sees("The agent finishes the park, and the CheckpointRequest ends."),
        Sees("The seat stays parked, and wakes on the next request."),
        Sees(
            "The agent finishes the wake, and the workload answers the request. Then the "
            "agent parks the seat, as the CheckpointRequest asks."
        ),
    ),
    _row(
        "api-server",
        "killed and away for some seconds, in which the seats are asked",
        Sees(
            "The seat starts in its turn during the outage. Its pod is Ready once the API "
            "server is back."
        ),
        Sees("The workload serves, and answers requests during the outage."),
        Sees(
            "The agent finishes the park, and the request that waits is answered during the outage."
        ),
        Sees("The seat wakes on a request during the outage."),
        Sees(
            "The agent finishes the wake, and the workload answers the request during the outage."
        ),
    ),
    _row(
        "gpu",
        "falls off the bus and comes back",
        Sees("The seat waits, and starts once the GPU is back."),
        Sees(
            "The agent kills the workload and says so in an event. The workload restarts "
            "once the GPU is back.",
            End.RESTARTED,
            "GPU",
        ),
        Sees(
            "The agent kills the workload, whose state was in the lost memory. The workload "
            "restarts once the GPU is back.",
            End.RESTARTED,
        ),
        Sees("The seat stays parked in the host's memory. A request waits until the GPU is back."),
        Sees("The wake fails. The workload restarts once the GPU is back.", End.RESTARTED),
        others={"holder": End.RESTARTED, "winner": End.RESTARTED},
    ),
    _row(
        "node-reboot",
        "all processes end, memory is wiped; the kubelet starts first, our processes last",
        Sees(
            "The kubelet fails the pod, since no plugin is registered yet, and says so in "
            "an event.",
            End.FAILED,
            FOR_GOOD,
        ),
        Sees(
            "The kubelet fails the pod. The state was in memory and is lost.", End.FAILED, FOR_GOOD
        ),
        Sees(
            "The kubelet fails the pod. The state was in memory and is lost.", End.FAILED, FOR_GOOD
        ),
        Sees(
            "The kubelet fails the pod. A state that is parked in RAM does not outlive the node.",
            End.FAILED,
            FOR_GOOD,
        ),
        Sees(
            "The kubelet fails the pod. The state was in memory and is lost.", End.FAILED, FOR_GOOD
        ),
        others=dict.fromkeys(("holder", "taker", "winner", "loser", "bystander"), End.FAILED),
    ),
    _row(
        "driver-reload",
        "what holds a GPU is killed, the driver goes away and comes back",
        Sees("The seat waits, and starts once the driver is back."),
        Sees(
            "The reload ends the workload's process. The workload restarts once the driver "
            "is back.",
            End.RESTARTED,
        ),
        Sees(
            "The reload ends the workload's process. The workload restarts once the driver "
            "is back.",
            End.RESTARTED,
        ),
        Sees(
            "The wake fails, since the driver's part of the state is gone. The agent says "
            "so in an event and restarts the workload.",
            End.RESTARTED,
            "started again",
        ),
        Sees(
            "The reload ends the workload's process. The workload restarts once the driver "
            "is back.",
            End.RESTARTED,
        ),
        others=dict.fromkeys(("holder", "taker", "winner", "loser", "bystander"), End.RESTARTED),
    ),
    _row(
        "disk-full",
        "the file system of the agent's journal has no byte left for some seconds",
        Sees(
            "The agent starts the seat once the disk has room: it begins nothing without a record."
        ),
        Sees("The workload serves."),
        Sees(
            "The agent finishes the park, whose intent is on disk. It wakes the seat that "
            "waits once the disk has room."
        ),
        Sees(
            "The agent wakes the seat once the disk has room. Until then the request waits; "
            "then the workload answers it."
        ),
        Sees(
            "The agent finishes the wake, whose intent is on disk, and the workload answers "
            "the request."
        ),
    ),
    _row(
        "clock-jump",
        "the wall clock of all processes on the node jumps a day ahead, then an hour back",
        Sees(
            "The seat waits, and starts in its turn: the agent decides by a clock that can't jump."
        ),
        Sees("The workload serves, and the proxy's lease holds."),
        Sees("The agent finishes the park."),
        Sees("The seat stays parked, and wakes on the next request."),
        Sees("The agent finishes the wake, and the workload answers the request."),
    ),
)
"""Rows in the order of the document."""


def cells() -> tuple[Cell, ...]:
    """All cells."""
    return tuple(cell for row in MATRIX for cell in row.cells)
