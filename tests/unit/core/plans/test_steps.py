"""Steps as who carries them out sees them."""

from __future__ import annotations

from dataclasses import replace

from kybernate.core.plans.preemption import Holder, plan
from kybernate.core.plans.steps import Kind, Step, document, plan_id, sentence
from kybernate.types import GroupName, NodeName, PodUid
from tests.unit.core.plans.done import is_done
from tests.unit.core.plans.test_preemption import POLICY, node, pending, ref

N1, G0, G1 = NodeName("n1"), GroupName("G0"), GroupName("G1")


def test_a_pod_that_its_owner_wants_killed_is_deleted_and_nothing_saved() -> None:
    view = node(("a", "G0", 40), ("b", "G1", 40))
    holders = {PodUid("u-a"): Holder(0, expendable=True), PodUid("u-b"): Holder(50)}
    away, place = plan(pending(), [view], holders, POLICY).steps
    assert (away.kind, away.id, away.size, away.source) == (
        Kind.DELETE,
        "delete/u-a",
        0,
        (N1, G0),
    )
    assert "priority 10 waits, and its own is 0" in sentence(away)
    assert (place.kind, place.pod, place.target) == (Kind.PLACE, ref("new"), (N1, G0))
    assert place.size > 0


def test_a_plan_without_a_way_has_no_steps() -> None:
    view = node(("a", "G0", 40), ("b", "G1", 40))
    assert plan(pending(0), [view], {}, POLICY).steps == ()


def test_a_step_is_done_once_the_ledger_shows_it() -> None:
    view = node(("a", "G0", 40))
    move = Step(Kind.MOVE, ref("a"), (N1, G0), (N1, G1))
    assert not is_done(move, {N1: view})
    there = node(("b", "G1", 40))
    assert not is_done(move, {N1: there})
    assert is_done(move, {N1: there}, {PodUid("u-a"): PodUid("u-b")})
    assert is_done(replace(move, pod=ref("b")), {N1: there})
    away = Step(Kind.SUSPEND, ref("a"), (N1, G0), None)
    assert not is_done(away, {N1: view})
    assert is_done(away, {N1: there})
    assert is_done(away, {})


def test_an_id_is_of_what_is_done_and_not_of_what_it_costs() -> None:
    step = Step(Kind.MOVE, ref("a"), (N1, G0), (N1, G1), seconds=3.0, why="x")
    assert plan_id([step]) == plan_id([replace(step, seconds=4.0, why="y")])
    assert plan_id([step]) != plan_id([replace(step, target=(N1, G0))])
    assert document(step)["id"] == step.id == "move/u-a"
