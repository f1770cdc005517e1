"""More of the storms that find nothing: test_simulation.py has the first of them."""

from __future__ import annotations

import pytest

from tests.simulation.storm import run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("swept")]


@pytest.mark.parametrize("first", range(50, 200, 50))
@pytest.mark.filterwarnings("ignore")
def test_storms_find_nothing(first):
    outcomes = [run(seed) for seed in range(first, first + 50)]
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    assert sum(o.kills for o in outcomes) > 10


@pytest.mark.filterwarnings("ignore")
def test_storms_over_two_nodes_find_nothing():
    said: list[str] = []
    outcomes = [run(seed, "pair", said.append) for seed in range(160, 240)]
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    assert sum("Adopted" in line for line in said) > 10
    assert sum("has the claim on pod" in line for line in said) > 1
