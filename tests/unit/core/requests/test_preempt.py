"""What is done for a pod that waits for others' seats; over many worlds, what never happens."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from kybernate.core.plans.steps import Kind
from kybernate.core.reasons import Standing
from kybernate.core.requests import checkpoint
from kybernate.core.requests.checkpoint import Mode, Outcome, Target
from kybernate.core.requests.preempt import (
    SPARED_S,
    Act,
    Decision,
    Observed,
    Waiter,
    decide,
    made_name,
    orphans,
    save_seconds,
    victim_of,
    wake_name,
)
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.rebalance import NoPlan, Plan, PodSeen, Step
from kybernate.core.requests.turns import Limits
from kybernate.types import Tier

NOW = 1_767_225_700.0
WAITER = Waiter("w", "shop", "new", 10, NOW - 60)
GIB = 1 << 30


def step(name="a", kind=Kind.SUSPEND, node="n1"):
    return Step(kind, "lab", name, f"u-{name}", Target(node, "G0"), None, 0.0, GIB)


def plan(*steps):
    place = Step(Kind.PLACE, "shop", "new", "w", None, Target("n1", "G0"))
    return Plan("h", (*steps, place), 0, 0.0, "suspending makes room")


def request(name="a", reason=Reason.RUNNING, waiter="w", at=NOW, tier="object", node="n1"):
    ended = reason.standing is not Standing.RETRYABLE
    done = reason is Reason.EVICTED
    status = checkpoint.Status(
        pod_uid=f"u-{name}",
        node=node,
        began_at=at,
        ended_at=at if ended else 0.0,
        reason=reason,
        outcome=Outcome("", tier, 7) if done else None,
        owner="job",
    )
    return checkpoint.Request(
        f"c-{name}", "lab", made_name(waiter, f"u-{name}"), name, Mode.EVICT, Tier.OBJECT, "ctl",
        at, 600.0, None, status,
    )  # fmt: skip


THERE = {f"u-{name}": PodSeen("n1", "G0") for name in "abcdefgh"}


def decided(*made, pods=THERE, found=None, waiter=WAITER, now=NOW, most=5, others=()):
    seen = Observed(waiter, made, pods, found, others)
    return decide(seen, now, 5.0, Limits(2, most))


def acts(decision):
    return [(one.act, one.step.pod if one.step else one.request.pod) for one in decision.deeds]


def test_nobody_makes_room_before_the_pod_has_waited_and_the_scheduler_has_found_nothing():
    assert decided(waiter=replace(WAITER, since=None)) == Decision()
    early = decided(waiter=replace(WAITER, since=NOW - 3))
    assert (early.deeds, early.plan, early.again) == ((), False, 2.0)
    assert decided().plan
    assert acts(decided(found=NoPlan("no"))) == []


def test_each_victim_is_saved_then_evicted_and_then_waited_for():
    assert acts(decided(found=plan(step("a"), step("b")))) == [(Act.SAVE, "a"), (Act.SAVE, "b")]
    assert acts(decided(request(), found=plan(step()))) == [], "it is under way"
    done = request(reason=Reason.EVICTED)
    assert acts(decided(done)) == [(Act.EVICT, "a")]
    leaving = {**THERE, "u-a": PodSeen("n1", "G0", leaving=True)}
    ending = decided(done, pods=leaving)
    assert (acts(ending), ending.plan, ending.again) == ([], False, 2.0)
    gone = decided(done, pods={})
    assert gone.plan, "the pod finds the seat, or somebody else has to make room"


def test_who_is_to_be_killed_is_the_schedulers():
    assert acts(decided(found=plan(step(kind=Kind.DELETE)))) == []


def test_a_pod_that_could_not_be_saved_is_spared_for_a_while_and_then_tried_again():
    failed = request(reason=Reason.REFUSED)
    assert decided(failed).spared == {"u-a"}
    later = NOW + 300 + SPARED_S
    assert decided(failed, now=later - 1).spared == {"u-a"}
    assert acts(decided(failed, now=later)) == [(Act.REMOVE, "a")]


def test_a_pod_that_cannot_be_evicted_is_woken_and_spared():
    done = request(reason=Reason.EVICTED)
    given_up = decided(done, now=NOW + 300)
    assert (acts(given_up), given_up.spared) == ([(Act.WAKE, "a")], {"u-a"})


def test_a_state_that_is_not_in_the_store_lets_nobody_be_evicted():
    assert acts(decided(request(reason=Reason.EVICTED, tier="nvme"))) == []


def test_those_who_make_room_for_others_are_not_counted_on():
    theirs = request("b", waiter="x")
    assert decided(theirs).spared == {"u-b"}
    assert decided(request("b", Reason.REFUSED, waiter="x", at=NOW - 301)).spared == set()


@pytest.mark.parametrize(("most", "expected"), [(5, "ac"), (1, "a"), (0, "")])
def test_so_many_states_at_a_time_and_two_of_a_node(most, expected):
    theirs = request("h", waiter="x")
    steps = step("a"), step("b"), step("c", node="n2")
    found = decided(theirs, found=plan(*steps), most=most + 1)
    assert "".join(name for _, name in acts(found)) == expected


def test_states_that_are_put_away_for_drains_and_plans_count_too():
    steps = step("a"), step("b"), step("c", node="n2")
    drained = replace(request("h", node="n1"), name="evict-u-h-1")
    found = decided(others=(drained,), found=plan(*steps))
    assert "".join(name for _, name in acts(found)) == "ac"
    assert acts(decided(others=(drained,), found=plan(*steps), most=1)) == []


def test_a_gib_has_150_seconds():
    assert (save_seconds(0), save_seconds(2 * GIB), save_seconds(1 << 50)) == (120, 420, 3600)


def test_what_nobody_waits_for_any_more_is_taken_back():
    def back(*made, waiting=(), pods=THERE):
        return [(one.act, one.request.pod) for one in orphans(made, waiting, pods)]

    under_way, done = request(), request("b", Reason.EVICTED)
    assert back(under_way, done, waiting=["w"]) == []
    assert back(under_way) == [(Act.REMOVE, "a")]
    assert back(done) == [(Act.WAKE, "b"), (Act.REMOVE, "b")]
    assert back(done, pods={}) == [], "a successor continues from it"
    assert back(request("b", Reason.REFUSED)) == [(Act.REMOVE, "b")]


def test_a_pod_that_is_put_away_twice_for_the_same_one_is_woken_twice():
    first, second = request(reason=Reason.EVICTED), replace(request(), uid="c-again")
    assert first.name == second.name
    assert wake_name(first) != wake_name(second)


def test_a_name_is_of_one_waiter():
    assert victim_of("w", made_name("w", "u")) == "u"
    assert victim_of("w", made_name("w2", "u")) == ""


@pytest.mark.parametrize(("waited", "again"), [(10, 15), (400, 80), (9000, 300)])
def test_who_waits_for_long_is_planned_for_less_often(waited, again):
    waiter = replace(WAITER, since=NOW - waited)
    assert decided(waiter=waiter, found=NoPlan("no")).again == again
    assert decided(waiter=waiter, found=plan()).again == again


def test_others_make_room_the_later_the_more_often_it_was_in_vain():
    """The seat is kept for five minutes; then somebody else may have it again."""
    first, second = request("a", Reason.EVICTED), request("b", Reason.EVICTED, at=NOW + 200)
    assert decided(first, pods={}, now=NOW + 200).plan, "another seat of the same node is needed"
    once = [first, second]
    held = decided(*once, pods={}, now=NOW + 510)
    assert (held.plan, held.in_vain, held.again) == (False, 1, 290.0)
    assert decided(*once, pods={}, now=NOW + 800).plan
    twice = [*once, request("c", Reason.EVICTED, at=NOW + 800)]
    assert decided(*twice, pods={}, now=NOW + 1000).plan, "the room is kept"
    held = decided(*twice, pods={}, now=NOW + 1110)
    assert (held.in_vain, held.again) == (2, 890.0)
    often = [request("abcdefgh"[n % 8], Reason.EVICTED, at=NOW + n * 90_000) for n in range(30)]
    last = NOW + 29 * 90_000
    assert decided(*often, pods={}, now=last + 90_000).plan, "at least daily"


class World:
    """A node with one seat of each of eight groups; whoever looks may die between two acts."""

    def __init__(self, random):
        self.random, self.now = random, NOW
        self.made, self.pods, self.evicted, self.unsaved = {}, dict(THERE), [], 0
        self.bound = False

    def found(self, spared):
        there = [uid for uid, pod in self.pods.items() if not pod.leaving and uid not in spared]
        if len(self.pods) < len(THERE):
            return plan()
        return plan(step(min(there)[2:])) if there else NoPlan("nobody")

    def look(self):
        seen = Observed(WAITER, tuple(self.made.values()), dict(self.pods))
        first = decide(seen, self.now, 5.0, Limits())
        if first.plan:
            first = decide(replace(seen, found=self.found(first.spared)), self.now, 5.0, Limits())
        for deed in first.deeds:
            if self.random.random() < 0.3:
                return
            self.do(deed)

    def do(self, deed):
        if deed.act is Act.SAVE:
            name = made_name("w", deed.step.uid)
            if name not in self.made:
                new = request(deed.step.pod, at=self.now)
                self.made[name] = replace(new, name=name)
        elif deed.act is Act.EVICT:
            uid = deed.request.status.pod_uid
            self.unsaved += self.made[deed.request.name].status.reason is not Reason.EVICTED
            if self.random.random() < 0.8:
                self.evicted.append(uid)
                self.pods[uid] = replace(self.pods[uid], leaving=True)
        elif deed.act is Act.REMOVE:
            self.made.pop(deed.request.name, None)

    def turn(self):
        self.now += self.random.choice((1.0, 30.0, 400.0))
        for name, one in self.made.items():
            if not one.ended and self.random.random() < 0.5:
                reason = self.random.choice((Reason.EVICTED, Reason.EVICTED, Reason.REFUSED))
                ended = request(one.pod, reason, at=self.now)
                self.made[name] = replace(ended, name=name)
        for uid in [uid for uid, pod in self.pods.items() if pod.leaving]:
            if self.random.random() < 0.5:
                del self.pods[uid]


@pytest.mark.parametrize("seed", range(200))
def test_no_more_than_one_goes_for_a_pod_that_needs_one_seat_and_none_unsaved(seed):
    world = World(Random(seed))
    for _ in range(60):
        world.look()
        world.turn()
    assert len(set(world.evicted)) == 1
    assert world.unsaved == 0
