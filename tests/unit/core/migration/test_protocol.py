"""The table of a migration: interrupted after every act, at either end, and by anything."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kybernate.core.migration import notes, page
from kybernate.core.migration.notes import MoveNote
from kybernate.core.migration.protocol import (
    ACT_MEANING,
    EVENT_MEANING,
    OVER,
    STATE_MEANING,
    TARGET,
    TRANSITIONS,
    Act,
    Event,
    Migration,
    State,
    Survived,
    advance,
    resume,
    takes,
)
from kybernate.core.seat.seats import AT_GATE
from kybernate.errors import IllegalTransitionError
from kybernate.types import NodeName, SeatState
from tests.unit.core.migration.world import ACTIVE, POD, SUCCESSOR, World

BOTH = pytest.mark.parametrize("within", [False, True], ids=["between", "within"])
MET = MoveNote("m1", POD, SUCCESSOR, NodeName("n2"))
KEPT = notes.delivered(MET, "s1")


def at(*when):
    """Dies at these ticks: pairs of a number and which agent."""
    left, count = dict(when), iter(range(1 << 30))
    return lambda where: left.pop(next(count), "")


@BOTH
def test_undisturbed_the_successor_continues(within):
    world = World(within=within)
    assert world.run() is State.MOVED
    assert (world.successor, world.continues, world.note.done) == ("runs", "s1", True)
    assert not world.problems
    assert world.at_source == ({} if within else {"s1": 1})


def ticks(*, within):
    world = World(within=within)
    world.run()
    return world.ticks


@BOTH
@pytest.mark.parametrize("agent", ["source", "target"])
def test_an_agent_that_dies_before_any_effect(within, agent):
    for when in range(ticks(within=within)):
        world = World(within=within, chance=at((when, agent)))
        assert world.run() in (State.MOVED, State.STAYED), when
        world.quiet()
        assert not world.problems, when
        assert (world.successor == "runs") is (world.seat is not ACTIVE), when


@BOTH
def test_the_source_dies_at_any_two_effects(within):
    most = ticks(within=within)
    for first in range(most):
        for second in range(first + 1, first + most):
            world = World(within=within, chance=at((first, "source"), (second, "source")))
            assert world.run() is State.MOVED, (first, second)
            assert not world.problems, (first, second)
            assert (world.successor, world.version) == ("runs", 1)


@BOTH
def test_both_agents_die(within):
    most = ticks(within=within)
    for first in range(most):
        for second in range(most):
            dies = [at((first, "source")), at((second, "target"))]
            chance = lambda where, dies=dies: dies[0](where) or dies[1](where)  # noqa: E731
            world = World(within=within, chance=chance)
            world.run()
            world.quiet()
            assert not world.problems, (first, second)
            assert (world.successor == "runs") is (world.seat is not ACTIVE), (first, second)


HAPPENS = ["source", "target", "wake", "cancel", "successor_goes", "dump_reverts"]


@BOTH
@pytest.mark.parametrize(
    "event", ["wake", "cancel", "successor_goes", "container_ends", "dump_reverts"]
)
def test_an_event_before_any_effect_and_then_the_source_dies(within, event):
    most = ticks(within=within)
    for first in range(most):
        for second in range(first + 1, most + 4):
            world = World(within=within, chance=at((first, event), (second, "source")))
            world.run()
            world.quiet()
            assert not world.problems, (first, second)


@BOTH
@pytest.mark.parametrize("seed", range(40))
def test_anything_at_any_time(within, seed):
    rng = random.Random(seed)
    ends = set()
    for _ in range(30):
        likely = rng.choice((0.01, 0.05, 0.2))
        events = rng.sample(HAPPENS, 3)
        events += ["container_ends"] * (rng.random() < 0.3)

        def chance(where, likely=likely, events=events):
            return rng.choice(events) if rng.random() < likely else ""

        world = World(within=within, chance=chance)
        world.run()
        ends.add(world.quiet())
        assert not world.problems
        alive = (world.seat is ACTIVE) + (world.successor == "runs")
        # One that claimed the state and is gone before it ran: people decide about the artifact.
        kept = world.source.one.state is State.LOST and world.version in world.at_source.values()
        assert alive == 1 or kept or world.excused, world.source.one
    assert ends <= OVER


def test_an_older_note_is_void_once_the_workload_has_run_again():
    """Its container may end then, and nothing but the note says what the successor could have."""
    worlds = [died(when) for when in range(ticks(within=False))]
    noted = [one for one in worlds if one.note == KEPT and not one.artifact]
    assert noted
    for world in noted:
        steps = iter([""] * 6 + ["wake", "container_ends", "source"])
        world.away, world.chance = True, lambda where, steps=steps: next(steps, "")
        world.run(deaths=1)
        assert (world.version, world.seat) == (2, SeatState.WAITING)
        world.away = False
        world.quiet()
        assert not world.problems


def died(when):
    """A world whose source died there, and was not followed yet."""
    world = World(chance=at((when, "source")))
    world.run(deaths=1)
    return world


def test_one_that_was_cancelled_is_asked_for_again():
    """What is still owed to the target must not drop what comes for the next operation."""
    most = ticks(within=False)
    for first in range(most):
        world = World(chance=at((first, "cancel"), (first + 6, "target")))
        world.run()
        if world.successor != "waits":
            continue
        world.live, world.chance = True, lambda where: ""
        assert world.run() is State.MOVED
        assert not world.owed
        assert (world.successor, world._of(world.continues)) == ("runs", world.version)


# --- the table ------------------------------------------------------------------------------------


def test_everything_has_a_meaning_and_is_used():
    assert set(STATE_MEANING) == set(State)
    assert set(EVENT_MEANING) == set(Event) == {event for _, event in TRANSITIONS}
    acts = {act for step in TRANSITIONS.values() for act in step.acts}
    assert set(ACT_MEANING) == set(Act) == acts | {Act.TAKE_BACK, Act.MAY_WAKE}
    assert all(step.why for step in TRANSITIONS.values())


def test_an_end_stays_at_its_end_and_whatever_is_not_over_goes_on():
    for (state, _), step in TRANSITIONS.items():
        assert (state in TARGET) is (step.to in TARGET)
    assert set(State) - {state for state, _ in TRANSITIONS} == OVER


def test_an_illegal_event_raises_and_says_what_is_legal():
    one = Migration(0.0, State.RELEASING, KEPT)
    with pytest.raises(IllegalTransitionError, match=r"releasing .* continues, rejected"):
        advance(one, Event.CANCEL, 1.0)


def test_it_can_be_cancelled_until_the_tree_is_ended():
    may = {state for state in State if takes(state, Event.CANCEL)}
    assert may == {State.SEEKING, State.ASKING, State.STAGING, State.LEAVING, State.DELIVERED}


@pytest.mark.parametrize("event", [Event.CANCEL, Event.FAILED, Event.CLAIMED])
def test_no_note_binds_before_the_seat_may_wake(event):
    for state in State:
        if takes(state, event):
            one, step = advance(Migration(0.0, state, KEPT), event, 1.0)
            assert not one.note.artifact
            assert step.acts.index(Act.FORGET_NOTE) < step.acts.index(Act.STAY)
            noted = Act.NOTE_AT_LAST in step.acts
            assert noted is (state not in (State.SEEKING, State.ASKING))


def test_what_was_reached_is_timed():
    one = Migration(10.0)
    one, _ = advance(one, Event.FOUND, 11.0, note=MET)
    events = Event.ACCEPTED, Event.STAGED, Event.SENT, Event.VERIFIED, Event.TREE_ENDED
    for event in events:
        one, _ = advance(one, event, 12.0, artifact="s1")
    one, _ = advance(one, Event.CONTINUES, 15.0)
    assert list(one.phases) == ["met", "staged", "sent", "delivered", "ended", "all"]
    assert (one.phases["met"], one.phases["all"]) == (2.0, 5.0)
    assert one.note == notes.done(KEPT)


# --- the next agent -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, *SeatState])
def test_the_tree_is_ended_only_where_the_seats_own_record_has_it_so(state):
    ended = state is None or state in AT_GATE
    for artifact in ("", "s0", "s1"):
        one, _ = resume(Survived(KEPT, True, state, artifact), 0.0)
        assert one.state is (State.ENDING if ended or artifact == "s1" else State.SEEKING)
        assert one.note == (KEPT if one.state is State.ENDING else MET)
        one, _ = resume(Survived(MET, True, state, artifact), 0.0)
        assert one.state is State.SEEKING


def test_what_is_done_stays_done():
    for live in (False, True):
        one, step = resume(Survived(notes.done(KEPT), live, SeatState.PARKED_NVME), 0.0)
        assert (one.state, step.acts) == (State.MOVED, (Act.SLEEP_FOR_GOOD, Act.LET_GO, Act.OPEN))
        one, step = resume(Survived(notes.done(KEPT, "why"), live, SeatState.PARKED_NVME), 0.0)
        assert (one.state, step.acts) == (State.LOST, (Act.SLEEP_FOR_GOOD, Act.OPEN))
        one, step = resume(Survived(notes.done(KEPT), live, None), 0.0)
        assert step.acts == (Act.FORGET_NOTE,)


def test_what_nobody_asks_for_any_more_is_cancelled():
    one, step = resume(Survived(KEPT, False, SeatState.PARKED_NVME, "s1"), 0.0)
    assert one.state is State.CANCELLING
    assert step.acts == (Act.TAKE_BACK, Act.OWE_CANCEL, Act.FORGET_NOTE)


def test_the_document_is_rendered_from_the_table():
    page_of = Path(__file__).parents[4] / "docs" / "reference" / "node" / "migration.md"
    assert page_of.read_text() == page.render_markdown()
