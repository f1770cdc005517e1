"""What an agent makes of what the one before it has noted of a move."""

from __future__ import annotations

from itertools import product

import pytest

from kybernate.core.migration import notes
from kybernate.core.migration.notes import Found, MoveNote, found, goes_on_there, note_of
from kybernate.types import NodeName, PodRef, PodUid, SeatState

MET = MoveNote(
    "m1", PodRef("ns", "a", PodUid("uid-a")), PodRef("ns", "b", PodUid("uid-b")), NodeName("n2")
)
KEPT = notes.kept(MET, "ns/a@1")


@pytest.mark.parametrize("note", [MET, KEPT, notes.done(KEPT), notes.done(KEPT, "why")])
def test_a_note_is_read_as_it_was_written(note):
    assert note_of(note.record()) == note


def test_what_is_outdated_is_as_if_the_successor_had_just_been_met():
    assert notes.outdated(KEPT) == MET


@pytest.mark.parametrize("state", [None, *SeatState])
def test_the_successor_goes_on_only_where_the_tree_here_is_ended_or_must_be(state):
    ended = state in (None, SeatState.WAITING)
    assert goes_on_there(KEPT, state, "") is ended
    assert goes_on_there(KEPT, state, "ns/a@0") is ended, "another state of the seat's"
    assert goes_on_there(KEPT, state, "ns/a@1"), "its own record has it end the tree"
    assert goes_on_there(notes.done(KEPT), state, ""), "on one node it names it no more"
    for artifact in ("", "ns/a@1"):
        assert not goes_on_there(MET, state, artifact)


def test_what_becomes_of_each_note():
    became = {
        (seated, live): [found(note, seated=seated, live=live) for note in (MET, KEPT)]
        for seated, live in product((False, True), repeat=2)
    }
    for (_, live), does in became.items():
        assert does == [Found.GO_ON if live else Found.CALL_OFF] * 2
    for live in (False, True):
        assert found(notes.done(KEPT), seated=True, live=live) is Found.KEEP_ASLEEP
        assert found(notes.done(KEPT), seated=False, live=live) is Found.FORGET


def test_a_note_of_an_older_agent_is_read():
    record = KEPT.record()
    del record["lost"]
    assert note_of(record) == KEPT
