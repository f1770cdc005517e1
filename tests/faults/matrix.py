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
        Sees("Waits on at the gate and starts when its turn comes, also if that is now."),
        Sees("Continues serving, streams that are open included; its lease is renewed."),
        Sees("Nothing is lost: the park is undone, and done again for the one who waits."),
        Sees("Stays parked, and wakes on the next request."),
        Sees("The wake is taken up again within a second, and the request is answered."),
    ),
    _row(
        "helper",
        "`kill -9` of all processes that make driver calls, and of the one they are forked from",
        Sees("Nothing: it has no helper yet, and gets one when it starts."),
        Sees("Nothing: the next park starts another helper."),
        Sees("The park is undone, told in an event, and tried again.", End.INTACT, "helper died"),
        Sees("Nothing: the next wake starts another helper."),
        Sees("Another helper finishes the wake, and the request is answered."),
    ),
    _row(
        "plugin",
        "`kill -9`",
        Sees("Waits on and starts in its turn; new pods are bound once the plugin is back."),
        Sees("Continues serving."),
        Sees("The park continues."),
        Sees("Stays parked, and wakes on the next request."),
        Sees("The wake continues, and the request is answered."),
    ),
    _row(
        "kyb-init",
        "`kill -9` of the container's process 1",
        Sees("The container is restarted and waits again; it starts in its turn.", End.RESTARTED),
        Sees("The container is restarted by the kubelet and starts cold.", End.RESTARTED),
        Sees("The same; the one who waits for its GPU gets it at once.", End.RESTARTED),
        Sees("The parked state is lost with the container, which starts cold.", End.RESTARTED),
        Sees("The wake ends, the container starts cold.", End.RESTARTED),
    ),
    _row(
        "sidecar",
        "`kill -9`, while the kubelet asks liveness and readiness every two seconds",
        Sees("Waits on and starts in its turn; nobody takes it for dead meanwhile."),
        Sees("Continues serving; its pod isn't Ready until the sidecar is back.", End.UNREADY),
        Sees("The park continues; the same holds for its pod.", End.UNREADY),
        Sees("Stays parked: nobody takes it for dead; the same holds for its pod.", End.UNREADY),
        Sees("The wake continues, and the request is answered; the same holds.", End.UNREADY),
    ),
    _row(
        "workload",
        "`kill -9` of the command; before its start, of the process that would become it",
        Sees("The container is restarted and waits again; it starts in its turn.", End.RESTARTED),
        Sees("The container ends with its status, is restarted and starts cold.", End.RESTARTED),
        Sees("The same; the one who waits for its GPU gets it at once.", End.RESTARTED),
        Sees(
            "Restarted at once with cgroup v2; with v1, where a frozen process can't die, by the "
            "next request, which is answered all the same.",
            End.RESTARTED,
            "started again",
        ),
        Sees("The wake ends, the container starts cold.", End.RESTARTED),
    ),
    _row(
        "containerd",
        "`kill -9`; containers and their shims live on",
        Sees("Waits on and starts in its turn."),
        Sees("Continues serving."),
        Sees("The park continues."),
        Sees("Stays parked, and wakes on the next request."),
        Sees("The wake continues, and the request is answered."),
    ),
    _row(
        "kubelet",
        "`kill -9`; it starts again and registers the plugin again",
        Sees("Waits on and starts in its turn."),
        Sees("Continues serving."),
        Sees("The park continues."),
        Sees("Stays parked, and wakes on the next request."),
        Sees("The wake continues, and the request is answered."),
    ),
    _row(
        "controller",
        "`kill -9`, twice, while a CheckpointRequest asks that each of the seats be parked",
        Sees("Waits on and starts in its turn: there is nothing to save, and its request is done."),
        Sees("Continues serving until it may be parked, with which its request is done."),
        Sees("The park continues, and its request is done."),
        Sees("Stays parked, and wakes on the next request."),
        Sees("The wake continues and who waits is answered; then it is parked, as was asked."),
    ),
    _row(
        "api-server",
        "killed and away for some seconds, in which the seats are asked",
        Sees("Starts in its turn also while the API server is away; Ready once it is back."),
        Sees("Continues serving; requests are answered during the outage."),
        Sees("The park ends and the one who waits is answered during the outage."),
        Sees("Wakes on a request during the outage."),
        Sees("The wake ends and the request is answered during the outage."),
    ),
    _row(
        "gpu",
        "falls off the bus and comes back",
        Sees("Waits on, and starts once the GPU is back."),
        Sees("Killed, told in an event, and restarted once the GPU is back.", End.RESTARTED, "GPU"),
        Sees("The same: its state was in the lost memory.", End.RESTARTED),
        Sees("Stays parked in the host's memory; a request waits until the GPU is back."),
        Sees("The wake fails, and the workload restarts once the GPU is back.", End.RESTARTED),
        others={"holder": End.RESTARTED, "winner": End.RESTARTED},
    ),
    _row(
        "node-reboot",
        "all processes end, memory is wiped; the kubelet starts first, our processes last",
        Sees(
            "The kubelet fails the pod, since no plugin is there yet, and an event says so.",
            End.FAILED,
            FOR_GOOD,
        ),
        Sees("The same; the state was in memory.", End.FAILED, FOR_GOOD),
        Sees("The same.", End.FAILED, FOR_GOOD),
        Sees("The same: a park in RAM doesn't outlive the node.", End.FAILED, FOR_GOOD),
        Sees("The same.", End.FAILED, FOR_GOOD),
        others=dict.fromkeys(("holder", "taker", "winner", "loser", "bystander"), End.FAILED),
    ),
    _row(
        "driver-reload",
        "what holds a GPU is killed, the driver goes away and comes back",
        Sees("Waits on, and starts once the driver is back."),
        Sees("Its process had to end for that: restarted once the driver is back.", End.RESTARTED),
        Sees("The same.", End.RESTARTED),
        Sees("Its wake fails, told in an event, and it restarts.", End.RESTARTED, "started again"),
        Sees("The same.", End.RESTARTED),
        others=dict.fromkeys(("holder", "taker", "winner", "loser", "bystander"), End.RESTARTED),
    ),
    _row(
        "disk-full",
        "the file system of the agent's journal has no byte left for some seconds",
        Sees("Isn't started before there is room again: nothing begins without a record."),
        Sees("Continues serving."),
        Sees(
            "The park, whose intent is on disk, ends; who waits is woken once there is room again."
        ),
        Sees("Isn't woken before there is room again; the request waits and is answered."),
        Sees("The wake, whose intent is on disk, ends; the request is answered."),
    ),
    _row(
        "clock-jump",
        "the wall clock of all processes on the node jumps a day ahead, then an hour back",
        Sees("Waits on and starts in its turn: decisions use a clock that can't jump."),
        Sees("Continues serving; its lease holds."),
        Sees("The park continues."),
        Sees("Stays parked, and wakes on the next request."),
        Sees("The wake continues, and the request is answered."),
    ),
)
"""Rows in the order of the document."""


def cells() -> tuple[Cell, ...]:
    """All cells."""
    return tuple(cell for row in MATRIX for cell in row.cells)
