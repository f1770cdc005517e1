"""What a RebalanceRequest needs next; and, over many worlds, what never happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from kybernate.core.plans.steps import Kind
from kybernate.core.reasons import Standing
from kybernate.core.requests import checkpoint
from kybernate.core.requests.checkpoint import Mode, Outcome, Target
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.rebalance import (
    SAVE_S,
    Act,
    Budget,
    NoPlan,
    Observed,
    Plan,
    PodSeen,
    RebalanceReason,
    Request,
    Stage,
    Status,
    Step,
    current,
    decide,
    made_name,
    orphans,
)
from kybernate.types import Tier

NOW = 1_767_225_700.0
G0, G1 = Target("n1", "G0"), Target("n1", "G1")

UNDER_WAY = frozenset({Stage.SAVING, Stage.LEAVING, Stage.ARRIVING})


def step(name="a", kind=Kind.MOVE, source=G0, target=G1, **more):
    source = source if kind is Kind.MOVE else None
    return Step(kind, "shop", name, f"uid-{name}", source, target, 10.0, 1 << 30, **more)


def plan(*steps, name="h1"):
    moves = [one for one in steps if one.kind is Kind.MOVE]
    return Plan(name, steps, len(moves), 10.0 * len(moves), "1 move makes room.")


def request(status=None, **more):
    values = {
        "pod": "a",
        "target": G1,
        "empty": "",
        "budget": Budget(5),
        "approved": "",
        "by": "ann",
        "created_at": NOW - 20,
        "deadline_s": 600.0,
        "keep_s": None,
        **more,
    }
    return Request("r1", "shop", "once", status=status or Status(), **values)


def made(one, state=Reason.EVICTED, *, uid="", at=NOW, successor=""):
    ended = state.standing is not Standing.RETRYABLE
    status = checkpoint.Status(
        pod_uid=uid or one.uid,
        node="n1",
        operation="ckpt-x",
        began_at=at,
        ended_at=at if ended else 0.0,
        reason=state,
        message=f"it is {state}",
        outcome=Outcome("", "object", 7) if state is Reason.EVICTED else None,
        owner="rs",
    )
    return checkpoint.Request(
        "c1", "shop", f"rbal-r1-{one.uid}", one.pod, Mode.EVICT, Tier.OBJECT, "", at, 600.0, None,
        status, successor,
    )  # fmt: skip


def begun(*steps):
    return request(Status(plan=plan(*steps), began_at=NOW - 10), approved="h1")


def test_a_plan_is_asked_for_shown_and_waits_for_its_approval():
    asked = decide(Observed(request()), NOW)
    assert asked.act is Act.PLAN
    shown = decide(Observed(request(), found=plan(step())), NOW)
    assert shown.status.reason is RebalanceReason.AWAITING_APPROVAL
    assert shown.status.plan == plan(step())
    assert "spec.approvedPlan: h1" in shown.status.message
    again = decide(Observed(request(shown.status, approved="h1"), found=plan(step())), NOW)
    assert (again.status.began_at, again.status.reason) == (NOW, RebalanceReason.MOVING)
    assert again.status.ready_at == NOW + 10


def test_a_policys_plan_waits_for_nobody_but_keeps_to_its_budget():
    one = request(policy="u-p", budget=Budget(1, 10.0))
    found = decide(Observed(one, found=plan(step())), NOW)
    assert (found.status.began_at, found.status.reason) == (NOW, RebalanceReason.MOVING)
    for more in (plan(step(), step("b")), replace(plan(step()), seconds=11.0)):
        found = decide(Observed(one, found=more), NOW)
        assert (found.status.began_at, found.status.reason) == (0.0, RebalanceReason.NO_PLAN)


def test_another_plan_than_the_approved_one_is_not_carried_out():
    one = request(Status(plan=plan(step())), approved="h1")
    found = decide(Observed(one, found=plan(step(target=G0), name="h2")), NOW)
    assert (found.status.began_at, found.act) == (0.0, None)
    assert found.status.reason is RebalanceReason.PLAN_CHANGED
    assert found.status.plan.hash == "h2"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (NoPlan("no room"), RebalanceReason.NO_PLAN),
        (NoPlan("away", for_now=True), RebalanceReason.PLANNING),
        (plan(), RebalanceReason.NOTHING_TO_MOVE),
        (plan(step(kind=Kind.PLACE)), RebalanceReason.NOTHING_TO_MOVE),
        (plan(step(), step("b", Kind.SUSPEND)), RebalanceReason.RING),
        (plan(*(step(str(n)) for n in range(6))), RebalanceReason.NO_PLAN),
    ],
)
def test_what_can_not_be_carried_out_never_begins(found, reason):
    decision = decide(Observed(request(approved="h1"), found=found), NOW)
    assert decision.status.reason is reason
    assert not decision.status.began_at
    assert bool(decision.status.ended_at) is (reason.standing is not Standing.RETRYABLE)


def test_what_its_policy_wants_no_more_ends_before_it_begins_and_not_after():
    why = "the policy is gone"
    found = decide(Observed(request(policy="p"), found=plan(step()), withdrawn=why), NOW)
    assert (found.status.reason, found.status.message) == (RebalanceReason.WITHDRAWN, why)
    assert (found.status.ended_at, found.act) == (NOW, None)
    under_way = Observed(begun(step()), pods=AT_HOME, withdrawn=why)
    assert decide(under_way, NOW).status.plan.steps[0].stage is Stage.SAVING


def test_a_step_is_written_down_before_each_act():
    one, pods = step(), {"uid-a": PodSeen("n1", "G0", ready=True)}
    seen = Observed(begun(one), pods=pods)
    saving = decide(seen, NOW)
    assert (saving.act, saving.status.plan.steps[0].stage) == (None, Stage.SAVING)
    seen = replace(seen, request=replace(seen.request, status=saving.status))
    assert decide(seen, NOW).act is Act.SAVE
    seen = replace(seen, checkpoint=made(one, Reason.RUNNING))
    waits = decide(seen, NOW)
    assert (waits.act, waits.status.message) == (None, "pod shop/a: it is Running")
    seen = replace(seen, checkpoint=made(one))
    leaving = decide(seen, NOW)
    assert (leaving.act, leaving.status.plan.steps[0].stage) == (None, Stage.LEAVING)
    seen = replace(seen, request=replace(seen.request, status=leaving.status))
    assert decide(seen, NOW).act is Act.EVICT
    held = decide(replace(seen, held="a budget"), NOW)
    assert (held.act, held.status.message) == (None, "pod shop/a is evicted: a budget")
    later = decide(replace(seen, held="a budget"), NOW + 60)
    assert held.again < 0.5 < later.again, "at first its node is yet to tell where its state is"
    seen = replace(seen, pods={"uid-a": PodSeen("n1", "G0", leaving=True)})
    arriving = decide(seen, NOW)
    seen = replace(seen, request=replace(seen.request, status=arriving.status))
    assert decide(seen, NOW).status.reason is RebalanceReason.MOVING
    pods = {"uid-b": PodSeen("n1", "G1", ready=True)}
    seen = replace(seen, checkpoint=made(one, successor="uid-b"), pods=pods)
    done = decide(seen, NOW)
    assert done.status.plan.steps[0].stage is Stage.DONE
    assert done.status.plan.steps[0].successor == "uid-b"
    over = decide(replace(seen, request=replace(seen.request, status=done.status)), NOW)
    assert over.status.reason is RebalanceReason.MOVED
    assert over.status.ended_at == NOW
    assert over.status.message == "1 of 1 moves are done"


@pytest.mark.parametrize(
    ("stage", "seen", "reason", "act"),
    [
        (Stage.SAVING, {"checkpoint": Reason.REFUSED}, RebalanceReason.STEP_FAILED, None),
        (Stage.SAVING, {"held": "there is one"}, RebalanceReason.STEP_FAILED, None),
        (Stage.SAVING, {"pods": {}}, RebalanceReason.STEP_FAILED, None),
        (Stage.LEAVING, {"late": True, "held": "kept"}, RebalanceReason.STEP_FAILED, Act.WAKE),
        (Stage.LEAVING, {}, RebalanceReason.STEP_FAILED, Act.WAKE),
        (Stage.ARRIVING, {}, RebalanceReason.STEP_FAILED, None),
        (Stage.ARRIVING, {"late": True}, RebalanceReason.STEP_FAILED, None),
        (Stage.ARRIVING, {"at": G0}, RebalanceReason.DISPLACED, None),
    ],
)
def test_a_step_that_comes_to_nothing_ends_all(stage, seen, reason, act):
    one = step(stage=stage)
    state = seen.get("checkpoint", Reason.EVICTED)
    has = "checkpoint" in seen or "late" in seen or "at" in seen
    pods = seen.get("pods", {"uid-a": PodSeen("n1", "G0")})
    if "at" in seen:
        pods = {"uid-b": PodSeen(seen["at"].node, seen["at"].group)}
    found = made(one, state, at=NOW - (2000 if "late" in seen else 5), successor="uid-b")
    observed = Observed(
        *(begun(one, step("z")), None, found if has else None, pods), held=seen.get("held", "")
    )
    decision = decide(observed, NOW)
    assert (decision.status.reason, decision.act) == (reason, act)
    assert decision.status.ended_at == NOW


def test_a_pod_that_is_elsewhere_has_the_rest_planned_and_approved_again():
    seen = Observed(begun(step()), pods={"uid-a": PodSeen("n2", "G0")})
    found = decide(seen, NOW)
    assert (found.status.plan, found.status.began_at) == (None, 0.0)
    assert found.status.reason is RebalanceReason.PLAN_CHANGED


def test_an_approved_plan_whose_pod_nobody_sees_is_made_again_seldom():
    one, now, plans = request(approved="h1", created_at=NOW, deadline_s=86_400.0), NOW, []
    while not one.ended:
        decision = decide(Observed(one), now)
        if decision.act is Act.PLAN:
            plans.append(now)
            decision = decide(Observed(one, found=plan(step())), now)
        if decision.status.plan is None and decision.status.planned_at == now:
            # Whoever looks again sooner, as for the event of its own status, waits as well.
            early = decide(Observed(replace(one, status=decision.status)), now)
            assert early.act is None
            assert early.again > 4.9 or one.deadline_s < now - NOW + 5.0
        one = replace(one, status=decision.status)
        now += decision.again or 1.0
        assert len(plans) <= 86_400 / 30 + 20
    assert min(after - before for before, after in pairwise(plans)) >= 4.9
    assert one.status.reason is RebalanceReason.DEADLINE_EXCEEDED


def test_without_an_approval_a_request_ends_at_its_deadline_from_its_creation():
    waits = request(Status(plan=plan(step()), planned_at=NOW), created_at=NOW)
    assert decide(Observed(waits, pods=AT_HOME), NOW + 590).again == 10.0
    over = decide(Observed(waits, pods=AT_HOME), NOW + 600)
    assert over.status.reason is RebalanceReason.DEADLINE_EXCEEDED
    assert "600 s of its creation" in over.status.message
    assert over.status.ended_at == NOW + 600


def test_a_plan_that_changes_after_the_start_has_the_deadline_of_one_that_has_not_begun():
    elsewhere = {"uid-a": PodSeen("n2", "G0")}
    changed = decide(Observed(begun(step()), pods=elsewhere), NOW + 570)
    assert changed.status.reason is RebalanceReason.PLAN_CHANGED
    one = replace(begun(step()), status=changed.status)
    assert decide(Observed(one, found=plan(step(), name="h2")), NOW + 579).again == 1.0
    over = decide(Observed(one, found=plan(step(), name="h2")), NOW + 580)
    assert over.status.reason is RebalanceReason.DEADLINE_EXCEEDED


AT_HOME = {"uid-a": PodSeen("n1", "G0", ready=True)}


def test_a_plan_that_stands_is_made_again_for_its_approval_alone():
    stands = request(Status(plan=plan(step()), planned_at=NOW - 500), deadline_s=86_400.0)
    assert decide(Observed(stands, pods=AT_HOME), NOW).act is None
    assert decide(Observed(replace(stands, approved="h1"), pods=AT_HOME), NOW).act is Act.PLAN
    assert decide(Observed(replace(stands, approved="h0"), pods=AT_HOME), NOW).act is None


@pytest.mark.parametrize(
    ("steps", "pods"),
    [
        ([step()], {}),
        ([step()], {"uid-a": PodSeen("n1", "G1")}),
        ([step()], {"uid-a": PodSeen("n1", "G0", leaving=True)}),
        ([step(), step("w", Kind.PLACE)], {**AT_HOME, "uid-w": PodSeen("n1", "G0")}),
    ],
)
def test_a_plan_is_made_again_once_its_pods_are_elsewhere_but_not_at_once(steps, pods):
    stands = request(Status(plan=plan(*steps), planned_at=NOW - 20), created_at=NOW - 60)
    waits = decide(Observed(stands, pods=pods), NOW)
    assert (waits.act, waits.again) == (None, 10.0)
    assert decide(Observed(stands, pods=pods), NOW + 10).act is Act.PLAN


def test_those_beyond_the_limit_of_a_namespace_wait_for_older_ones():
    queued = decide(Observed(request(), ahead=2), NOW, 2)
    assert (queued.status.reason, queued.act) == (RebalanceReason.QUEUED, None)
    assert queued.again == 30.0
    assert decide(Observed(request(), ahead=1), NOW, 2).act is Act.PLAN


@pytest.mark.parametrize("seed", range(200))
def test_whoever_touches_what_nobody_approves_has_few_plans_made_and_it_ends(seed):
    """The cluster changes all the time, the plan with it, and somebody looks all the time."""
    chance, now, plans = Random(seed), NOW, []
    one = request(created_at=NOW, deadline_s=86_400.0)
    while not one.ended:
        at = chance.choice([G0, G1])
        seen = Observed(one, pods={"uid-a": PodSeen(at.node, at.group)})
        decision = decide(seen, now)
        if decision.act is Act.PLAN:
            plans.append(now)
            found = plan(step(source=chance.choice([G0, G1])), name=f"h{chance.randint(1, 9)}")
            decision = decide(replace(seen, found=found), now)
        one = replace(one, status=decision.status)
        assert not one.status.began_at
        now += chance.choice([1.0, 5.0, 60.0, 600.0])
    gaps = [after - before for before, after in pairwise(plans)]
    assert min(gaps, default=30.0) >= 30.0
    assert len(plans) <= 20 + 86_400 / 600
    assert one.status.ended_at <= NOW + 86_400 + 600


def test_after_the_deadline_no_step_begins():
    seen = Observed(begun(step()), pods={"uid-a": PodSeen("n1", "G0")})
    found = decide(seen, NOW + 600)
    assert found.status.reason is RebalanceReason.DEADLINE_EXCEEDED


def test_what_a_request_that_is_gone_has_left_is_taken_back():
    parked, running = made(step("a")), made(step("b"), Reason.RUNNING)
    pods = {"uid-a": PodSeen("n1", "G0"), "uid-b": PodSeen("n1", "G0")}
    assert list(orphans([parked, running], {"r1"}, pods)) == []
    found = list(orphans([parked, running], set(), pods))
    assert found == [(parked, Act.WAKE), (running, Act.REMOVE)]
    assert list(orphans([parked], set(), {})) == [], "its successor continues"


class World:
    """A cluster that does what it is told, or something else; acts may be lost or repeated."""

    def __init__(self, chance, count):
        self.chance = chance
        names = [chr(97 + n) for n in range(count)]
        self.pods = {f"uid-{name}": PodSeen("n1", "G0", ready=True) for name in names}
        self.pods["uid-w"] = PodSeen()
        moves = [step(name) for name in names]
        self.steps = [*moves, step("w", Kind.PLACE)]
        self.made, self.evicted, self.saved = {}, [], []
        self.request = request(Status(plan=plan(*self.steps)), approved="h1")
        self.now = NOW

    def look(self):
        at = current(self.request)
        one = self.made.get(made_name(self.request, at)) if at else None
        seen = Observed(self.request, plan(*self.steps), one, dict(self.pods))
        decision = decide(seen, self.now)
        if decision.act is Act.SAVE:
            self.saved.append(at.uid)
            name = made_name(self.request, at)
            self.made.setdefault(name, made(at, Reason.RUNNING, at=self.now))
        if decision.act is Act.EVICT and self.chance.random() < 0.5:
            self.evicted.append(at.uid)
            self.pods[at.uid] = PodSeen("n1", "G0", leaving=True)
        # A crash loses what was decided after the act.
        if self.chance.random() < 0.75:
            self.request = replace(self.request, status=decision.status)

    def turn(self):
        self.now += self.chance.choice([1.0, 5.0, 60.0])
        for name, one in self.made.items():
            uid = name.removeprefix("rbal-r1-")
            of = next(a for a in self.steps if a.uid == uid)
            if not one.ended and self.chance.random() < 0.5:
                end = self.chance.choice([Reason.EVICTED] * 9 + [Reason.FAILED])
                self.made[name] = made(of, end, at=self.now)
            elif uid in self.evicted and not one.successor and self.chance.random() < 0.5:
                self.pods.pop(uid, None)
                new = f"next-{uid}"
                self.made[name] = replace(one, successor=new)
                where = self.chance.choice([G1] * 9 + [G0])
                self.pods[new] = PodSeen(where.node, where.group, ready=True)
        if self.chance.random() < 0.5:
            self.pods["uid-w"] = PodSeen("n1", "G0", ready=True)


@pytest.mark.parametrize("seed", range(300))
def test_one_step_at_a_time_each_pod_once_within_the_budget_and_it_ends(seed):
    chance = Random(seed)
    count = chance.randint(1, 5)
    world = World(chance, count)
    for _ in range(400):
        world.look()
        stages = [one.stage for one in (world.request.status.plan or plan()).steps]
        assert sum(one in UNDER_WAY for one in stages) <= 1
        if world.request.ended:
            break
        world.turn()
    assert world.request.ended
    assert len(world.evicted) == len(set(world.evicted)) <= world.request.budget.moves
    assert set(world.evicted) <= {one.uid for one in world.steps if one.kind is Kind.MOVE}
    assert len(set(world.saved)) - len(world.evicted) <= 1
    if world.request.status.reason is RebalanceReason.MOVED:
        assert len(world.evicted) == count


def test_a_node_that_is_emptied_within_a_deadline_gets_no_plan_that_takes_longer():
    asked = request(pod="", target=None, empty="n1", deadline_s=30.0)
    slow = Plan("h", (step(),), 1, 31.0, "1 pod moves.")
    found = decide(Observed(asked, slow), NOW + 1).status
    assert found.reason is RebalanceReason.NO_PLAN
    assert "longer than spec.deadlineSeconds (30 s)" in found.message
    quick = decide(Observed(asked, replace(slow, seconds=30.0)), NOW + 1).status
    assert quick.reason is RebalanceReason.AWAITING_APPROVAL
    elsewhere = replace(asked, empty="", pod="a")
    assert decide(Observed(elsewhere, slow), NOW + 1).status.reason is not RebalanceReason.NO_PLAN


def test_what_is_put_away_of_a_node_that_is_emptied_has_what_is_left_of_its_deadline():
    begun = request(pod="", target=None, empty="n1", deadline_s=30.0, status=Status(began_at=NOW))
    assert begun.save_s(NOW + 10) == 20.0
    assert begun.save_s(NOW + 99) == 1.0
    assert replace(begun, empty="", pod="a").save_s(NOW + 10) == SAVE_S
