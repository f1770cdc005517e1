"""What an agent makes of what the one before it has noted of a move."""

from __future__ import annotations

import pytest

from kybernate.core.migration import notes
from kybernate.core.migration.notes import MoveNote, note_of
from kybernate.types import NodeName, PodRef, PodUid

MET = MoveNote(
    "m1", PodRef("ns", "a", PodUid("uid-a")), PodRef("ns", "b", PodUid("uid-b")), NodeName("n2")
)
KEPT = notes.delivered(MET, "ns/a@1")


@pytest.mark.parametrize("note", [MET, KEPT, notes.done(KEPT), notes.done(KEPT, "why")])
def test_a_note_is_read_as_it_was_written(note):
    assert note_of(note.record()) == note


def test_what_is_outdated_is_as_if_the_successor_had_just_been_met():
    assert notes.outdated(KEPT) == MET


def test_a_note_of_an_older_agent_is_read():
    record = KEPT.record()
    del record["lost"]
    assert note_of(record) == KEPT
