"""The storms: a seed replays, they find what is broken, and a hundred of them find nothing; of
test_more_storms.py a commit has a slice."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kybernate.errors import DeadlineError
from kybernate.types import PodUid, Tier
from nodeagent.app.recover import recover
from tests.kit.machine import (
    App,
    Elsewhere,
    FakeDumper,
    FakeFreezer,
    FakeProcs,
    FakeVault,
    Machine,
)
from tests.simulation.life import BEGIN, Killed
from tests.simulation.plan import WEATHER_CLEARS, draw_pair, draw_plan
from tests.simulation.storm import Storm, run
from tests.simulation.watch import Watch

pytestmark = pytest.mark.usefixtures("swept")

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.filterwarnings("ignore")
def test_storms_find_nothing():
    outcomes = [run(seed) for seed in range(50)]
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    assert sum(o.kills for o in outcomes) > 10


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.filterwarnings("ignore")
def test_storms_over_two_nodes_find_nothing():
    said: list[str] = []
    outcomes = [run(seed, "pair", said.append) for seed in range(80, 160)]
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    assert sum("Adopted" in line for line in said) > 10
    assert sum("has the claim on pod" in line for line in said) > 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_who_is_deleted_before_it_continues_hands_its_claim_to_the_next():
    storms = [Storm(draw_pair(seed, "again"), None) for seed in range(60)]
    found = {storm.lives[0].plan.seed: storm.run().violations for storm in storms}
    assert {seed: one for seed, one in found.items() if one} == {}
    lines = [storm.lives[0].elsewhere.pods.values() for storm in storms]
    assert sum(one.ended for pods in lines for one in pods) > 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_storms_with_moves_run_nothing_twice_and_lose_nothing():
    said: list[str] = []
    outcomes = [run(seed, "moves", said.append) for seed in range(40)]
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    assert sum(": succeeded:" in line for line in said) > 3


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        # A seat had moved; what its workload began later was on the GPU of its start, also parked.
        ("storm", 389),
        ("storm", 1447),
        # That GPU was lost, and found again: the machine had left the process there.
        ("storm", 1018197),
        # A container ended while its memory came in lazily, and its folder stayed.
        ("storm", 2000724),
        ("storm", 2001205),
        # The disk was full when the successor had been told to go on.
        ("moves", 70),
        ("moves", 106),
        # A pod was deleted that had been brought a state and not yet gone on from it.
        ("moves", 17),
        ("moves", 141),
        # A pod was deleted when its state was just sealed.
        ("moves", 258),
        # Two moves were asked for, of which one was refused.
        ("moves", 20391),
        # A seat was called for, and let stay, while its successor was told to go on.
        ("moves", 40504),
        # The record that a move had failed was lost, and it was made anew.
        ("moves", 60338),
        # What had been sent was dropped where it came, and was in the object store.
        ("moves", 81298),
        # A state came for a pod that was gone, while a call to the registry held it.
        ("moves", 30295),
        # A container ended when its state was sealed, and its agent was killed just then.
        ("moves", 20246),
        # It was asked to end when its state was noted, and ran on for a moment.
        ("moves", 20352),
        # A move was asked for while its seat woke.
        ("moves", 20365),
        # A container ended when its state was with its successor, which then never went on.
        ("moves", 2318),
        # The agent was killed when its successor's node had kept a state; the tree here ran on, its
        # pod ended, and another successor there went on from that state.
        ("moves", 18843),
        ("moves", 21622),
        # The agent was killed when a container had ended whose state was just sealed.
        ("moves", 4520),
        # What had been sent for a successor was found by that in the object store.
        ("moves", 8677),
        # A successor was written down again before it had run.
        ("pair", 12915),
        # The agent was killed between forgetting what a pod had left and noting that it is to go.
        ("pair", 12955),
        # A restored tree ran for a moment with TCP held back, and was killed.
        ("pair", 13871),
        # A container ended when its sealed state could not be noted, since the disk was full.
        ("pair", 6841),
        # A state whose successor had gone on could not be dropped at once.
        ("pair", 10940),
        # What a container left that ended was dropped after the next one had been saved, too.
        ("pair", 10143),
        # A pod ended when its state had just been sealed, which could not be dropped at once.
        ("pair", 15714),
        # A successor's container ended while it woke, and it went on from there once more.
        ("pair", 12558),
        # A container ended just when its state was to be copied to the object store.
        ("pair", 70456),
        # Half of a restored tree could not be ended at once.
        ("pair", 12523),
        # The agent was killed between writing a seat down again and noting that the state that it
        # was restored from is to go.
        ("storm", 412232),
        # A journal was lost, and the next agent killed when it had made the seat anew: what is
        # saved of it is people's.
        ("storm", 1705),
        # The weather cleared while no agent was up on the other node.
        ("pair", 244578),
        # A move was refused since the disk was full; that was lost, and the next agent made it.
        ("moves", 100024),
        ("moves", 29148),  # a slow swap was paid off for longer than the storm had patience
        # Room in RAM that was made for a park was filled by a restore, again and again.
        ("storm", 400588),
        ("storm", 402877),
        # A journal was lost while a tree read its memory from what was fetched for it.
        ("storm", 501350),
        # The line that told of a start was lost, and another seat woke before kyb-init said hello.
        ("storm", 522041),
        # The line that told of a wake was lost, and another seat woke beside it.
        ("storm", 3000462),
        # A record that can't be true was forgotten, and another seat woke before it was asked.
        ("storm", 3074067),
        # A journal was lost, and the next agent killed before it had made all seats anew: trees
        # read their memory from folders that no record named.
        ("storm", 3010450),
        ("storm", 3038331),
        # A driver refused to move a seat, which woke on its old GPU since it could not be frozen.
        ("storm", 991367),
        # What had left RAM since the last look left no room for a larger one, for ever.
        ("storm", 7001452),
        # The line that told of a restore was lost, and the next agent let half of its tree run.
        ("storm", 7003165),
        # One that may be on any GPU waited below RAM for room that only its last GPU would need.
        ("storm", 7017209),
        # Who takes turns left RAM for the park of an idle one, though its other place needed none.
        ("storm", 7003207),
        # What began while the driver refused to move its tree was looked for on the new GPU alone.
        ("storm", 9012267),
        # Three records could not all be true; the one that was on its way was doubted alone.
        ("storm", 5022081),
        # What a park that was put off left to the guard was held against the agent.
        ("storm", 7007633),
        # It refused a seat that came from another node, whose GPUs that kept for ever.
        ("pair", 30),
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


async def _parked(machine, uid):
    """A container of this pod whose tree is ended, and the name of its state."""
    machine.apps[uid] = App(("GPU-0",), 1 << 30, delay=0.0)
    machine.start_container(uid)
    init = machine.inits[uid]
    tree = FakeProcs(machine).child_of(init)
    handle = FakeFreezer(machine).place(tree)
    machine.gates[uid] = None
    await FakeFreezer(machine).freeze(handle, 1)
    dumper, vault, images = (
        FakeDumper(machine),
        FakeVault(machine),
        await FakeVault(machine).begin(uid),
    )
    await dumper.dump(init, handle, images, 1)
    artifact = await vault.seal(images, {"namespace": "default", "pod": uid}, 1)
    await dumper.end(init, handle, 1)
    return artifact


async def test_the_last_state_of_a_container_is_missed_and_what_one_before_it_left_is_not():
    machine, uid = Machine({"GPU-0": 80 << 30}), PodUid("u1")
    before = await _parked(machine, uid)
    machine.end_container(uid)
    last = await _parked(machine, uid)
    await FakeVault(machine).drop(before, Tier.NVME, forget="why")
    assert machine.breaches == []
    await FakeVault(machine).drop(last, Tier.NVME, forget="why")
    assert machine.breaches == ["u1 lost its last state: why"]


@pytest.mark.parametrize("alive", [True, False])
async def test_a_state_is_not_missed_while_a_successors_tree_stands_with_it(alive):
    machine, uid = Machine({"GPU-0": 80 << 30}), PodUid("u1")
    last = await _parked(machine, uid)
    snapshot = machine.vault[last].snapshot
    machine.apps[PodUid("u2")] = App(("GPU-0",), 1 << 30, delay=0.0)
    machine.start_container(PodUid("u2"))
    tree = FakeProcs(machine).child_of(machine.inits[PodUid("u2")])
    handle = FakeFreezer(machine).place(tree)
    machine.elsewhere.lines[machine.name, handle] = snapshot.line
    machine.ran[handle] = snapshot.ran
    machine.procs[tree].alive = alive
    await FakeVault(machine).drop(last, Tier.NVME, forget="why")
    assert machine.breaches == ([] if alive else ["u1 lost its last state: why"])


@pytest.mark.parametrize("saved", [True, False])
async def test_an_end_that_takes_two_tries_asks_for_a_saved_state_where_a_tree_stands(saved):
    machine, uid = Machine({"GPU-0": 80 << 30}), PodUid("u1")
    artifact = await _parked(machine, uid)
    init, handle = machine.inits[uid], machine.vault[artifact].snapshot.handle
    machine.vault.clear()
    if not saved:
        del machine.dumps[init]
    machine.faults.add("end-hangs")
    with pytest.raises(DeadlineError):
        await FakeDumper(machine).end(init, handle, 1)
    await FakeDumper(machine).end(init, handle, 1)
    assert bool(machine.breaches) is not saved


@pytest.mark.slow
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


@pytest.mark.filterwarnings("ignore")
def test_an_agent_that_never_comes_up_is_found_out(monkeypatch):
    async def on_one_node(agent):
        if agent.node.settings.node == "n2":
            await asyncio.get_running_loop().create_future()
        return await recover(agent)

    monkeypatch.setattr("tests.simulation.life.recover", on_one_node)
    found = run(7, "pair").violations
    assert any("n2 does not come to rest: no agent is up" in one for one in found)


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_judged_before_the_weather_has_cleared_on_both_nodes(monkeypatch):
    def die():
        raise Killed

    plans = draw_pair(7)
    for plan in plans:
        plan.pods, plan.events, plan.between, plan.faults = [], [], [], {"nvml": 0.1}
    storm, judged = Storm(plans, None), []
    weather = [life.machine.rates for life in storm.lives]
    monkeypatch.setattr(Watch, "look_around", lambda _: judged.append([*map(dict, weather)]))
    storm.lives[1].at(BEGIN + WEATHER_CLEARS - 0.001, die)
    assert storm.run().violations == ()
    assert storm.lives[1].kills == 1
    assert judged == [[{}, {}]] * 2


@pytest.mark.filterwarnings("ignore")
def test_a_state_that_is_never_dropped_is_found_out():
    storm = Storm(draw_pair(10936), None)
    for life in storm.lives:
        life.machine.fault = lambda name: name == "drop-fails"
    assert any("does not come to rest: drop/" in one for one in storm.run().violations)


@pytest.mark.filterwarnings("ignore")
def test_a_schedule_is_played_as_it_is_whatever_was_played_before():
    outcomes = []
    for before in (1, 2, 3):
        random.seed(before)
        storm = Storm(draw_pair(10940), None)
        for life in storm.lives:
            life.machine.fault = lambda name: name == "drop-fails"
        outcomes.append(storm.run())
    assert outcomes == [outcomes[0]] * 3


def test_the_bench_ends_with_one_line_of_json():
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--schedules", "20", "--jobs", "2", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    line = json.loads(done.stdout.splitlines()[-1])
    assert (line["schedules"], line["violations"]) == (20, 0)
    assert line["mode"] == "storm+pair+again+moves"
