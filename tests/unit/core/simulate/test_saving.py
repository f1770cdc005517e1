"""Workloads share GPUs where all of them stay in time under the product's decision, else not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.cli.planning.plan import chances
from kybernate.core.simulate import ours, saving
from kybernate.core.simulate.workloads import HOURS, Workload
from kybernate.core.simulate.world import Costs
from kybernate.errors import ConfigError

COSTS = Costs()


def save(workloads, costs, seed=0):
    return saving.save(workloads, costs, chances(seed))


def workload(name, hours=range(HOURS), rate=60.0, **more):
    by_hour = tuple(rate if hour in hours else 0.0 for hour in range(HOURS))
    said = {"gpus": 1, "gb": 60.0, "p99": 10.0, "seconds": 10.0, "where": "w.csv, line 2"} | more
    return Workload(name=name, namespace="x", by_hour=by_hour, **said)


def together(found):
    return {frozenset(one.name for one in place.workloads) for place in found.places}


DAY, NIGHT = range(8, 18), range(4)


def test_those_that_are_busy_at_other_hours_share():
    found = save([workload("day", DAY), workload("night", NIGHT)], COSTS)
    assert together(found) == {frozenset({"day", "night"})}
    assert (found.today, found.gpus, found.conflicts) == (2, 1, ())
    assert found.p99 <= 10
    assert found.parked_gib == pytest.approx(120 / 1.073741824)


def test_those_that_are_busy_at_the_same_hours_must_not_and_it_says_why():
    found = save([workload("a", DAY), workload("b", DAY, p99=4.0)], COSTS)
    assert (found.today, found.gpus, found.p99) == (2, 2, 0.0)
    (conflict,) = found.conflicts
    assert [one.name for one in conflict.workloads] == ["a", "b"]
    assert "at 8:00 they are busy for 15% and 15%" in conflict.why
    assert "they don't fit beside each other (72 + 72 GB)" in conflict.why
    assert "x/b is due within 4 s, and a swap takes 6.0 s" in conflict.why


def test_those_that_can_wait_share_at_the_same_hours():
    some = [workload("a", DAY, p99=120.0), workload("b", DAY, p99=120.0)]
    assert save(some, COSTS).gpus == 1
    assert save(some, replace(COSTS, wake=0.2, park=0.2)).gpus == 2


def test_those_that_fit_beside_each_other_share_whatever_their_limits():
    some = [workload(name, gb=8.0, p99=0.1) for name in "abc"]
    found = save(some, COSTS)
    assert (found.gpus, found.p99) == (1, 0.0)


def test_no_hour_is_fuller_than_an_hour():
    found = save([workload(name, DAY, rate=360.0, gb=8.0) for name in "ab"], COSTS)
    assert found.gpus == 2
    assert "busy for 63% and 63%" in found.conflicts[0].why


def test_who_is_always_busy_shares_with_nobody_and_is_not_played():
    found = save([workload("a", rate=1e6), workload("b", NIGHT)], COSTS)
    assert found.gpus == 2
    assert [one.name for one in found.conflicts[0].workloads] == ["a"]
    assert "busy for 95% or more" in found.conflicts[0].why


def test_who_needs_several_gpus_shares_with_those_alone_that_need_as_many():
    some = [workload("a", DAY, gpus=2), workload("b", NIGHT, gpus=2), workload("c", NIGHT)]
    found = save(some, COSTS)
    assert together(found) == {frozenset("ab"), frozenset("c")}
    assert (found.today, found.gpus) == (5, 3)


def test_what_no_gpu_holds_and_what_takes_too_long_is_refused_by_row_and_column():
    with pytest.raises(ConfigError, match=r"w\.csv, line 2: vram_gib"):
        save([workload("a", gb=81.0)], COSTS)
    with pytest.raises(ConfigError, match=r"w\.csv, line 2: requests_per_hour"):
        save([workload("a", rate=1e5, seconds=0.01)], COSTS)


@pytest.mark.slow
def test_everybody_is_in_time_and_a_seed_gives_the_same_plan():
    some = [workload(f"w{n}", range(n, n + 9), gb=20.0 + 5 * n, p99=4.0 + 3 * n) for n in range(9)]
    found = save(some, COSTS, 3)
    assert found == save(some, COSTS, 3)
    assert sorted(one.name for place in found.places for one in place.workloads) == [
        one.name for one in some
    ]
    for place in found.places:
        for number, one in enumerate(place.workloads):
            assert place.p99(number) <= one.p99
    assert found.gpus < found.today


def test_the_decision_is_the_products(monkeypatch):
    def nobody(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(ours, "decided", nobody)
    with pytest.raises(ZeroDivisionError):
        save([workload("a", DAY), workload("b", NIGHT)], COSTS)
