"""Plays each row of the matrix once; its five tests look at their seats."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import requests

from tests.faults.matrix import MATRIX, End, Row
from tests.faults.scenes.scene import PUBLISHED, RIVALS
from tests.faults.scenes.stream import LIMIT
from tests.faults.strikes import STRIKES

if TYPE_CHECKING:
    from tests.faults.matrix import Cell
    from tests.faults.scenes.look import Look
    from tests.faults.scenes.scene import Scene

BYSTANDER = "bystander"


@dataclass(frozen=True, slots=True)
class Play:
    """What was seen of each role before and after the fault, and the end it should come to."""

    before: dict[str, Look]
    after: dict[str, Look]
    events: dict[str, list[str]]
    answered: dict[str, str]
    """What became of the requests that were waiting when the fault came: empty is well."""
    ends: dict[str, End]
    wrong: list[str]
    """What was wrong with the node as a whole."""
    streamed: bool
    """Whether an answer that was streaming when the fault came went on."""


class Theatre:
    """One cluster's plays, each kept for the tests of its row; `took` notes their seconds."""

    def __init__(self, scene: Scene, took: dict[str, float]) -> None:
        self.scene = scene
        self._took = took
        self._plays: dict[str, Play | Exception] = {}

    def play(self, name: str) -> Play:
        """The row's play; a failure of the play itself is raised for each of its cells."""
        if name not in self._plays:
            row = next(row for row in MATRIX if row.name == name)
            started = time.monotonic()
            try:
                self._plays[name] = self._play(row)
            except Exception as error:  # noqa: BLE001 - told to five tests
                self.scene.release()
                self._plays[name] = error
            self._took[name] = time.monotonic() - started
        found = self._plays[name]
        if isinstance(found, Exception):
            raise found
        return found

    def _play(self, row: Row) -> Play:
        scene = self.scene
        ends = dict.fromkeys((*RIVALS.values(), BYSTANDER), End.INTACT) | dict(row.others)
        ends |= {cell.column: cell.sees.end for cell in row.cells}
        before = scene.set(probed=row.probed)
        STRIKES[row.name](scene)
        scene.release()
        waited_for = [role for role in scene.pending if ends[role] is not End.FAILED]
        answered = {role: _outcome(scene, role) for role in waited_for}
        after = {role: scene.settle(role, before[role], end) for role, end in ends.items()}
        events = {cell.column: _events(scene, cell) for cell in row.cells}
        wrong = scene.clean()
        return Play(before, after, events, answered, ends, wrong, scene.streamed)


def _events(scene: Scene, cell: Cell) -> list[str]:
    """What was told of the cell's pod; the event that it must bring may come a little later."""
    deadline = time.monotonic() + PUBLISHED
    while True:
        found = scene.events(cell.column)
        if any(cell.sees.event in one for one in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _outcome(scene: Scene, role: str) -> str:
    try:
        answer = scene.pending[role].result(LIMIT)
    except (requests.RequestException, TimeoutError) as error:
        return str(error)
    return "" if answer.status == 200 and answer.intact else f"{answer.status}: {answer.body}"
