"""Which artifacts a TierPlacement keeps, and which copies are made, in any order of events."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kybernate.core.artifacts.listed import HeldCopy, Listed
from kybernate.core.policy.effective import Label, Relation
from kybernate.core.requests.asked import Copied
from kybernate.core.requests.checkpoint import Operation, Problem, Trouble
from kybernate.core.requests.placement import (
    AT_ONCE,
    CONFIRM_S,
    MOST_COPIES,
    OPERATION,
    Candidate,
    Copy,
    CopyState,
    OnNodes,
    Placement,
    PlacementReason,
    PlacementStatus,
    SeenPlacement,
    decide,
    unplaced,
)
from kybernate.core.seat.operations import Progress
from kybernate.types import Tier

NOW = 1_767_225_600.0
BIRCH = {"kyb.ai/model": "birch"}
H100 = {"pool": "h100"}
NODES = {"n1": H100, "n2": H100, "n3": {"pool": "l4"}}


def wanted(labels):
    return tuple(Label(name, Relation.IN, frozenset({value})) for name, value in labels.items())


def placement(**more):
    given = {
        "uid": "u-1",
        "namespace": "shop",
        "name": "birch",
        "selector": wanted(BIRCH),
        "newest": 10,
        "object": True,
        "nvme": OnNodes(wanted(H100)),
        "pinned_until": None,
        "generation": 1,
        "status": PlacementStatus(),
    }
    return Placement(**{**given, **more})


def artifact(number=1, *copies, labels=BIRCH):
    held = tuple(HeldCopy(tier, node, state, 7) for tier, node, state in copies)
    one = Listed(f"shop/birch@{number}", "birch", "u", "birch", 7, number, held)
    return Candidate(one, labels)


NVME_1 = ("nvme", "n1", "verified")
OBJECT = ("object", "", "verified")


class World:
    """Agents and a registry that do as they are asked."""

    def __init__(self, *artifacts, nodes=NODES, **more):
        self.now, self.nodes = NOW, nodes
        self.artifacts = {one.listed.artifact: one for one in artifacts}
        self.placement, self.operations = placement(**more), {}
        self.asked, self.cancelled, self.room = [], [], {}

    def look(self):
        names = {one.operation for one in self.placement.status.copies if one.operation}
        found = {name: self.operations.get(name) for name in names}
        there = list(self.artifacts.values())
        seen = SeenPlacement(self.placement, there, self.nodes, found, room=self.room)
        plan = decide(seen, self.now)
        for one in plan.begin:
            assert one.operation in names, "the status has it before its agent is asked"
            assert one.artifact in self.placement.status.artifacts
            self.begin(one)
        for one in plan.cancel:
            self.operations[one.operation] = Operation(Progress.CANCELLED, "it was cancelled")
        self.cancelled += plan.cancel
        self.placement = replace(self.placement, status=plan.status)
        return plan

    def begin(self, one):
        """As an agent does: one that is under way under another name is refused."""
        rivals = [other for other in self.asked if other.key == one.key and self.runs(other)]
        if not any(other.node == one.node for other in rivals):
            self.asked.append(one)
            self.operations[one.operation] = Operation(Progress.RUNNING, "it is copied")

    def runs(self, one):
        found = self.operations.get(one.operation)
        return isinstance(found, Operation) and found.state is Progress.RUNNING

    def ends(self, one, state=Progress.SUCCEEDED, why="done", *, told=True):
        self.operations[one.operation] = Operation(state, why)
        if state is Progress.SUCCEEDED and told:
            node = one.node if one.tier is Tier.NVME else ""
            before = self.artifacts[one.artifact]
            held = (*before.listed.copies, HeldCopy(one.tier.value, node, "verified", 7))
            after = before.listed._replace(copies=held)
            self.artifacts[one.artifact] = before._replace(listed=after)

    def settle(self, times=12):
        for _ in range(times):
            self.look()
            for one in self.asked:
                if self.runs(one):
                    self.ends(one)
            self.now += 1

    @property
    def status(self):
        return self.placement.status


def test_a_copy_that_never_ends_leaves_its_place_to_others():
    nodes = {f"n{number}": H100 for number in range(9)}
    w = World(artifact(1, NVME_1, OBJECT), nodes=nodes)
    w.look()
    w.look()
    assert len(w.asked) == AT_ONCE, "of all of them it is said that they run"
    first = list(w.asked)
    w.now += 3600 + 120
    w.look()
    assert not w.cancelled, "it may wait for other copies of its node for an hour"
    assert w.asked == first
    w.now += 1
    w.look()
    assert [one.node for one in w.cancelled] == [one.node for one in first]
    w.look()
    assert len({one.node for one in w.asked}) == 2 * AT_ONCE, "the others' turn"


def test_it_goes_into_the_store_and_from_there_to_nodes_that_match():
    w = World(artifact(1, NVME_1))
    w.settle()
    assert [(one.tier, one.node) for one in w.asked] == [(Tier.OBJECT, "n1"), (Tier.NVME, "n2")]
    assert w.status.reason is PlacementReason.PLACED
    assert (w.status.matched, w.status.placed, w.status.there) == (1, 1, 3)
    assert w.status.artifacts == ("shop/birch@1",)


def test_what_is_pinned_stands_in_the_status_before_anything_is_copied():
    w = World(artifact(1, NVME_1))
    plan = w.look()
    assert plan.begin == ()
    assert plan.again == 0.0
    assert plan.status.artifacts == ("shop/birch@1",)
    assert plan.status.reason is PlacementReason.COPYING


def test_the_newest_are_kept_and_an_older_one_is_let_go():
    w = World(artifact(1, NVME_1), artifact(2, NVME_1), newest=1, nvme=None)
    w.settle()
    assert w.status.artifacts == ("shop/birch@2",)
    assert w.status.matched == 2
    w.artifacts["shop/birch@3"] = artifact(3, NVME_1)
    w.look()
    assert w.status.artifacts == ("shop/birch@3",)


def test_others_labels_are_left_alone():
    w = World(artifact(1, NVME_1, labels={"kyb.ai/model": "oak"}))
    w.settle()
    assert w.asked == []
    assert w.status.reason is PlacementReason.NO_ARTIFACTS


def test_one_that_is_not_shown_any_more_stays_pinned_until_the_spec_changes():
    w = World(artifact(1, NVME_1, OBJECT), nvme=None)
    w.settle()
    w.artifacts["shop/birch@1"] = w.artifacts["shop/birch@1"]._replace(labels=None)
    w.look()
    assert w.status.artifacts == ("shop/birch@1",)
    w.placement = replace(w.placement, generation=2)
    w.look()
    assert w.status.artifacts == ()


def test_after_its_time_it_keeps_nothing_and_what_is_under_way_is_cancelled():
    w = World(artifact(1, NVME_1), pinned_until=NOW + 100)
    w.look()
    w.look()
    (running,) = w.asked
    w.now = NOW + 99.9
    assert w.look().again <= 0.1 + 1e-6
    w.now = NOW + 100
    plan = w.look()
    assert [one.operation for one in plan.cancel] == [running.operation]
    assert (w.status.artifacts, w.status.copies) == ((), ())
    assert w.status.reason is PlacementReason.ENDED


def test_a_number_of_nodes_is_kept_where_copies_are():
    nodes = {f"n{number}": H100 for number in range(20)}
    w = World(artifact(1, NVME_1), nodes=nodes, nvme=OnNodes(wanted(H100), 3))
    w.settle()
    chosen = {one.node for one in w.status.copies if one.tier is Tier.NVME}
    assert len(chosen) == 3
    assert "n1" in chosen, "where it lies already"
    for name in set(nodes) - chosen:
        w.nodes = {other: labels for other, labels in w.nodes.items() if other != name}
        w.settle(2)
        assert {one.node for one in w.status.copies if one.tier is Tier.NVME} == chosen
    gone = min(chosen - {"n1"})
    w.nodes = {name: H100 for name in nodes if name != gone}
    w.settle()
    after = {one.node for one in w.status.copies if one.tier is Tier.NVME}
    assert chosen - {gone} < after
    assert len(after) == 3


def test_artifacts_spread_over_nodes():
    nodes = {f"n{number}": H100 for number in range(10)}
    every = [artifact(number, OBJECT) for number in range(20)]
    w = World(*every, nodes=nodes, nvme=OnNodes(wanted(H100), 1), newest=20)
    w.settle(60)
    assert len({one.node for one in w.status.copies if one.tier is Tier.NVME}) > 4


def test_few_copies_are_made_at_a_time_and_one_on_a_node():
    nodes = {f"n{number}": H100 for number in range(30)}
    w = World(*(artifact(number, OBJECT) for number in range(3)), nodes=nodes)
    for _ in range(200):
        w.look()
        running = [o for o in w.asked if w.operations[o.operation].state is Progress.RUNNING]
        assert len(running) <= AT_ONCE
        assert len({one.node for one in running}) == len(running)
        if running:
            w.ends(running[0])
        w.now += 1
    assert w.status.reason is PlacementReason.PLACED
    assert len(w.asked) == 90


def test_there_are_no_more_copies_than_a_status_holds():
    nodes = {f"n{number}": H100 for number in range(MOST_COPIES)}
    w = World(*(artifact(number, OBJECT) for number in range(9)), nodes=nodes)
    w.look()
    assert len(w.status.copies) == MOST_COPIES


def test_a_failure_is_tried_again_later_each_time_under_another_name():
    w = World(artifact(1, NVME_1), nvme=None)
    pauses = []
    for _ in range(4):
        while not w.asked or w.operations[w.asked[-1].operation].state is not Progress.RUNNING:
            w.look()
            w.now += 0.5
        w.ends(w.asked[-1], Progress.FAILED, "the disk is full")
        failed_at = w.now
        w.look()
        assert w.status.reason is PlacementReason.COPY_FAILED
        assert "the disk is full" in w.status.message
        pauses.append(w.status.copies[0].not_before - failed_at)
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]
    assert len({one.operation for one in w.asked}) == 4


def test_an_agent_that_does_not_answer_is_asked_again_for_the_same():
    w = World(artifact(1, NVME_1), nvme=None)
    w.look()
    name = w.status.copies[0].operation
    w.operations[name] = Problem(Trouble.UNREACHABLE, "no route")
    for _ in range(3):
        plan = w.look()
        assert plan.begin == ()
    assert w.status.copies[0].operation == name
    assert "no route" in w.status.copies[0].message
    del w.operations[name]
    assert [one.operation for one in w.look().begin] == [name]


def test_an_agents_word_counts_until_the_registry_should_have_heard():
    w = World(artifact(1, OBJECT), nodes={"n2": H100})
    w.look()
    w.look()
    w.ends(w.asked[0], told=False)
    w.look()
    assert w.status.reason is PlacementReason.PLACED
    w.now += CONFIRM_S - 1
    w.look()
    assert w.status.reason is PlacementReason.PLACED
    w.now += 2
    w.look()
    assert w.status.reason is PlacementReason.COPY_FAILED


@pytest.mark.parametrize("answer", [None, Problem(Trouble.UNREACHABLE, "n1 doesn't answer")])
def test_agents_that_begin_nothing_hold_up_no_other_copy(answer):
    many = [artifact(number, NVME_1) for number in range(AT_ONCE + 1)]
    w = World(*many, nvme=None)
    w.begin = lambda one: w.operations.update({one.operation: answer})
    for _ in range(3):
        w.look()
    stuck = {one.artifact for one in w.placement.status.copies if one.operation}
    w.now += CONFIRM_S
    w.look()
    for one in w.placement.status.copies:
        assert (one.artifact in stuck) == (one.tries == 1)
    w.look()
    assert {one.artifact for one in w.placement.status.copies if one.operation} - stuck


def test_an_agent_that_refuses_is_quoted_at_once():
    w = World(artifact(1, NVME_1))
    w.look()
    (one,) = [one for one in w.placement.status.copies if one.operation]
    w.operations[one.operation] = Problem(Trouble.REFUSED, "it has no object store")
    w.look()
    assert w.placement.status.reason is PlacementReason.COPY_FAILED
    assert "it has no object store" in w.placement.status.message


def test_a_copy_that_had_to_go_is_made_again_under_another_name():
    """Where seats' states needed its room."""
    w = World(artifact(1, OBJECT), nodes={"n2": H100})
    w.settle()
    (first,) = w.asked
    w.artifacts["shop/birch@1"] = artifact(1, OBJECT)
    w.settle()
    second = w.asked[-1]
    assert second.operation != first.operation
    assert w.status.reason is PlacementReason.PLACED


