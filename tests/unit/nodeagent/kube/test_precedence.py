"""What counts for a seat: its annotation, the schedule, the policy, and then what its agent has.

Each setting that all four can say is held, from the objects of the API server on, against the
value that the agent's decisions go by.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kybernate import keys
from kybernate.api.policies import read_policy
from kybernate.core.policy.effective import SPOKEN_OF, effective, in_order
from kybernate.types import SeatState, Tier
from nodeagent.kube.pods import PodCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.api.pods import Pod
    from kybernate.core.policy.effective import Effective
    from kybernate.core.swap.swapview import SeatView
    from kybernate.core.tiers.tiering import Parked
    from tests.unit.nodeagent.conftest import Rig

    Json = dict[str, Any]

STEPS = ("annotation", "schedule", "policy", "setting")
NOW = 1_700_000_000.0
ALWAYS = {"cron": "* * * * *", "duration": "2m"}
TIERS = {Tier.NVME: 1 << 40, Tier.OBJECT: 1 << 40}


class Setting(NamedTuple):
    """`own`: as the pod's annotation has it; `scheduled`, `always`: as a policy's fields have it;
    `otherwise`: of the agent, or of the pod. `counts`: what the decisions go by, and `values` what
    that is for each of the four."""

    annotation: str
    own: str
    scheduled: Json
    always: Json
    otherwise: Json
    counts: Callable[[Rig], object]
    values: tuple[object, object, object, object]


def view(rig: Rig) -> SeatView:
    """The seat as swaps are decided."""
    (found,) = rig.node.swap_view().seats
    return found


def parked(rig: Rig) -> Parked:
    """The seat as tiers are decided."""
    (found,) = rig.loop.tiers.standing().awake
    return found


def idle_in(tier: Tier) -> Callable[[Rig], object]:
    """Seconds without use after which it leaves the tier."""
    return lambda rig: replace(parked(rig), tier=tier).idle_limit(rig.loop.tiers.policy)


def weight(rig: Rig) -> object:
    """Of a seat that takes turns."""
    turn = view(rig).turn
    return turn and turn.weight


def calls(rig: Rig) -> object:
    """The fewest calls per hour for which it is brought into RAM ahead of need."""
    one, policy = parked(rig), rig.loop.tiers.policy
    return next(n for n in range(100) if replace(one, calls=float(n)).is_likely(policy))


def turn(**said: object) -> Json:
    """A part of a policy."""
    return {"turn": said}


def idle(tier: str, *said: str) -> tuple[str, Json, Json]:
    """What an annotation, a schedule and a policy say of the same tier."""
    own, scheduled, always = said
    return f"{tier}={own}", {"idle": {tier: scheduled}}, {"idle": {tier: always}}


SETTINGS = {
    "turn.mode": Setting(
        *(keys.TURN, "on-request", turn(mode="always"), turn(mode="on-request"), {}),
        lambda rig: view(rig).turn is not None,
        (False, True, False, True),
    ),
    "turn.weight": Setting(
        *(keys.TURN, "always,weight=2", turn(weight=3), turn(weight=4), {}),
        weight,
        (2.0, 3.0, 4.0, 1.0),
    ),
    "turn.minResidency": Setting(
        *(keys.MIN_RESIDENCY, "2s", turn(minResidency="3s"), turn(minResidency="4s")),
        {"min_residency_s": 5.0},
        lambda rig: rig.loop.policy.residency(view(rig)),
        (2.0, 3.0, 4.0, 5.0),
    ),
    "turn.maxWait": Setting(
        *(keys.MAX_WAIT, "4m", turn(maxWait="3m"), turn(maxWait="2m")),
        {"max_wait_s": 60.0},
        lambda rig: rig.loop.policy.longest_wait(view(rig)),
        (240.0, 180.0, 120.0, 60.0),
    ),
    "turn.priority": Setting(
        *(keys.PRIORITY, "20", turn(priority=30), turn(priority=40), {"priority": 50}),
        lambda rig: view(rig).priority,
        (20, 30, 40, 50),
    ),
    "idle.vram": Setting(
        *(keys.IDLE, *idle("vram", "2s", "3s", "4s"), {}),
        lambda rig: view(rig).idle_limit,
        (2.0, 3.0, 4.0, None),
    ),
    "idle.ram": Setting(
        *(keys.IDLE, *idle("ram", "2s", "3s", "4s"), {"ram_idle_s": 5.0}),
        idle_in(Tier.RAM),
        (2.0, 3.0, 4.0, 5.0),
    ),
    "idle.nvme": Setting(
        *(keys.IDLE, *idle("nvme", "2s", "3s", "4s"), {"nvme_idle_s": 5.0}),
        idle_in(Tier.NVME),
        (2.0, 3.0, 4.0, 5.0),
    ),
    "prefetch": Setting(
        *(keys.PREFETCH, "2", {"prefetch": "3"}, {"prefetch": "4"}, {"prefetch_calls": 5.0}),
        calls,
        (2, 3, 4, 5),
    ),
}
"""By its name in a policy."""


def judge(spec: Json) -> Callable[[Pod], Effective]:
    """The agent's, where there is this policy, or none."""
    meta = {"namespace": "default", "name": "p", "uid": "p"}
    policies = in_order([read_policy({"metadata": meta, "spec": spec})] if spec else [])
    return lambda pod: effective(pod.labels, pod.notes, policies, NOW)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", SETTINGS)
async def test_the_first_that_says_it_counts(rig: type[Rig], name: str, step: str) -> None:
    one, at = SETTINGS[name], STEPS.index(step)
    given = dict(one.otherwise)
    of_pod = given.pop("priority", 0)
    r = rig(tiers=TIERS, **given)
    r.begin()
    uid = await r.seat("a")
    await r.until(uid, SeatState.ACTIVE)
    schedule = {"schedule": [{**ALWAYS, **one.scheduled}]} if at <= STEPS.index("schedule") else {}
    always = one.always if at <= STEPS.index("policy") else {}
    spec = {"selector": {}, **always, **schedule} if always or schedule else {}
    notes = {one.annotation: one.own} if at == 0 else {}
    meta = {"namespace": "default", "name": "a", "uid": uid, "annotations": notes}
    limits = {keys.seat_resource(1): "1"}
    container = {"name": "main", "resources": {"limits": limits}}
    pod = {"metadata": meta, "spec": {"containers": [container], "priority": of_pod}}
    PodCache(r.loop.pod_changed, r.loop.pod_gone, judge(spec)).event("ADDED", pod)
    assert one.counts(r) == one.values[at]


def test_no_setting_is_left_out() -> None:
    """Of what policies may speak of, all but what no schedule and no agent says."""
    without = {keys.ON_PREEMPT, keys.RESTORE_ELSE}
    assert {one.annotation for one in SETTINGS.values()} == {*SPOKEN_OF} - without
