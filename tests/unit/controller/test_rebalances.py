"""A look at a RebalanceRequest: what is asked of the extender, made, evicted and taken back."""

from __future__ import annotations

import pytest

from controller import rebalances
from controller.base.kinds import CHECKPOINT, REBALANCE
from controller.base.known import PodsSeen, Requests
from controller.base.queue import Queue
from controller.base.worker import RequestWorker
from controller.rebalances import PlanCarrier, Planner, RebalanceCarrier
from kybernate import keys
from kybernate.api.rebalances.reading import dump_rebalance, read_rebalance
from kybernate.core.requests.rebalance import NoPlan
from kybernate.errors import NotFoundError, RetryableError

KEY = ("shop", "once")
MADE = "rbal-r1-u1"
STEP = {
    "kind": "move",
    "pod": "shop/a",
    "uid": "u1",
    "from": {"node": "n1", "group": "G0"},
    "to": {"node": "n1", "group": "G1"},
    "seconds": 3.04,
    "bytes": 7,
}
ANSWER = {
    "room": True,
    "id": "h1",
    "moves": 1,
    "seconds": 3.04,
    "sentences": ["1 move makes room."],
    "steps": [STEP],
}


def item(**spec):
    meta = {"namespace": "shop", "name": "once", "uid": "r1", "resourceVersion": "1"}
    meta["creationTimestamp"] = "2026-01-01T00:00:00Z"
    move = {"pod": "a", "to": {"group": "G1"}}
    return {"metadata": {**meta, "generation": 1}, "spec": {"move": move, **spec}}


def pod(uid="u1", group="G0", **status):
    container = {"name": "c", "resources": {"limits": {"kyb.ai/gpu-1x-seat": "1"}}}
    notes = {keys.ASSIGNED_GROUP: group}
    meta = {"namespace": "shop", "name": uid, "uid": uid, "annotations": notes}
    return {"metadata": meta, "spec": {"nodeName": "n1", "containers": [container]}, **status}


class World:
    """The API server, as far as the worker sees it."""

    def __init__(self):
        self.item, self.version = item(), 1
        self.posted, self.evicted, self.removed, self.held = [], [], [], ""

    def write(self, seen, status, now):
        self.version += 1
        told = dump_rebalance(status, seen.status, seen.generation, now)
        told = {name: value for name, value in told.items() if value is not None}
        meta = {**self.item["metadata"], "resourceVersion": str(self.version)}
        self.item = {**self.item, "metadata": meta, "status": told}
        return self.item

    def tell(self, *_):
        pass

    def ask(self, namespace, body):
        self.posted.append((namespace, body["metadata"]["name"], body["spec"]))
        return True

    def evict(self, namespace, name, uid):
        self.evicted.append((namespace, name, uid))
        return self.held

    def remove(self, request):
        self.removed.append(request.name)

    def closed(self):
        return None

    def check(self):
        pass


