from __future__ import annotations

from dataclasses import replace

import pytest

from tests.demo.verdict import Answer, Outcome, Wake, figures, judge, percentile

GOOD = Outcome(
    asked=200,
    answers=[Answer("m", 200, 10.0, counter=n) for n in range(1, 201)],
    wakes=[Wake("m", "n1", "G0", 1, 50.0)] * 19 + [Wake("w", "n1", "G01", 2, 90.0)],
    overlaps=[],
    witnessed=40,
)


def failed(outcome):
    return [check.name for check in judge(outcome) if not check.passed]


def test_a_good_run_passes():
    assert failed(GOOD) == []
    assert figures(GOOD)["wake p50 / p99"] == "50 / 90 ms"


def answers(number, **change):
    return [*[replace(a, **change) for a in GOOD.answers[:number]], *GOOD.answers[number:]]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        pytest.param(
            {"answers": answers(1, status=502, counter=None)},
            "every request answered",
            id="an error",
        ),
        pytest.param({"asked": 201}, "every request answered", id="a request without any answer"),
        pytest.param(
            {"answers": answers(3, status=429, counter=None)},
            "few refused (429)",
            id="more than one percent refused",
        ),
        pytest.param({"wakes": GOOD.wakes[1:]}, "at least 20 swaps", id="too few swaps"),
        pytest.param(
            {"wakes": [GOOD.wakes[0]] * 20}, "some of them on two GPUs", id="only single GPUs"
        ),
        pytest.param(
            {"answers": answers(1, problem="m lost state")},
            "no counter or checksum wrong",
            id="a wrong checksum",
        ),
        pytest.param(
            {"answers": answers(1, counter=7)}, "no counter or checksum wrong", id="counted twice"
        ),
        pytest.param(
            {"answers": [*answers(0)[:-1], Answer("m", 200, 1.0, counter=205)]},
            "no counter or checksum wrong",
            id="numbers skipped",
        ),
        pytest.param({"overlaps": ["a and b"]}, "never two seats on one GPU", id="an overlap"),
        pytest.param({"witnessed": 0}, "never two seats on one GPU", id="no witness"),
    ],
)
def test_what_must_not_be_fails_the_demo(change, check):
    assert check in failed(replace(GOOD, **change))


def test_one_percent_may_be_refused():
    assert failed(replace(GOOD, answers=answers(2, status=429, counter=None))) == []


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.99, 4), (0.0, 1), (0.75, 3)])
def test_percentiles_are_values_that_occurred(share, value):
    assert percentile([4, 1, 3, 2], share) == value
