"""One cluster for the whole matrix, and the table at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster import ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.faults.clock import ENV
from tests.faults.matrix import COLUMNS, MATRIX, TEST_FILE
from tests.faults.scenes.scene import GPUS, NODE, Scene
from tests.faults.scenes.theatre import Theatre

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = ClusterSpec(
    name="flt",
    nodes=(NODE,),
    subnet="10.97.0.0/16",
    gpus=GpuSpec(count=GPUS, scale=4096),
    images=("toy",),
    seats={
        "profiles": [
            {"name": "1x", "resource": "kyb.ai/gpu-1x-seat", "groupSize": 1, "seatsPerGroup": 4}
        ]
    },
    state_size="16m",
    service_env={
        "plugin": ENV,
        "agent": {
            **ENV,
            "KYB_AGENT_MIN_RESIDENCY_S": "0.2",
            "KYB_AGENT_IDLE_AFTER_S": "0.1",
            "KYB_AGENT_STATUS_INTERVAL_S": "0.1",
            # Calls are held, and answers stream, for as long as a fault takes.
            "KYB_AGENT_DRAIN_LIMIT_S": "120",
            "KYB_AGENT_LOCK_TIMEOUT_MS": "60000",
            "KYB_AGENT_STEP_DEADLINE_S": "60",
        },
    },
)

OUTCOMES: dict[str, str] = {}
SECONDS: dict[str, float] = {}
FIGURES: list[str] = []


@pytest.fixture(scope="session")
def scene() -> Iterator[Scene]:
    """One node, a GPU for each role."""
    with running(SPEC, print) as up:
        made = Scene(up)
        made.open()
        yield made


@pytest.fixture(scope="session")
def theatre(scene: Scene) -> Theatre:
    """The plays of the matrix."""
    return Theatre(scene, SECONDS)


@pytest.fixture(scope="session")
def figures() -> list[str]:
    """Lines that the session's summary tells."""
    return FIGURES


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what became of each cell."""
    if f"{TEST_FILE}::test_cell" in report.nodeid and (report.when == "call" or report.failed):
        OUTCOMES[report.nodeid] = report.outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table: every cell's test and what became of it."""
    if OUTCOMES:
        terminalreporter.section(f"matrix, tests are {TEST_FILE}::test_cell[ID]")
        width = max(len(f"{row.name}-{column}") for row in MATRIX for column in COLUMNS) + 8
        for row in MATRIX:
            words = [f"{cell.id} {_mark(OUTCOMES.get(cell.test))}" for cell in row.cells]
            took = f"{SECONDS[row.name]:4.0f} s" if row.name in SECONDS else ""
            terminalreporter.write_line("".join(word.ljust(width) for word in words) + took)
    for line in FIGURES:
        terminalreporter.write_line(line)


def _mark(outcome: str | None) -> str:
    return {"passed": "ok", None: "-"}.get(outcome, str(outcome).upper())
