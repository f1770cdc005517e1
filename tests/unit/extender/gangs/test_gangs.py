"""Gangs in the extender: plans are held, written, lifted, honoured, and given back."""

from __future__ import annotations

import copy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from extender.bind.consulted import Consulted
from extender.gangs.gangs import MARGIN_S, Gangs
from extender.gangs.planner import BUDGET_S, LONGEST_AVOID_S, REMIND_S, REST_S, GangPlanner, Means
from extender.gangs.rendezvous import LASTS, Rendezvous
from extender.http.wire import BindArgs
from extender.state.snapshot import Snapshot
from kybernate import keys
from kybernate.core.gangs.gang import MOST_MEMBERS
from kybernate.core.ledger.ledger import Claim
from kybernate.core.placement.verdicts import Fits
from kybernate.errors import ConflictError, NotFoundError, RetryableError
from kybernate.runtime.lead import Open
from kybernate.types import GroupName, NodeName, PodRef, PodUid
from tests.unit.extender.objects import ONE, gpu_node, pod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from extender.bind.binder import Binder
    from extender.state.objects import SeatPod


HOLD_S = 30.0
REF = PodRef("default", "a", PodUid("uid-a"))
N1, N2 = NodeName("n1"), NodeName("n2")


class Closed(Open):
    def check(self) -> None:
        raise RetryableError("this replica does not lead")


class Stage:
    """Pods as the API server keeps them, and one extender that watches them."""

    def __init__(self, *nodes: str) -> None:
        self.now = 1_000_000_000.0
        self.pods: dict[str, dict[str, Any]] = {}
        self.told: list[tuple[str, str, str]] = []
        self.nudges = 0
        self.failing: list[Exception] = []
        self.version = 10
        self.nodes = nodes
        self.start()

    def start(self, fence: Any = None) -> None:
        """A new extender, which knows nothing but what it lists."""
        self.snapshot = Snapshot(lambda: self.now)
        self.meeting = Rendezvous(lambda: self.now, wait=0.0, most=0)
        self.gangs = Gangs(self.snapshot, self.meeting, lambda: self.now)
        self.planner = GangPlanner(
            self.gangs,
            Means(
                *(self.snapshot, self, fence or Open(), self.meeting),
                *(lambda: self.now, lambda: self.now, self._tell, self._nudge, HOLD_S),
            ),
        )
        for item in self.pods.values():
            self.see("ADDED", item)
        for node in self.nodes:
            self.snapshot.node_event("ADDED", gpu_node(node))
        assert self.gangs.not_ready() is None

    def see(self, kind: str, item: dict[str, Any]) -> None:
        self.snapshot.pod_event(kind, copy.deepcopy(item))
        self.gangs.pod_event(kind, copy.deepcopy(item))

    def add(self, name: str, size: object = 2, gang: str = "g", **notes: str) -> None:
        found = {keys.GANG: gang, keys.GANG_SIZE: str(size), **notes}
        self.pods[name] = pod(name, notes=found)
        self.pods[name]["spec"]["schedulingGates"] = [{"name": keys.GANG_GATE}]
        self.see("ADDED", self.pods[name])

    def remove(self, name: str) -> None:
        self.see("DELETED", self.pods.pop(name))

    def bind(self, name: str) -> None:
        seat = self.seat(name)
        self.change(name, node=seat[0], group=seat[1])

    def change(self, name: str, node: str, group: str) -> None:
        self.version += 1
        item = self.pods[name]
        item["metadata"]["resourceVersion"] = str(self.version)
        item["spec"]["nodeName"] = node
        item["metadata"]["annotations"][keys.ASSIGNED_GROUP] = group
        self.see("MODIFIED", item)

    def patch(self, ref: PodRef, body: dict[str, Any], kind: str) -> dict[str, Any]:
        if self.failing:
            error = self.failing.pop()
            if error.args:
                raise error
        item = self.pods.get(ref.name)
        if item is None:
            raise NotFoundError(f"pod {ref}")
        assert body["metadata"].pop("uid") == item["metadata"]["uid"]
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        for key, value in body["metadata"].get("annotations", {}).items():
            item["metadata"]["annotations"][key] = value
            if value is None:
                del item["metadata"]["annotations"][key]
        for gate in body.get("spec", {}).get("schedulingGates", ()):
            assert (kind, gate["$patch"]) == ("strategic", "delete")
            gates = item["spec"]["schedulingGates"]
            item["spec"]["schedulingGates"] = [g for g in gates if g["name"] != gate["name"]]
        return copy.deepcopy(item)

    def _tell(self, ref: PodRef, reason: str, sentence: str) -> None:
        self.told.append((ref.name, reason, sentence))

    def _nudge(self) -> None:
        self.nudges += 1

    def ticks(self, count: int = 3) -> None:
        for _ in range(count):
            self.now += 2 * REST_S
            self.planner.tick()

    def gated(self) -> list[str]:
        return [name for name, item in self.pods.items() if item["spec"]["schedulingGates"]]

    def seat(self, name: str) -> tuple[NodeName, GroupName] | None:
        claim = self.snapshot.claim(PodUid(f"uid-{name}"))
        return None if claim is None else (claim.node, claim.group)

    def filter(self, name: str, *nodes: NodeName) -> Fits:
        return self.gangs.narrow(self.pods[name], Fits(list(nodes), {}, {}))

    def admit(self, name: str, node: NodeName = N1) -> GroupName | None:
        known = self.snapshot.pod(PodUid(f"uid-{name}"))
        assert known is not None
        return self.gangs.admit(known, node)