@pytest.mark.parametrize(
    ("copies", "nodes", "said"),
    [
        ((("object", "", "pending"),), NODES, "no node whose agent is known"),
        ((NVME_1,), {"n3": {"pool": "l4"}}, "no node whose agent is known"),
    ],
)
def test_it_says_what_it_waits_for(copies, nodes, said):
    w = World(artifact(1, *copies), nodes=nodes)
    w.settle(3)
    assert w.status.reason is PlacementReason.WAITING
    assert said in w.status.message
    assert w.asked == []


def test_a_node_takes_nothing_before_the_store_has_it():
    w = World(artifact(1, NVME_1), object=False)
    w.settle(3)
    assert w.status.reason is PlacementReason.WAITING
    assert "once the object store has a copy" in w.status.message
    assert [(one.node, one.state) for one in w.status.copies] == [
        ("n1", CopyState.THERE),
        ("n2", CopyState.WAITING),
    ]


def test_no_node_of_the_labels_is_told():
    w = World(artifact(1, OBJECT), nodes={"n3": {"pool": "l4"}})
    w.settle(2)
    assert w.status.reason is PlacementReason.NO_NODES


def test_how_long_it_takes_is_told_while_bytes_come():
    w = World(artifact(1, NVME_1), nvme=None)
    w.look()
    w.look()
    (one,) = w.asked
    running = Operation(Progress.RUNNING, "it is copied", None, Copied(25, 100))
    w.operations[one.operation] = running
    w.now = one.began_at + 10
    w.look()
    assert w.status.progress(w.now) == (25, 100, w.now + 30)


