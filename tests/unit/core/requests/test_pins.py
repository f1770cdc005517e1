"""Pins leave parks their room on NVMe, whatever is made, pinned and let go, in any order."""

from __future__ import annotations

import random

import pytest

from kybernate.core.artifacts.listed import HeldCopy, Listed
from kybernate.core.requests.pins import choose, takes


def artifact(number, *copies, size=10):
    held = tuple(HeldCopy(tier, node, state, size) for tier, node, state in copies)
    return Listed(f"shop/birch@{number:04}", "birch", "u", "birch", size, number, held)


def on(node, state="verified"):
    return "nvme", node, state


STORED = ("object", "", "verified")


def names(found):
    return [int(one.artifact.rpartition("@")[2]) for one in found]


def test_what_has_no_room_is_not_pinned_and_the_sentence_can_be_written():
    made = [artifact(number, on("n1")) for number in (1, 2, 3)]
    found = choose(made, 10, (), (), {"n1": 25})
    assert names(found.pinned) == [3, 2]
    (lack,) = found.lacks
    assert (lack.artifact, lack.node, lack.need, lack.room) == ("shop/birch@0001", "n1", 10, 5)


def test_what_is_pinned_stays_so_though_others_have_taken_the_room():
    made = [artifact(number, on("n1")) for number in (1, 2)]
    found = choose(made, 10, [made[0].artifact], (), {"n1": -30})
    assert names(found.pinned) == [1]
    assert found.lacks[0].room == 0


def test_an_older_one_makes_room_for_a_newer_unless_that_is_too_large():
    old, new = artifact(1, on("n1")), artifact(2, on("n1"))
    assert names(choose([old, new], 1, [old.artifact], (), {"n1": 10}).pinned) == [2]
    large = artifact(2, on("n1"), size=11)
    found = choose([old, large], 1, [old.artifact], (), {"n1": 10})
    assert names(found.pinned) == [1], "what there is is not let go for nothing"
    assert found.lacks[0].artifact == large.artifact


@pytest.mark.parametrize(
    "copies",
    [
        [on("n1"), STORED],
        [STORED],
        [on("n9")],
        [on("n1", "missing")],
    ],
    ids=["in the store, too", "in the store", "of an unknown node", "lost"],
)
def test_what_takes_no_room_that_is_known_is_always_pinned(copies):
    assert names(choose([artifact(1, *copies)], 10, (), (), {"n1": 0}).pinned) == [1]


@pytest.mark.parametrize("copies", [[on("n1", "pending")], [on("n1"), ("object", "", "pending")]])
def test_an_unverified_copy_takes_room_on_nvme_and_frees_none_by_the_store(copies):
    assert not choose([artifact(1, *copies)], 10, (), (), {"n1": 0}).pinned


def test_what_another_one_pins_takes_nothing_more():
    one = artifact(1, on("n1"))
    assert names(choose([one], 10, (), [one.artifact], {"n1": 0}).pinned) == [1]


@pytest.mark.parametrize("seed", range(60))
def test_pins_of_all_never_take_more_of_a_node_than_they_may(seed):
    """Several TierPlacements in turn, as one writer decides them."""
    rng, most = random.Random(seed), {"n1": 60, "n2": 30}
    made, pinned = {}, dict.fromkeys("abc", ())
    for number in range(150):
        event = rng.random()
        if event < 0.5:
            where = rng.sample([on("n1"), on("n2")], rng.choice((1, 1, 2)))
            made[number] = artifact(number, *where, size=rng.randint(1, 40))
        elif made and event < 0.6:
            gone = rng.choice(sorted(made))
            if not any(made[gone] in those for those in pinned.values()):
                del made[gone]
        elif event < 0.65:
            pinned[rng.choice("abc")] = ()
        name = rng.choice("abc")
        mine = [one for one in made.values() if rng.random() < 0.9 or one in pinned[name]]
        others = takes(one for other in pinned if other != name for one in pinned[other])
        room = dict(most)
        for nodes in others.values():
            for node, size in nodes.items():
                room[node] -= size
        before = [one.artifact for one in pinned[name]]
        found = choose(mine, rng.choice((1, 3, 100)), before, others.keys(), room)
        pinned[name] = found.pinned
        held = takes(one for those in pinned.values() for one in those)
        for node, limit in most.items():
            assert sum(nodes.get(node, 0) for nodes in held.values()) <= limit
        assert not {lack.artifact for lack in found.lacks} & {one.artifact for one in found.pinned}
