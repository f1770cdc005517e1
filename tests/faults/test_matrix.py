"""The matrix: one test per cell. All cells of a row look at the same play."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.matrix import End, cells
from tests.faults.scenes.scene import RIVALS

if TYPE_CHECKING:
    from tests.faults.matrix import Cell
    from tests.faults.scenes.look import Look
    from tests.faults.scenes.theatre import Play, Theatre

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.id)
def test_cell(theatre: Theatre, cell: Cell) -> None:
    play = theatre.play(cell.row)
    check(play, cell.column, cell.sees.end)
    if cell.column == "active" and cell.sees.end in (End.INTACT, End.UNREADY):
        assert play.streamed
    if cell.sees.event:
        assert any(cell.sees.event in event for event in play.events[cell.column])
    rival = RIVALS.get(cell.column)
    if rival is not None:
        check(play, rival, play.ends[rival])
    check(play, "bystander", play.ends["bystander"])
    wrong = play.wrong
    assert not wrong


def check(play: Play, role: str, end: End) -> None:
    """That the role came to this end, and that nobody waited for it in vain."""
    before, after = play.before[role], play.after[role]
    assert not after.problem
    assert after.uid == before.uid
    unanswered = play.answered.get(role)
    assert not unanswered
    if end is End.FAILED:
        assert after.phase == "Failed"
        return
    assert after.phase == "Running"
    assert after.ready
    if end is End.RESTARTED:
        assert after.restarts == before.restarts + 1
        assert not before.boot or after.boot != before.boot
    else:
        untouched(before, after)
        # What wasn't Ready before, since it waited, became so.
        assert end is End.UNREADY or not before.ready or after.ready_since == before.ready_since


def untouched(before: Look, after: Look) -> None:
    """The same process counts on."""
    assert after.restarts == before.restarts
    if before.boot:
        assert after.boot == before.boot
        assert after.counter > before.counter
