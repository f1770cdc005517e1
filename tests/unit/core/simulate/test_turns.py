"""Tenants whose models always want their GPU get of it by their weights, as namespaces do."""

from __future__ import annotations

import pytest

from kybernate.core.simulate import ours
from kybernate.core.simulate.ours import fixed
from kybernate.core.simulate.outcome import simulate
from kybernate.core.simulate.trace import Trace, read_tenants
from kybernate.core.simulate.world import Costs
from kybernate.errors import ConfigError

DAY = 86_400.0
SWAP = 2 * 70 / 20


def trace(tenants, *requests, sizes=None):
    """Of each tenant a model that takes turns, and one without a tenant, which is asked."""
    count = len(tenants)
    asked = [*requests, DAY]
    return Trace(
        asked,
        [count] * len(asked),
        [1.0] * len(asked),
        [f"m{n}" for n in range(count + 1)],
        sizes or [70.0] * (count + 1),
        [*tenants, ""],
        frozenset(range(count)),
    )


def had(played, shares, gpus=1):
    return simulate(played, gpus, Costs(), lambda w: fixed(w, shares=shares)).gpu_seconds


@pytest.mark.parametrize("weight", [1.0, 2.0, 3.0])
def test_gpu_seconds_are_as_the_weights_say(weight):
    found = had(trace(["a", "b"]), {"a": weight})
    assert found["a"] / found["b"] == pytest.approx(weight, rel=0.01)
    assert sum(found.values()) > 0.94 * DAY  # swaps take no more than a twentieth


def test_a_tenant_with_two_models_gets_no_more_for_that():
    found = had(trace(["a", "a", "b"]), {"a": 2.0})
    assert found["a"] / found["b"] == pytest.approx(2.0, rel=0.01)


def test_requests_come_before_turns_and_leave_the_shares_as_they_are():
    played = trace(["a", "b"], *(600.0 * n for n in range(1, 144)))
    outcome = simulate(played, 1, Costs(), lambda w: fixed(w, shares={"a": 3.0}))
    found = outcome.gpu_seconds
    assert outcome.wait_max < 2 * SWAP  # a swap that has begun ends first
    assert found["a"] / found["b"] == pytest.approx(3.0, rel=0.01)
    assert sum(found.values()) < 0.95 * DAY


def test_those_beside_whom_there_is_room_wait_for_nobody():
    found = had(trace(["a", "b"], sizes=[30.0, 30.0, 8.0]), {"a": 9.0})
    assert found["a"] == pytest.approx(found["b"], rel=0.01)


def test_whose_turn_it_is_says_the_products_book(monkeypatch):
    def nobody(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(ours.Book, "look", nobody)
    with pytest.raises(ZeroDivisionError):
        had(trace(["a", "b"]), {})


def test_a_file_without_tenants_has_none_and_a_turn_that_is_none_is_named():
    assert read_tenants(["model,gb", "a,1"], "m.csv") == ([""], frozenset())
    rows = ["model,gb,tenant,turn", "a,1,x,always", "b,1,y,"]
    assert read_tenants(rows, "m.csv") == (["x", "y"], frozenset({0}))
    with pytest.raises(ConfigError, match="line 2: turn: 'now' is none"):
        read_tenants(["model,gb,turn", "a,1,now"], "m.csv")