def test_operations_that_no_status_names_are_found():
    names = [OPERATION + "1", OPERATION + "2", "ckpt-3", "by-hand"]
    assert list(unplaced(names, {OPERATION + "2"})) == [OPERATION + "1"]


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_all_is_placed_in_the_end(seed):
    """Nodes come and go, copies fail and vanish, agents forget; nothing is asked for that isn't
    pinned, nothing of which the status doesn't tell."""
    rng = random.Random(seed)
    w = World(*(artifact(n, NVME_1) for n in range(3)), nvme=OnNodes(wanted(H100), 2), newest=2)
    for _ in range(60):
        w.look()
        running = [one for one in w.asked if w.runs(one)]
        match rng.randrange(7):
            case 0 if running:
                w.ends(rng.choice(running), Progress.FAILED, "no")
            case 1 if running:
                w.operations.pop(rng.choice(running).operation, None)
            case 2 if running:
                w.ends(rng.choice(running))
            case 3:
                name = f"n{rng.randrange(1, 5)}"
                w.nodes = {**NODES, name: H100} if rng.random() < 0.5 else {"n1": H100}
            case 4:
                name = rng.choice(sorted(w.artifacts))
                w.artifacts[name] = artifact(int(name[-1]), NVME_1)
            case 5:
                number = len(w.artifacts)
                w.artifacts[f"shop/birch@{number}"] = artifact(number, NVME_1)
            case _:
                w.now += rng.random() * 100
        w.now += 1
    w.nodes = {**NODES, "n4": H100}
    for _ in range(80):
        w.settle(1)
        w.now += 60
    assert w.status.reason is PlacementReason.PLACED
    assert w.status.placed == len(w.status.artifacts) == 2


