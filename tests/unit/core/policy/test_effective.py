"""What counts for a pod: its annotations before a schedule, that before the rest of its policy."""

from __future__ import annotations

import math
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate import keys
from kybernate.core.policy.effective import (
    MOST,
    SPOKEN_OF,
    Effective,
    Label,
    Policy,
    Relation,
    Slot,
    Source,
    Value,
    effective,
    governing,
    in_order,
)
from kybernate.core.policy.schedule import Times

UTC = ZoneInfo("UTC")
DAY = 86_400.0
EIGHT, SIX_PM = 8 * 3600.0, 18 * 3600.0
BY_DAY = Times("0 8 * * *", UTC, 10 * 3600.0)
LLM = (Label("app", Relation.IN, frozenset({"llm"})),)


def policy(name: str = "p", precedence: int = 0, selector=(), words=None, schedule=()) -> Policy:
    return Policy(f"uid-{name}", "shop", name, selector, precedence, words or {}, schedule)


def values(found: Effective) -> dict[str, tuple[str, str]]:
    return {name: (one.text, one.source.value) for name, one in found.values.items()}


def test_an_annotation_comes_before_a_schedule_and_that_before_the_policy() -> None:
    words = {keys.TURN: "always", keys.IDLE: "vram=10m"}
    one = policy(words=words, schedule=(Slot(BY_DAY, {keys.TURN: "on-request"}),))
    night, day = 3600.0, 9 * 3600.0
    assert values(effective({}, {}, (one,), night)) == {
        keys.TURN: ("always", "policy"),
        keys.IDLE: ("vram=10m", "policy"),
    }
    assert values(effective({}, {}, (one,), day)) == {
        keys.TURN: ("on-request", "schedule"),
        keys.IDLE: ("vram=10m", "policy"),
    }
    own = {keys.TURN: "always,weight=4", keys.MODEL: "m"}
    found = effective({}, own, (one,), day)
    assert values(found)[keys.TURN] == ("always,weight=4", "annotation")
    assert found.over(own) == {**own, keys.IDLE: "vram=10m"}
    assert (found.policy, found.until) == ("p", SIX_PM)
    assert effective({}, own, (one,), night).until == EIGHT


def test_of_several_times_that_are_now_the_first_counts() -> None:
    always = Times("* * * * *", UTC, 60.0)
    slots = (
        Slot(BY_DAY, {keys.TURN: "on-request"}),
        Slot(always, {keys.TURN: "always", keys.IDLE: "ram=1h"}),
    )
    found = effective({}, {}, (policy(schedule=slots),), 9 * 3600.0)
    assert values(found) == {
        keys.TURN: ("on-request", "schedule"),
        keys.IDLE: ("ram=1h", "schedule"),
    }
    assert values(effective({}, {}, (policy(schedule=slots),), 3600.0))[keys.TURN][0] == "always"


def test_one_policy_governs_and_none_is_mixed_with_another() -> None:
    low = policy("a", 1, words={keys.TURN: "always"})
    high = policy("z", 2, LLM, {keys.IDLE: "vram=1m"})
    those = in_order([low, high])
    assert values(effective({"app": "llm"}, {}, those, 0)) == {keys.IDLE: ("vram=1m", "policy")}
    assert values(effective({"app": "web"}, {}, those, 0)) == {keys.TURN: ("always", "policy")}
    assert governing(in_order([policy("b"), policy("a")]), {}).name == "a"
    assert effective({}, {}, (), 0) == Effective({})


def test_so_many_count_and_no_more() -> None:
    many = [policy(f"p{n:03}", n) for n in range(MOST + 10)]
    counted = in_order(many)
    assert len(counted) == MOST
    assert {one.precedence for one in counted} == set(range(10, MOST + 10))


@pytest.mark.parametrize(
    ("relation", "values", "labels", "selected"),
    [
        (Relation.IN, {"a", "b"}, {"x": "a"}, True),
        (Relation.IN, {"a", "b"}, {"x": "c"}, False),
        (Relation.IN, {"a"}, {}, False),
        (Relation.NOT_IN, {"a"}, {"x": "a"}, False),
        (Relation.NOT_IN, {"a"}, {"x": "b"}, True),
        (Relation.NOT_IN, {"a"}, {}, True),
        (Relation.EXISTS, set(), {"x": ""}, True),
        (Relation.EXISTS, set(), {}, False),
        (Relation.DOES_NOT_EXIST, set(), {"x": ""}, False),
        (Relation.DOES_NOT_EXIST, set(), {}, True),
    ],
)
def test_labels_are_held_against_a_selector_as_kubernetes_does(
    relation: Relation, values: set[str], labels: dict[str, str], *, selected: bool
) -> None:
    assert policy(selector=(Label("x", relation, frozenset(values)),)).selects(labels) is selected


