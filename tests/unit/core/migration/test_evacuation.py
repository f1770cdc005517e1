"""What is saved before a node is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.migration.evacuation import (
    OVER,
    STATE_MEANING,
    TRANSITIONS,
    Act,
    Load,
    Rates,
    Seen,
    State,
    plan,
    sentences,
    step,
)
from kybernate.types import PodUid

GIB = 1 << 30
RATES = Rates(write=1.0 * GIB, send=0.5 * GIB)


def load(name: str, gib: float, **more: object) -> Load:
    size = int(gib * GIB)
    return Load(PodUid(name), name, size, 0, size, **more)  # type: ignore[arg-type]


def names(found) -> list[str]:
    return [one.load.name for one in found]


def test_what_is_saved_already_costs_nothing_and_comes_first() -> None:
    there = Load(PodUid("there"), "there", 0, 0, 0, why_not="whatever")
    found = plan([load("a", 1), there], RATES, 0.5)
    assert names(found.saved) == ["there"]
    assert names(found.lost) == ["a"]


def test_the_more_important_goes_first_and_a_smaller_one_gets_its_chance() -> None:
    found = plan(
        [load("low", 1), load("high", 4, priority=9), load("huge", 99, priority=99)], RATES, 30
    )
    assert names(found.saved) == ["high", "low"]
    assert names(found.lost) == ["huge"]


def test_among_equals_what_is_called_for_most_per_second() -> None:
    found = plan([load("b", 2, calls=1.0), load("a", 2, calls=9.0), load("c", 0.5)], RATES, 99)
    assert names(found.saved) == ["a", "c", "b"]


def test_one_is_written_while_the_one_before_is_sent() -> None:
    found = plan([load("a", 1), load("b", 1)], RATES, 99)
    assert [one.ready for one in found.saved] == [3.0, 5.0]


def test_what_is_written_down_already_is_only_sent() -> None:
    parked = Load(PodUid("a"), "a", 0, 0, 2 * GIB)
    found = plan([parked], RATES, 5.0)
    assert found.saved[0].ready == 4.0


def test_an_earlier_state_of_what_is_lost_is_named() -> None:
    (told,) = sentences(plan([load("a", 9, earlier="b/a@1", why_not="no")], RATES, 9))
    assert told == "a can't be saved: no; its earlier state b/a@1 is in the object store."


def test_memory_of_the_host_counts_as_that_of_gpus() -> None:
    small = Load(PodUid("small"), "small", GIB, 0, GIB)
    large = Load(PodUid("large"), "large", GIB // 2, 3 * GIB, 7 * GIB // 2)
    found = plan([large, small], RATES, 99.0)
    assert names(found.saved) == ["small", "large"]
    assert found.saved[1].ready == 1.0 + 3.5 + 7.0
    assert sentences(found)[1] == (
        "large is saved after about 12 s (3.5 GiB: 0.5 of GPUs, 3.0 of the host)."
    )
    assert names(plan([large, small], RATES, 9.0).lost) == ["large"]


def test_it_says_what_becomes_of_each() -> None:
    told = sentences(
        plan([load("a", 1), load("b", 9), load("c", 1, why_not="it has io_uring")], RATES, 9)
    )
    assert told == (
        "a is saved after about 3 s (1.0 GiB).",
        "c can't be saved: it has io_uring.",
        "b can't be saved: it would be saved after 28 s, not 9.",
    )


loads = st.lists(
    st.builds(
        Load,
        uid=st.uuids().map(lambda uid: PodUid(str(uid))),
        name=st.just("x"),
        gpu=st.integers(0, 8 * GIB),
        host=st.integers(0, 8 * GIB),
        send=st.one_of(st.just(0), st.integers(1, 8 * GIB)),
        priority=st.integers(0, 2),
        calls=st.floats(0, 100),
        why_not=st.sampled_from(["", "", "", "it can't be dumped"]),
    ),
    max_size=12,
    unique_by=lambda one: one.uid,
)


@given(loads=loads, seconds=st.floats(0, 60))
def test_nobody_is_forgotten_and_nothing_is_promised_that_does_not_fit(
    loads: list[Load], seconds: float
) -> None:
    found = plan(loads, RATES, seconds)
    assert sorted(one.load.uid for one in (*found.saved, *found.lost)) == sorted(
        one.uid for one in loads
    )
    assert all(one.ready <= seconds for one in found.saved)
    assert {one.uid for one in loads if not one.send} <= {one.load.uid for one in found.saved}
    assert not any(one.load.why_not and one.load.send for one in found.saved)
    # As two machines would do it, one after the other.
    written = sent = 0.0
    for one in found.saved:
        if one.load.send:
            written += one.load.write / RATES.write
            sent = max(sent, written) + one.load.send / RATES.send
            assert abs(one.ready - sent) < 1e-6
    assert len(sentences(found)) == len(loads)


@given(loads=loads, seconds=st.floats(0, 60))
def test_nobody_loses_to_one_of_less_importance(loads: list[Load], seconds: float) -> None:
    found = plan(loads, RATES, seconds)
    for lost in found.lost:
        if not lost.load.why_not:
            rivals = [one.load for one in found.saved if one.load.priority >= lost.load.priority]
            without_others = plan([*rivals, lost.load], RATES, seconds)
            assert lost.load.uid in {one.load.uid for one in without_others.lost}


class Node:
    """Seats that are written and sent as they were asked to be, one tick each."""

    def __init__(self, names, refused=()):
        self.away, self.asked, self.refused = set(), set(), set(refused)
        self.seats = dict.fromkeys(names, "up")

    def seen(self, name):
        state = self.seats.get(name)
        why = "it can't be dumped" if name in self.refused else ""
        written = state in ("written", "stored")
        return Seen(written=written, stored=state == "stored", why_not=why, gone=state is None)

    def act(self, act, name):
        (self.away if act is Act.SEND_AWAY else self.asked).add(name)

    def tick(self):
        for name, state in self.seats.items():
            if name not in self.away | self.asked or name in self.refused:
                continue
            follows = {"up": "written", "written": "stored"}
            if state == "up" or name in self.asked:
                self.seats[name] = follows.get(state, state)


def evacuated(node, names, dies_before):
    """Run it, dying once before the n-th act; how many acts there were."""
    acts, at = 0, dict.fromkeys(names, State.QUEUED)
    for _ in range(30):
        while (taken := step(at, {name: node.seen(name) for name in at})) is not None:
            name, state, todo = taken
            for act in todo:
                acts += 1
                if acts == dies_before:
                    return evacuated(node, names, 0)
                node.act(act, name)
            at[name] = state
            assert sum(one is State.WRITING for one in at.values()) <= 1
        if OVER.issuperset(at.values()):
            break
        node.tick()
    return acts, at


@pytest.mark.parametrize("dies_before", range(9))
def test_interrupted_before_any_act_it_comes_to_the_same_end(dies_before):
    node = Node("abcd", refused="b")
    _, at = evacuated(node, "abcd", dies_before)
    assert at == {**dict.fromkeys("acd", State.STORED), "b": State.PASSED}


def test_one_that_is_gone_or_refused_holds_up_no_other():
    at = {"a": State.WRITING, "b": State.QUEUED}
    gone = {"a": Seen(gone=True), "b": Seen()}
    assert step(at, gone) == ("a", State.GONE, ())
    assert step(at, {"a": Seen(), "b": Seen()}) is None
    assert step({**at, "a": State.PASSED}, {"a": Seen(why_not="x"), "b": Seen()})[1] is (
        State.WRITING
    )


def test_what_was_passed_over_may_be_saved_after_all():
    assert step({"a": State.PASSED}, {"a": Seen()}) == ("a", State.WRITING, ())
    assert step({"a": State.PASSED}, {"a": Seen(stored=True)}) == ("a", State.STORED, ())


def test_each_state_says_what_it_is():
    assert STATE_MEANING.keys() == {*State}
    assert {state for state, _ in TRANSITIONS} | OVER == {*State}