@pytest.fixture
def stage() -> Stage:
    return Stage("n1")


def test_gates_are_lifted_together_once_all_pods_have_a_seat(stage: Stage) -> None:
    stage.add("a")
    stage.ticks()
    assert (stage.gated(), stage.seat("a")) == (["a"], None)
    assert stage.told == [
        ("a", "GangWaiting", "gang g starts as a whole: 1 of its 2 pods exist (a)")
    ]
    stage.add("b")
    stage.ticks(1)
    assert stage.gated() == ["a", "b"]
    assert {stage.seat("a"), stage.seat("b")} == {("n1", "G0"), ("n1", "G1")}
    stage.ticks(1)
    assert stage.gated() == []
    assert sorted(stage.told)[1:] == [
        ("a", "GangWaiting", "gang g starts as a whole: 1 of its 2 pods exist (a)"),
        ("b", "GangPlanned", "All pods of gang g have a seat; this one's is of G1 on n1"),
    ] or stage.told[1:] == [
        ("a", "GangPlanned", "All pods of gang g have a seat; this one's is of G0 on n1"),
        ("b", "GangPlanned", "All pods of gang g have a seat; this one's is of G1 on n1"),
    ]


def test_gangs_of_the_same_name_in_other_namespaces_are_others(stage: Stage) -> None:
    stage.add("a")
    other = pod("b", notes={keys.GANG: "g", keys.GANG_SIZE: "2"})
    other["metadata"]["namespace"] = "elsewhere"
    stage.see("ADDED", other)
    stage.ticks()
    assert stage.seat("a") is None


def test_nobody_else_gets_a_seat_that_a_gang_holds(stage: Stage) -> None:
    for name in ("x", "y"):
        item = pod(name, node="n1", notes={keys.ASSIGNED_GROUP: {"x": "G0", "y": "G1"}[name]})
        stage.see("ADDED", item)
    stage.add("a")
    stage.add("b")
    stage.ticks(1)
    views = stage.snapshot.views([N1])[N1]
    assert [views.taken(GroupName(group)) for group in ("G0", "G1")] == [2, 2]


def test_a_gang_that_does_not_fit_holds_nothing_and_says_why(stage: Stage) -> None:
    for name in "abc":
        stage.add(name, size=3)
    stage.ticks()
    assert [stage.seat(name) for name in "abc"] == [None] * 3
    why = f"gang g starts as a whole: 3 of its pods need a {ONE} at the same time, and 2 can be had"
    assert ("c", "GangWaiting", why) in stage.told
    assert stage.gangs.reason("default", "g") == why
    stage.snapshot.node_event("ADDED", gpu_node("n2"))
    stage.ticks()
    assert stage.gated() == []


def test_filter_passes_the_planned_node_only(stage: Stage) -> None:
    stage.add("a", size=1)
    answer = stage.filter("a", N1, N2)
    assert not answer.passed
    assert answer.failed[N1] == "gang g starts as a whole: it has not been looked at yet"
    stage.ticks()
    answer = stage.filter("a", N1, N2)
    assert answer.passed == ["n1"]
    assert answer.failed == {"n2": "the pod's gang has a plan, and its seat in it is on n1"}
    stage.now += HOLD_S
    assert not stage.filter("a", N1).passed
    plain = Fits([N1], {}, {})
    assert stage.gangs.narrow(pod("plain"), plain) is plain


