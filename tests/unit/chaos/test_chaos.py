"""The storms: a seed replays, they find what is broken, and a few hundred of them find nothing."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.chaos.plan import draw_plan
from bench.chaos.storm import Storm, run
from kybernate.testing.machine import Elsewhere, Machine

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def swept():
    """Killed agents' tasks complain when they are collected: here, where it is ignored."""
    yield
    gc.collect()


@pytest.mark.parametrize("first", range(0, 200, 50))
@pytest.mark.filterwarnings("ignore")
def test_storms_find_nothing(first):
    outcomes = [run(seed) for seed in range(first, first + 50)]
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    assert sum(o.kills for o in outcomes) > 10


@pytest.mark.parametrize("first", range(0, 160, 40))
@pytest.mark.filterwarnings("ignore")
def test_storms_over_two_nodes_find_nothing(first):
    said: list[str] = []
    outcomes = [run(seed, "pair", said.append) for seed in range(first, first + 40)]
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    assert sum("Adopted" in line for line in said) > 5
    assert sum("has one successor" in line for line in said) > 0


@pytest.mark.filterwarnings("ignore")
def test_storms_with_moves_run_nothing_twice_and_lose_nothing():
    said: list[str] = []
    outcomes = [run(seed, "moves", said.append) for seed in range(40)]
    found = " ".join(sentence for one in outcomes for sentence in one.violations)
    for breach in ("runs beside", "back in time", "lost its last state", "too many at once"):
        assert breach not in found
    assert sum(": succeeded:" in line for line in said) > 3


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        # The disk was full when the successor had been told to go on.
        ("moves", 70),
        ("moves", 106),
        # A pod was deleted that had been brought a state and not yet gone on from it.
        ("moves", 17),
        ("moves", 141),
        # A pod was deleted when its state was just sealed.
        ("moves", 258),
        # A successor was written down again before it had run.
        ("pair", 12915),
        # The agent was killed between forgetting what a pod had left and noting that it is to go.
        ("pair", 12955),
        # A restored tree ran for a moment with TCP held back, and was killed.
        ("pair", 13871),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_seeds_that_found_something_find_it_no_more(kind, seed):
    assert run(seed, kind).violations == ()


@pytest.mark.parametrize("heard", [True, False])
def test_what_ran_unheard_may_be_lost_and_nothing_else(heard):
    elsewhere = Elsewhere()
    machine = Machine({}, "n1", elsewhere)
    elsewhere.thawed("n1", "tree", 1, heard=heard)
    elsewhere.thawed("n1", "tree", 1, heard=True)
    assert any("back in time" in breach for breach in machine.breaches) is heard


@pytest.mark.filterwarnings("ignore")
def test_kills_of_the_agent_alone_lose_nothing():
    outcomes = [run(seed, "kills") for seed in range(60)]
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    assert sum(o.kills for o in outcomes) > 30


@pytest.mark.parametrize("kind", ["storm", "pair"])
@pytest.mark.filterwarnings("ignore")
def test_a_seed_replays_step_by_step(kind):
    def trace(seed):
        said: list[str] = []
        run(seed, kind, said.append)
        return said

    assert trace(7) == trace(7)
    assert len(trace(7)) > 10


@pytest.mark.filterwarnings("ignore")
def test_a_machine_with_less_memory_than_the_plugin_says_is_found_out():
    found = []
    for seed in range(10):
        storm = Storm((draw_plan(seed),), None)
        machine = storm.lives[0].machine
        machine.memory = dict.fromkeys(machine.memory, 1 << 30)
        found += storm.run().violations
    assert any("holds" in sentence for sentence in found)


def test_the_bench_ends_with_one_line_of_json():
    done = subprocess.run(
        [sys.executable, "-m", "bench.chaos", "--schedules", "20", "--jobs", "2", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    line = json.loads(done.stdout.splitlines()[-1])
    assert (line["schedules"], line["violations"], line["mode"]) == (20, 0, "storm+pair")
