"""Forecasts against the product's own swap decision, played in virtual time."""

from __future__ import annotations

import random

import pytest

from bench.placement.colocate import own_wait_seconds
from bench.placement.seatsim import Request, simulate
from kybernate.core.swap.activity import HOURS, Recorder
from kybernate.core.swap.forecast import Sharer, observed

HOUR = 3600.0
LENGTH = 3 * HOUR


def requests(rng, every, length):
    """Random arrivals, one in `every` seconds, each of about `length` seconds."""
    found, at = [], 0.0
    while (at := at + rng.expovariate(1 / every)) < LENGTH:
        found.append(Request(at, rng.expovariate(1 / length)))
    return found


def seen(what):
    recorder = Recorder(0.0)

    def watch(now, _seat, in_flight, waiting):
        recorder.note(now, serving=in_flight > 0, wanted=in_flight + waiting > 0)

    simulate([what], [0.0], watch=watch)
    recorder.advance(LENGTH)
    busy, calls = recorder.profile()
    steady = [sum(row[:3]) / 3 for row in (busy, calls)]
    return observed([1000 * steady[0]] * HOURS, [steady[1]] * HOURS)


SCENES = {
    "four that are seldom called": [(300, 5)] * 4,
    "eight that are seldom called": [(300, 5)] * 8,
    "a hot one and one seldom called": [(5, 5), (300, 5)],
    "two that are warm": [(20, 5), (20, 5)],
    "four that are warm": [(20, 5)] * 4,
    "one with long requests": [(300, 60), (300, 5)],
    "two that are hot": [(5, 5), (5, 5)],
}


@pytest.mark.parametrize("switch", [2.0, 10.0])
@pytest.mark.parametrize("name", SCENES)
def test_what_is_expected_is_near_to_what_happens(name, switch):
    rng = random.Random(7)
    days = [requests(rng, every, length) for every, length in SCENES[name]]
    outcomes = simulate(days, [switch] * len(days))
    sharers = [Sharer(seen(day), switch) for day in days]
    for at, outcome in enumerate(outcomes):
        others = sharers[:at] + sharers[at + 1 :]
        waited = sum(outcome.waits) / len(outcome.waits)
        expected = own_wait_seconds(others, sharers[at])
        # Within a factor of two and a half, or half a second.
        assert expected < 2.5 * waited + 0.5
        assert waited < 2.5 * expected + 0.5


def test_every_request_is_served_and_the_seats_take_turns():
    rng = random.Random(1)
    days = [requests(rng, 10, 5) for _ in range(3)]
    outcomes = simulate(days, [4.0] * 3)
    assert [len(outcome.waits) for outcome in outcomes] == [len(day) for day in days]
    assert all(outcome.wakes > 50 for outcome in outcomes)
    assert all(0 < len(outcome.calls) <= len(outcome.waits) for outcome in outcomes)