def test_a_gang_pod_that_came_without_a_gate_gets_no_seat_of_its_own(stage: Stage) -> None:
    stage.add("a")
    stage.pods["a"]["spec"]["schedulingGates"] = []
    stage.see("MODIFIED", stage.pods["a"])
    stage.ticks()
    assert not stage.filter("a", N1).passed
    with pytest.raises(ConflictError, match="1 of its 2 pods exist"):
        stage.admit("a")


def test_bind_waits_for_all_and_gives_the_planned_group(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    stage.ticks()
    with pytest.raises(ConflictError, match="1 other pods of its gang have not come so far yet"):
        stage.admit("a")
    assert stage.admit("b") == stage.seat("b")[1]
    assert stage.admit("a") == stage.seat("a")[1]
    with pytest.raises(ConflictError, match="its seat in it is on n1"):
        stage.admit("a", N2)


def test_a_bind_that_began_keeps_its_seat_although_the_plan_ends(stage: Stage) -> None:
    stage.add("a", size=1)
    stage.ticks()
    seat = stage.seat("a")
    assert stage.admit("a") == "G0"
    stage.snapshot.reserve(Claim(REF, N1, GroupName("G0"), ONE), ttl=120.0)
    stage.now += HOLD_S
    stage.ticks(1)
    assert keys.GANG_PLAN not in stage.pods["a"]["metadata"]["annotations"]
    assert stage.seat("a") == seat


def test_no_bind_begins_when_the_plan_is_about_to_end(stage: Stage) -> None:
    stage.add("a", size=1)
    stage.ticks()
    stage.now = stage.gangs.all()["default", "g"][0].seat.until - MARGIN_S
    with pytest.raises(ConflictError, match="starts as a whole"):
        stage.admit("a")


def test_what_is_heard_of_a_pod_while_its_plan_is_written_takes_no_seat_away(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    written = stage.patch

    def patch(ref: PodRef, body: dict[str, Any], kind: str) -> dict[str, Any]:
        for item in stage.pods.values():
            stage.version += 1
            item["metadata"]["resourceVersion"] = str(stage.version)
            stage.see("MODIFIED", item)
        assert None not in (stage.seat("a"), stage.seat("b"))
        return written(ref, body, kind)

    stage.patch = patch  # type: ignore[method-assign]
    stage.ticks(1)
    assert None not in (stage.seat("a"), stage.seat("b"))


def test_the_last_to_come_lets_all_others_go_on() -> None:
    meeting = Rendezvous(lambda: 0.0, wait=20.0)
    uids = [PodUid(str(i)) for i in range(MOST_MEMBERS)]
    with ThreadPoolExecutor(MOST_MEMBERS) as pool:
        calls = [pool.submit(meeting.meet, uid, [o for o in uids if o != uid]) for uid in uids]
        assert [call.result() for call in calls] == [None] * MOST_MEMBERS


def test_who_waits_for_a_plan_that_is_given_up_goes_at_once() -> None:
    meeting = Rendezvous(lambda: 0.0, wait=60.0)
    a, b = PodUid("a"), PodUid("b")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(meeting.meet, a, [b])
        while not call.done():
            meeting.forget(a)
    with pytest.raises(ConflictError, match="1 other pods"):
        call.result()


def test_who_waited_in_vain_has_not_come_for_those_who_come_later() -> None:
    """The scheduler gave its place away: both may not fit at the same time."""
    meeting = Rendezvous(lambda: 0.0, wait=0.0, most=1)
    a, b = PodUid("a"), PodUid("b")
    for uid, others in ((a, [b]), (b, [a])):
        with pytest.raises(ConflictError):
            meeting.meet(uid, others)


def test_a_pod_that_came_too_long_ago_has_not_come() -> None:
    now = [0.0]
    meeting = Rendezvous(lambda: now[0], wait=0.0, most=0)
    a, b = PodUid("a"), PodUid("b")
    with pytest.raises(ConflictError):
        meeting.meet(a, [b])
    now[0] = LASTS
    with pytest.raises(ConflictError):
        meeting.meet(b, [a])


def test_a_gang_that_runs_in_part_is_waited_for_by_nobody(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    stage.ticks()
    stage.bind("a")
    assert stage.admit("b") == stage.seat("b")[1]


def test_a_restart_goes_on_with_what_the_pods_say(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    stage.ticks(1)
    before = stage.seat("a"), stage.seat("b")
    stage.start()
    assert (stage.seat("a"), stage.seat("b")) == before
    assert stage.filter("a", N1).passed == ["n1"]
    stage.ticks(1)
    assert stage.gated() == []


@pytest.mark.parametrize("fail_at", [0, 1, 2, 3])
def test_a_write_that_fails_leaves_nothing_half_done(stage: Stage, fail_at: int) -> None:
    stage.add("a")
    stage.add("b")
    stage.failing = [RetryableError("no answer"), *[Exception()] * fail_at]
    stage.ticks(2)
    stage.start()
    stage.ticks(6)
    assert stage.gated() == []
    assert None not in (stage.seat("a"), stage.seat("b"))


def test_seats_of_a_gang_that_loses_a_pod_are_given_back(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    stage.ticks()
    stage.remove("b")
    stage.ticks(1)
    assert stage.seat("a") is None
    assert keys.GANG_PLAN not in stage.pods["a"]["metadata"]["annotations"]
    stage.add("c")
    stage.ticks()
    assert None not in (stage.seat("a"), stage.seat("c"))


def test_a_pod_that_is_being_deleted_counts_as_gone(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    stage.ticks()
    stage.pods["b"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stage.see("MODIFIED", stage.pods["b"])
    assert stage.seat("b") is None
    stage.ticks(1)
    assert stage.seat("a") is None


def test_a_gang_that_is_not_bound_in_time_lets_go_and_waits_until_the_scheduler_asks() -> None:
    stage = Stage("n1", "n2")
    stage.add("a")
    stage.add("b")
    stage.ticks()
    assert {stage.seat(name)[0] for name in "ab"} == {"n1"}
    stage.filter("a", N1, N2)
    stage.now += HOLD_S
    stage.ticks(1)
    assert [stage.seat(name) for name in "ab"] == [None, None]
    assert "did not bind a, b in time" in stage.told[-1][2]
    stage.filter("a", N1, N2)
    stage.ticks(int(HOLD_S))
    assert [stage.seat(name) for name in "ab"] == [None, None]
    assert "the scheduler finds no node at all for b" in stage.told[-1][2]
    stage.filter("b", N2)
    stage.ticks(1)
    assert stage.seat("b")[0] == "n2"


def test_the_scheduler_is_told_to_try_pods_of_which_it_says_nothing() -> None:
    """It drops a change of a pod's annotations that comes while it is trying the pod."""
    stage = Stage("n1", "n2")
    stage.add("a")
    stage.add("b")
    for _ in range(3):
        stage.planner.tick()
    stage.filter("a", N1, N2)
    stage.planner.tick()
    assert not stage.nudges, "it has had no time yet"
    for lapse, nudges in ((REMIND_S, 1), (REMIND_S, 1), (REMIND_S, 2), (2 * REMIND_S, 2)):
        stage.now += lapse
        stage.planner.tick()
        assert stage.nudges == nudges
    stage.filter("b", N1, N2)
    stage.ticks()
    assert stage.nudges == 2


def test_the_scheduler_is_told_less_and_less_often_to_try_a_pod_that_it_has_no_node_for() -> None:
    stage = Stage("n1", "n2")
    stage.add("a")
    stage.add("b")
    stage.ticks()
    stage.filter("a", N1, N2)
    stage.now += HOLD_S
    stage.ticks(1)
    stage.filter("a", N1, N2)
    before = stage.nudges
    stage.ticks(int(HOLD_S))
    assert "the scheduler finds no node at all for b" in stage.told[-1][2]
    assert before + 2 <= stage.nudges <= before + 6


def placed(stage: Stage, allows: dict[str, list[str]], room: dict[str, int]) -> Counter[str]:
    """Plays a kube-scheduler until all pods have come, and gives how many it has on each node.

    It allows each pod some nodes, and has no room for more pods on one than it says. Asked about in
    vain, a pod is tried again when it is changed.
    """
    for _ in range(200):
        had: Counter[str] = Counter()
        for name, nodes in allows.items() if not stage.gated() else ():
            free = [node for node in nodes if had[node] < room.get(node, 99)]
            passed = stage.filter(name, *map(NodeName, free)).passed if free else []
            had.update(passed)
        if sum(had.values()) == len(allows):
            return had
        stage.ticks(1)
    raise AssertionError(f"never placed: {stage.told[-1]}")


def test_a_plan_ends_at_once_where_the_scheduler_does_not_have_a_pod() -> None:
    stage = Stage("n1", "n2")
    for name in "ab":
        stage.add(name)
    stage.ticks()
    assert stage.filter("a", N1, N2).passed == ["n1"]
    assert not stage.filter("b", N2).passed
    stage.ticks(1)
    assert [stage.seat(name) for name in "ab"] == [None, None]
    assert "does not have b on n1, for CPU, memory, taints" in stage.told[-1][2]
    assert stage.now < 1_000_000_000 + HOLD_S


def test_tainted_nodes_are_tried_once_however_many_there_are() -> None:
    """More of them than the plan's rests would leave out in time."""
    stage = Stage(*(f"n{at:02}" for at in range(40)))
    for name in "abcd":
        stage.add(name, size=4)
    began = stage.now
    assert placed(stage, {name: ["n38", "n39"] for name in "abcd"}, {}) == {"n38": 2, "n39": 2}
    assert stage.now < began + HOLD_S


def test_cpu_for_some_of_a_gang_on_each_node_is_found() -> None:
    """Each pod fits each node alone, and no node has room for as many as it has seats."""
    stage = Stage("n1", "n2", "n3", "n4")
    for name in "abcd":
        stage.add(name, size=4)
    nodes = ["n1", "n2", "n3", "n4"]
    one_each = dict.fromkeys(nodes, 1)
    assert placed(stage, dict.fromkeys("abcd", nodes), one_each) == one_each


def test_pods_that_may_go_to_different_nodes_each_get_one_of_theirs() -> None:
    stage = Stage("n1", "n2", "n3")
    for name in "abc":
        stage.add(name, size=3)
    allows = {"a": ["n1", "n2", "n3"], "b": ["n3"], "c": ["n2", "n3"]}
    had = placed(stage, allows, {"n3": 1})
    assert had["n3"] == 1
    assert sum(had.values()) == 3


def possible(allows: Mapping[str, Sequence[str]], room: Mapping[str, int]) -> bool:
    """Whether all can be placed, by trying everything: a node has two GPUs."""
    pods = list(allows)

    def rest(at: int, had: Counter[str]) -> bool:
        return at == len(pods) or any(
            had[node] < min(room[node], 2) and rest(at + 1, had + Counter([node]))
            for node in allows[pods[at]]
        )

    return rest(0, Counter())


def test_whatever_the_scheduler_would_have_is_found_in_the_end() -> None:
    tried = 0
    for seed in range(150):
        random = Random(seed)
        nodes = [f"n{at}" for at in range(random.randint(1, 8))]
        pods, share = "abcde"[: random.randint(1, 5)], random.choice((0.3, 0.6, 0.9))
        allows = {name: [node for node in nodes if random.random() < share] for name in pods}
        room = {node: random.randint(0, 2) for node in nodes}
        if possible(allows, room):
            tried += 1
            stage = Stage(*nodes)
            for name in pods:
                stage.add(name, size=len(pods))
            assert set(placed(stage, allows, room)) <= set(nodes), seed
    assert tried > 50


def test_what_the_scheduler_would_not_have_is_tried_again_after_a_while() -> None:
    """Its CPU may have become free: the scheduler offers the node again."""
    stage = Stage("n1")
    for name in "ab":
        stage.add(name)
    with pytest.raises(AssertionError, match="never placed"):
        placed(stage, {name: ["n1"] for name in "ab"}, {"n1": 1})
    stage.now += LONGEST_AVOID_S
    assert placed(stage, {name: ["n1"] for name in "ab"}, {}) == {"n1": 2}


def test_a_seat_that_is_lost_is_planned_anew(stage: Stage) -> None:
    stage.add("a", size=1)
    stage.ticks()
    assert stage.seat("a") == ("n1", "G0")
    node = gpu_node("n1")
    node["status"]["gpus"][0]["healthy"] = False
    stage.snapshot.node_event("MODIFIED", node)
    stage.ticks(4)
    assert stage.seat("a") == ("n1", "G1")
    assert stage.gated() == []


def test_an_older_event_than_our_own_write_changes_nothing(stage: Stage) -> None:
    stage.add("a", size=1)
    old = copy.deepcopy(stage.pods["a"])
    stage.ticks()
    stage.see("MODIFIED", old)
    assert stage.filter("a", N1).passed == ["n1"]
    assert stage.seat("a") is not None


def test_who_does_not_lead_changes_nothing(stage: Stage) -> None:
    stage.start(Closed())
    stage.add("a", size=1)
    stage.ticks()
    assert (stage.gated(), stage.seat("a")) == (["a"], None)


@pytest.mark.parametrize("size", ["0", "x", "-1", ""])
def test_a_size_that_is_none_is_told(stage: Stage, size: str) -> None:
    stage.add("a", size=size)
    stage.ticks()
    assert stage.told == [
        (
            "a",
            "GangWaiting",
            (
                f"gang g starts as a whole: pod a: {keys.GANG_SIZE}: {size!r} is no "
                "whole number from 1 to 256"
            ),
        )
    ]


def test_gangs_that_never_fit_don_t_keep_others_from_their_turn(stage: Stage) -> None:
    for number in range(30):
        stage.add(f"large{number}", size=1, gang=f"large{number}", **{keys.VRAM: "90Gi"})
    stage.add("small", size=1, gang="small")
    clock = iter(range(1_000_000_000, 2_000_000_000))
    stage.planner._with = replace(stage.planner._with, clock=lambda: next(clock) * BUDGET_S / 4)
    for _ in range(60):
        stage.planner._plan_after = 0.0
        stage.planner.tick()
    assert stage.seat("small") is not None


def test_what_is_gone_is_forgotten(stage: Stage) -> None:
    for name in "ab":
        stage.add(name)
    stage.ticks()
    for name in "ab":
        stage.remove(name)
    stage.ticks()
    assert stage.gangs.reason("default", "g").endswith("it has not been looked at yet")
    assert stage.snapshot.views([N1])[N1].claims == ()


def test_a_binding_gives_the_group_that_is_admitted_and_no_other(
    binder: Binder, seen: dict[str, Any], snapshot: Snapshot
) -> None:
    args = BindArgs(PodRef("default", "p1", PodUid("uid-p1")), N1)
    seen["metadata"]["annotations"] = {keys.GANG: "g"}
    snapshot.pod_event("MODIFIED", seen)

    def refuse(_pod: SeatPod, _node: NodeName) -> GroupName | None:
        raise ConflictError("the others are missing")

    binder._consulted = Consulted(admit=refuse)
    assert binder.bind(args) == "pod default/p1 was not bound to n1: the others are missing"
    binder._consulted = Consulted(admit=lambda _pod, _node: GroupName("G1"))
    assert binder.bind(args) == ""
    assert seen["metadata"]["annotations"][keys.ASSIGNED_GROUP] == "G1"


def test_a_pod_deleted_before_the_answer_to_its_patch_is_no_member() -> None:
    stage = Stage("n1", "n2")
    stage.add("a")
    stage.add("b")
    patch = stage.patch

    def deleted_meanwhile(ref: PodRef, body: dict[str, Any], kind: str) -> dict[str, Any]:
        answer = patch(ref, body, kind)
        # `kubectl delete`: the watch's thread takes it in before the planner's has its answer.
        stage.remove(ref.name)
        return answer

    stage.patch = deleted_meanwhile  # type: ignore[method-assign]
    stage.ticks(1)
    stage.patch = patch  # type: ignore[method-assign]
    assert stage.pods == {}
    assert stage.gangs.all() == {}
    # The Job is made again, with the same gang.
    stage.add("c")
    stage.add("d")
    stage.ticks(10)
    assert stage.gated() == [], stage.gangs.reason("default", "g")


def test_a_pod_that_a_second_list_lacks_is_no_member() -> None:
    stage = Stage("n1", "n2")
    stage.add("a")
    stage.add("b")
    names = {
        "metadata": {
            "namespace": "default",
            "name": "a",
            "uid": "uid-a",
            "resourceVersion": stage.pods["a"]["metadata"].get("resourceVersion", "1"),
        }
    }
    stage.ticks(1)  # the plan is written; the watch is interrupted before it tells of that
    del stage.pods["a"]
    stage.snapshot.pod_event("DELETED", names)  # what Watcher._list makes up, with names_only
    stage.gangs.pod_event("DELETED", names)
    members = [one.pod.name for one in next(iter(stage.gangs.all().values()))]
    assert members == ["b"]
    stage.add("c")
    stage.ticks(10)
    assert stage.gated() == [], stage.gangs.reason("default", "g")