@pytest.mark.parametrize(
    ("deepest", "idle"),
    [("ram", "vram=1m"), ("nvme", "vram=1m,ram=1h"), ("object", "vram=1m,ram=1h,nvme=1h")],
)
def test_no_policy_sends_a_state_deeper_than_its_pod_lets_it(deepest: str, idle: str) -> None:
    one = policy(words={keys.IDLE: "vram=1m,ram=1h,nvme=1h"})
    assert values(effective({}, {keys.PARK_TIER: deepest}, (one,), 0))[keys.IDLE][0] == idle
    deep = policy(words={keys.IDLE: "nvme=1h"})
    assert (keys.IDLE in effective({}, {keys.PARK_TIER: deepest}, (deep,), 0).values) is (
        deepest == "object"
    )


def test_what_becomes_of_a_restore_counts_for_pods_that_restore() -> None:
    one = policy(words={keys.RESTORE_ELSE: "fail"})
    assert effective({}, {}, (one,), 0).values == {}
    found = effective({}, {keys.RESTORE_FROM: "shop/a@1"}, (one,), 0)
    assert found.values == {keys.RESTORE_ELSE: Value("fail", Source.POLICY)}


WORDS = st.fixed_dictionaries(
    {},
    optional={
        keys.TURN: st.sampled_from(["always", "on-request", "auto,weight=3"]),
        keys.IDLE: st.sampled_from(["vram=1m", "vram=1m,ram=1h,nvme=1h", "nvme=2h"]),
        keys.RESTORE_ELSE: st.sampled_from(["start", "fail"]),
        keys.MIN_RESIDENCY: st.sampled_from(["0s", "5s"]),
        keys.MAX_WAIT: st.sampled_from(["1m", "2m"]),
        keys.PRIORITY: st.sampled_from(["-1", "100"]),
        keys.PREFETCH: st.sampled_from(["always", "never", "7"]),
        keys.ON_PREEMPT: st.sampled_from(["pause", "kill"]),
    },
)
NOTES = st.builds(
    lambda own, more: {**own, **more},
    WORDS,
    st.fixed_dictionaries(
        {},
        optional={
            keys.PARK_TIER: st.sampled_from(["ram", "nvme", "object", "moon"]),
            keys.RESTORE_FROM: st.just("shop/a@1"),
            keys.MODEL: st.just("m"),
        },
    ),
)
LABELS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("ab"), max_size=2)
SELECTORS = st.lists(
    st.builds(
        Label,
        st.sampled_from("xyz"),
        st.sampled_from(Relation),
        st.frozensets(st.sampled_from("ab")),
    ),
    max_size=2,
).map(tuple)
SLOTS = st.lists(
    st.builds(
        Slot,
        st.builds(
            Times,
            st.sampled_from(["0 8 * * *", "*/7 * * * *", "30 2 * * 0"]),
            st.sampled_from([UTC, ZoneInfo("Europe/Berlin")]),
            st.sampled_from([60.0, 36_000.0]),
        ),
        WORDS,
    ),
    max_size=3,
).map(tuple)
POLICIES = st.lists(
    st.builds(
        Policy,
        st.just("u"),
        st.just("shop"),
        st.sampled_from("abcdef"),
        SELECTORS,
        st.integers(0, 2),
        WORDS,
        SLOTS,
    ),
    max_size=4,
    unique_by=lambda one: one.name,
)
NOW = st.floats(0, 4 * 365 * DAY)


@given(LABELS, NOTES, POLICIES, NOW)
def test_each_value_is_of_the_first_source_that_has_one(labels, notes, policies, now) -> None:
    those = in_order(policies)
    found = effective(labels, notes, those, now)
    ruler = governing(those, labels)
    assert found.policy == (ruler.name if ruler else "")
    slots = [slot.words for slot in ruler.schedule if slot.times.now(now)[0]] if ruler else []
    for name in SPOKEN_OF:
        sources = [(Source.ANNOTATION, notes)] + [(Source.SCHEDULE, words) for words in slots]
        if ruler:
            sources.append((Source.POLICY, ruler.words))
        source, words = next((one for one in sources if name in one[1]), (None, {}))
        if name in found.values:
            assert found.values[name].source is source
            # Of idle times some may not be for this pod.
            assert set(found.values[name].text.split(",")) <= set(words[name].split(","))
        else:
            assert source is not Source.ANNOTATION
            assert source is None or name in (keys.IDLE, keys.RESTORE_ELSE)
    merged = found.over(notes)
    assert {name: merged[name] for name in notes} == notes
    assert set(merged) - set(notes) <= {*SPOKEN_OF}


@given(LABELS, NOTES, POLICIES, NOW, st.floats(0, 1))
def test_nothing_changes_before_the_moment_that_is_told(labels, notes, policies, now, part) -> None:
    those = in_order(policies)
    found = effective(labels, notes, those, now)
    assert found.until > now
    until = min(found.until, now + 3 * DAY)
    later = now + (until - now) * part
    if later < until:
        assert effective(labels, notes, those, later).values == found.values


@given(LABELS, NOTES, POLICIES, NOW, st.randoms())
def test_the_order_in_which_policies_are_heard_of_changes_nothing(
    labels, notes, policies, now, random
) -> None:
    shuffled = random.sample(policies, len(policies))
    found = effective(labels, notes, in_order(policies), now)
    assert effective(labels, notes, in_order(shuffled), now) == found
    assert found.until == math.inf or found.policy