class Site:
    def __init__(self, monkeypatch):
        self.world, self.asked, self.answer = World(), [], ANSWER
        self.requests = Requests(REBALANCE, lambda _: None)
        self.made = Requests(CHECKPOINT, lambda _: None, self.told_of)
        self.pods = PodsSeen()
        self.pods.on_event("ADDED", pod())

        def ask(_url, _tls, path, _limit):
            self.asked.append(path)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        monkeypatch.setattr(rebalances.extender, "ask", ask)
        world, planner = self.world, Planner("https://x", None)
        self.now, wall = 1767225600.0, lambda: self.now
        self.steps, self.plans = Queue(wall), Queue(wall)
        parts = self.requests, self.made, self.pods, self.plans, world, world
        self.withdrawn, asked = "", lambda _: self.withdrawn
        self.carrier = RebalanceCarrier(*parts, wall, standing=2, withdrawn=asked)
        planning = PlanCarrier(self.carrier, planner, wall, standing=2)
        parts = self.steps, self.requests, world, world, wall
        self.worker = RequestWorker(self.carrier, *parts)
        self.planning = RequestWorker(planning, *parts)
        self.told()

    def told(self, **spec):
        self.world.version += 1
        now = self.world.item
        meta = {**now["metadata"], "resourceVersion": str(self.world.version)}
        self.world.item = {**now, "metadata": meta, "spec": {**now["spec"], **spec}}
        self.requests.on_event("MODIFIED", self.world.item)

    def told_of(self, made):
        rebalances.have_looked_at(made, self.requests, self.steps)

    def look(self, times=1):
        for _ in range(times):
            self.worker.look(KEY)
            if len(self.plans):
                assert self.plans.get() == KEY
                self.plans.done(KEY)
                self.planning.look(KEY)
        return self.world.item["status"]

    def saved(self, by=keys.CONTROLLER_USER, reason="Evicted", name=MADE, successor=""):
        ends = {"completionTime": "2026-01-01T00:00:00Z"} if reason == "Evicted" else {}
        notes = {keys.SUCCESSOR: successor} if successor else {}
        meta = {"namespace": "shop", "name": name, "uid": "c1", "annotations": notes}
        condition = {"type": "Complete", "status": "True", "reason": reason, "message": ""}
        status = {"podUID": "u1", "node": "n1", "operation": "ckpt-c1", "owner": "rs", **ends}
        status |= {"conditions": [condition], "artifact": {"name": "", "tier": "object"}}
        spec = {"pod": "a", "mode": "Evict", "tier": "object", "requestedBy": by}
        stamp = {"resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.made.on_event("ADDED", {"metadata": {**meta, **stamp}, "spec": spec, "status": status})


@pytest.fixture
def site(monkeypatch):
    return Site(monkeypatch)


def reason(status):
    return status["conditions"][0]["reason"]


def test_a_move_from_its_plan_to_its_end(site):
    status = site.look()
    assert (reason(status), status["plan"]["hash"]) == ("AwaitingApproval", "h1")
    assert site.asked == ["/defrag/shop/a?moves=10&within=shop&node=&group=G1"]
    assert site.world.posted == []
    site.told(approvedPlan="h1")
    site.look(2)
    assert site.world.posted == []
    site.look()
    ((namespace, name, spec),) = site.world.posted
    assert (namespace, name) == ("shop", MADE)
    assert spec["successor"] == {"node": "n1", "group": "G1"}
    assert (spec["mode"], spec["tier"], spec["pod"]) == ("Evict", "object", "a")
    site.saved()
    site.look()
    assert site.world.evicted == []
    site.look()
    assert site.world.evicted == [("shop", "a", "u1")]
    site.pods.on_event("DELETED", pod())
    site.look()
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    site.pods.on_event("ADDED", pod("u2", "G1", status=ready))
    site.saved(successor="u2")
    status = site.look(2)
    assert (reason(status), status["movesDone"], status["bytesDone"]) == ("Moved", 1, 7)
    assert status["plan"]["steps"][0]["successor"] == "u2"


def test_a_step_is_looked_at_as_soon_as_its_checkpoint_request_changes(site):
    site.told(approvedPlan="h1")
    while not site.world.posted:
        site.look()
        while len(site.steps):
            site.steps.done(site.steps.get())
    # Its next look is due later, and nobody waits for that.
    site.saved()
    assert len(site.steps) == 1
    assert site.steps.get() == KEY


@pytest.mark.parametrize("name", ["rbal-r11-u1", "rbal-r2-u1", "by-hand"])
def test_what_others_have_made_has_no_step_looked_at(site, name):
    site.saved(name=name)
    assert len(site.steps) == 0


def test_who_chooses_a_step_s_name_has_it_looked_at_no_sooner(site):
    site.saved(by="mallory")
    assert len(site.steps) == 0


def test_who_carries_out_steps_asks_for_no_plan(site):
    site.worker.look(KEY)
    assert (site.asked, "status" in site.world.item) == ([], False)
    assert len(site.plans) == 1


def test_a_plan_that_nobody_approves_is_asked_for_once_however_often_it_is_touched(site):
    for _ in range(20):
        site.look()
        site.told()
        site.now += 100.0
    assert len(site.asked) == 1
    assert site.world.item["status"]["planTime"] == "2026-01-01T00:00:00Z"
    site.now += 3600.0
    assert reason(site.look()) == "DeadlineExceeded"


def test_what_policies_ask_for_waits_for_no_person_and_holds_none_up(site):
    owner = {"kind": keys.CHECKPOINT_POLICY_KIND, "name": "p", "uid": "p1", "controller": True}
    owner["apiVersion"] = keys.API_VERSION
    for number in range(4):
        other = item()
        other["metadata"] |= {"name": f"x{number}", "uid": f"q{number}"}
        other["metadata"] |= {"ownerReferences": [owner]}
        other["spec"] |= {"requestedBy": keys.CONTROLLER_USER}
        site.requests.on_event("ADDED", other)
    assert reason(site.look()) == "AwaitingApproval", "theirs don't count"
    last = item()
    last["metadata"] |= {"name": "z", "uid": "z1", "ownerReferences": [owner]}
    last["metadata"]["creationTimestamp"] = "2026-01-01T00:01:00Z"
    last["spec"] |= {"requestedBy": keys.CONTROLLER_USER}
    for number in range(2):
        older = item()
        older["metadata"] |= {"name": f"y{number}", "uid": f"y{number}"}
        site.requests.on_event("ADDED", older)
    site.requests.on_event("ADDED", last)
    seen = site.requests.get(("shop", "z")).request
    assert (seen.policy, site.carrier.observed(seen).ahead) == ("p1", 0)


def test_a_move_that_its_policy_wants_no_more_does_not_begin(site):
    site.withdrawn = "its policy is gone"
    assert reason(site.look()) == "Withdrawn"
    assert site.world.posted == []


def test_a_namespace_has_so_many_plans_that_nobody_has_approved(site):
    for name, uid in (("x", "q1"), ("y", "q2")):
        older = item()
        older["metadata"] |= {"name": name, "uid": uid, "namespace": "other"}
        site.requests.on_event("ADDED", older)
        older["metadata"] |= {"namespace": "shop"}
        site.requests.on_event("ADDED", older)
    assert reason(site.look()) == "Queued"
    assert site.asked == []
    site.requests.on_event("DELETED", older)
    assert reason(site.look()) == "AwaitingApproval"


def test_why_a_pod_does_not_go_is_told(site):
    site.look()
    site.told(approvedPlan="h1")
    site.look(2)
    site.saved()
    site.look()
    site.world.held = "it would violate a budget"
    assert "a budget" in site.look()["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"emptyNode": "n1"}, "/defrag/shop/*?moves=10&within=shop&empty=n1"),
        ({"defragment": {}}, "/defrag/shop/*?moves=10&within=shop"),
        (
            {"move": {"model": "birch", "to": {"node": "n2"}}},
            "/defrag/shop/*?moves=10&within=shop&model=birch&node=n2&group=",
        ),
        (
            {"defragment": {"pod": "b"}, "budget": {"moves": 2, "seconds": 9}},
            "/defrag/shop/b?moves=2&within=shop&seconds=9.0",
        ),
    ],
)
def test_the_extender_is_asked_what_the_object_asks(site, spec, path):
    asked = item()
    asked["spec"] = spec
    Planner("https://x", None).plan(read_rebalance(asked))
    assert site.asked == [path]


def test_of_the_systems_namespace_pods_of_all_may_move(site):
    asked = item()
    asked["metadata"]["namespace"], asked["spec"] = keys.NAMESPACE, {"defragment": {}}
    site.answer = {**ANSWER, "steps": [{**STEP, "pod": "lab/x"}]}
    assert Planner("https://x", None).plan(read_rebalance(asked)).moves == 1
    assert site.asked == ["/defrag/*/*?moves=10&within=%2A"]
    found = Planner("https://x", None).plan(read_rebalance(item()))
    assert isinstance(found, NoPlan)
    assert "other namespaces than shop" in found.why


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (RetryableError("away"), "Planning"),
        (NotFoundError("no pod shop/a has a seat"), "NoPlan"),
        ({**ANSWER, "room": False}, "NoPlan"),
        ({**ANSWER, "steps": [{**STEP, "kind": "fly"}]}, "Planning"),
    ],
)
def test_without_a_plan_nothing_begins(site, answer, told):
    site.answer = answer
    site.told(approvedPlan="h1")
    assert reason(site.look()) == told
    assert site.world.posted == []


def test_what_somebody_else_has_made_is_not_believed(site):
    site.look()
    site.told(approvedPlan="h1")
    site.look(2)
    site.saved(by="mallory")
    site.world.ask = lambda *_: False
    status = site.look()
    assert reason(status) == "StepFailed"
    assert "somebody else has made" in status["conditions"][0]["message"]
    assert site.world.evicted == []


def test_what_a_request_that_is_gone_has_left_is_taken_back(site):
    site.saved()
    site.carrier.tidy()
    assert site.world.posted == [], "it is not gone"
    site.requests.on_event("DELETED", site.world.item)
    site.carrier.tidy()
    assert [one[1] for one in site.world.posted] == [f"{MADE}-wake"]
    site.saved(reason="Running")
    site.carrier.tidy()
    assert site.world.removed == [MADE]