def test_whatever_agents_tell_a_status_has_no_number_that_none_can_have():
    """The API server would take no more status of it."""
    most = (1 << 63) - 1
    rows = [
        Copy(f"shop/birch@{n}", Tier.NVME, "n1", CopyState.COPYING, done=most, total=most)
        for n in range(3)
    ]
    done, total, _ = PlacementStatus(copies=tuple(rows)).progress(NOW)
    assert (done, total) == (most, most)


def test_what_nvme_alone_has_is_pinned_only_where_pins_have_room():
    w = World(artifact(1, NVME_1), artifact(2, NVME_1), nvme=None)
    w.room = {"n1": 10}
    plan = w.look()
    assert w.status.artifacts == ("shop/birch@2",), "the newest first"
    assert w.status.reason is PlacementReason.NO_ROOM
    assert "shop/birch@1: pins have 3 bytes left on n1, and it takes 7" in w.status.message
    assert plan.takes == {"shop/birch@2": {"n1": 7}}
    w.settle()
    assert w.status.artifacts == ("shop/birch@1", "shop/birch@2"), "the store has the other by now"
    assert w.status.reason is PlacementReason.PLACED
    assert w.look().takes == {}


def test_without_any_room_the_reason_is_not_that_there_are_no_artifacts():
    w = World(artifact(1, NVME_1), nvme=None)
    w.room = {"n1": 0}
    w.look()
    assert w.status.reason is PlacementReason.NO_ROOM
    assert w.status.matched == 1
    assert not w.status.copies, "nobody may copy what no status names"
