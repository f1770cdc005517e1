"""A look at a pod that waits: what is asked of the extender, made, evicted and taken back."""

from __future__ import annotations

import pytest

from controller import preempts
from controller.base.kinds import CHECKPOINT
from controller.base.known import PodsSeen, Requests
from controller.base.queue import Queue
from controller.preempts import PreemptWorker, Victims, Waiters
from kybernate import keys
from kybernate.api.watched.slim import slim_pod
from kybernate.core.requests.rebalance import NoPlan
from kybernate.core.requests.turns import Limits
from kybernate.errors import NotFoundError, RefusedError, RetryableError

KEY = ("shop", "new")
NOW = 1767225660.0
STAMP, EARLY = "2026-01-01T00:01:00Z", "2026-01-01T00:00:00Z"
MADE = "preempt-u-new-u-low"
SUSPEND = {
    "kind": "suspend",
    "pod": "lab/low",
    "uid": "u-low",
    "from": {"node": "n1", "group": "G0"},
    "to": None,
    "bytes": 1 << 30,
}
PLACE = {"kind": "place", "pod": "shop/new", "uid": "u-new", "to": {"node": "n1", "group": "G0"}}
ANSWER = {
    "uid": "u-new",
    "checked": True,
    "id": "h1",
    "sentence": "suspending lab/low makes room.",
    "steps": [SUSPEND, PLACE],
}


def pod(name, namespace="shop", node="", priority=0, notes=None, **more):
    container = {"name": "c", "resources": {"limits": {"kyb.ai/gpu-1x-seat": "1"}}}
    spec = {"containers": [container], "priority": priority, **more}
    meta = {"namespace": namespace, "name": name, "uid": f"u-{name}", "resourceVersion": "1"}
    meta["annotations"] = notes or {}
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"conditions": [{**said, "lastTransitionTime": EARLY}]} if not node else {}
    return slim_pod({"metadata": meta, "spec": {**spec, "nodeName": node}, "status": status})


class World:
    """The API server, as far as the worker sees it."""

    def __init__(self):
        self.posted, self.evicted, self.removed, self.said = [], [], [], []
        self.full = set()

    def ask(self, namespace, body):
        if namespace in self.full:
            raise RefusedError("exceeded quota")
        self.posted.append((namespace, body["metadata"]["name"], body["spec"]))
        return True

    def evict(self, namespace, name, uid):
        self.evicted.append((namespace, name, uid))
        return ""

    def remove(self, request):
        self.removed.append(request.name)

    def say(self, about, reason, message, *, warning):
        self.said.append((about["namespace"], about["name"], reason, message))

    def closed(self):
        return None

    def check(self):
        pass


class Site:
    def __init__(self, monkeypatch, patience=5.0):
        self.world, self.asked, self.answer = World(), [], ANSWER
        self.requests, self.pods = Requests(CHECKPOINT, lambda _: None), PodsSeen()
        self.due = []
        self.waiters = Waiters(self.due.append)

        def ask(_url, _tls, path, _limit):
            self.asked.append(path)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        monkeypatch.setattr(preempts.extender, "ask", ask)
        self.victims = Victims("https://x", None)
        self.now = 0.0
        self.queue = Queue(lambda: self.now)
        parts = self.queue, self.waiters, self.requests, self.pods, self.victims, self.world
        self.worker = PreemptWorker(
            *parts, self.world, lambda: NOW, patience=patience, limits=Limits()
        )

    def see(self, item, kind="ADDED"):
        self.waiters.on_event(kind, item)
        self.pods.on_event(kind, item)

    def saved(
        self,
        reason="Evicted",
        by=keys.CONTROLLER_USER,
        name=MADE,
        namespace="lab",
        mode="Evict",
    ):
        ended = {"completionTime": STAMP} if reason == "Evicted" else {}
        condition = {"type": "Complete", "status": "True", "reason": reason, "message": ""}
        meta = {
            "namespace": namespace,
            "name": name,
            "uid": f"c-{namespace}",
            "resourceVersion": "1",
        }
        status = {"podUID": "u-low", "node": "n1", "owner": "job", "conditions": [condition]}
        status |= {"operation": f"ckpt-c-{namespace}", **ended}
        artifact = {"artifact": {"name": "", "tier": "object", "bytes": 7}} if ended else {}
        spec = {"pod": "low", "mode": mode, "tier": "object", "requestedBy": by}
        item = {"metadata": {**meta, "creationTimestamp": EARLY}, "spec": spec}
        self.requests.on_event("MODIFIED", {**item, "status": {**status, **artifact}})


@pytest.fixture
def site(monkeypatch):
    found = Site(monkeypatch)
    found.see(pod("low", "lab", node="n1"))
    found.see(pod("new", priority=10))
    return found


def test_room_is_made_for_a_pod_that_waits_and_both_are_told(site):
    assert site.due == [KEY]
    site.worker.look(KEY)
    assert site.asked == ["/preemption/shop/new"]
    ((namespace, name, spec),) = site.world.posted
    assert (namespace, name, spec["pod"], spec["mode"], spec["tier"]) == (
        *("lab", MADE, "low", "Evict", "object"),
    )
    assert (spec["deadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (270, 7 * 86400)
    assert [one[:3] for one in site.world.said] == [
        ("shop", "new", "Preempting"),
        ("lab", "low", "Preempted"),
    ]
    site.saved("Running")
    site.worker.look(KEY)
    assert len(site.asked) == 1, "it is under way"
    site.saved()
    site.worker.look(KEY)
    assert site.world.evicted == [("lab", "low", "u-low")]


@pytest.mark.parametrize(
    ("low", "new"),
    [
        (pod("low", "lab", node="n1", priority=10), pod("new", priority=10)),
        (pod("low", "lab"), pod("new", priority=10)),
        (pod("low", "lab", node="n1"), pod("new", priority=10, preemptionPolicy="Never")),
        (pod("low", "lab", node="n1"), pod("new", priority=10, node="n1")),
        (pod("low", "lab", node="n1", priority=-1), pod("new", priority=-1)),
    ],
    ids=["equals", "without-a-seat", "never", "bound", "below-zero"],
)
def test_the_extender_is_not_asked_where_nobody_could_make_room(monkeypatch, low, new):
    site = Site(monkeypatch)
    site.see(low)
    site.see(new)
    site.worker.look(KEY)
    assert (site.asked, site.world.posted) == ([], [])


def test_a_pod_that_waits_is_looked_at_again_once_somebody_less_important_may_have_a_seat(
    monkeypatch,
):
    site = Site(monkeypatch)
    for one in (pod("new", priority=10), pod("low", "lab")):
        site.see(one)
    site.worker.look(KEY)
    site.see(pod("low", "lab", node="n1"), "MODIFIED")  # a node has come, and has room for one
    site.now += 60.0
    assert len(site.queue) == 1
    assert site.queue.get() == KEY
    site.worker.look(KEY)
    assert [name for _, name, _ in site.world.posted] == [MADE]


def test_one_that_starts_from_a_template_is_made_room_for_as_well(monkeypatch):
    site = Site(monkeypatch)
    site.see(pod("low", "lab", node="n1"))
    site.see(pod("new", priority=10, notes={keys.RESTORE_FROM: "template/warm"}))
    site.worker.look(KEY)
    assert [name for _, name, _ in site.world.posted] == [MADE]


def test_with_no_patience_set_nobody_makes_room_and_what_was_begun_is_taken_back(monkeypatch):
    site = Site(monkeypatch, patience=0.0)
    site.see(pod("low", "lab", node="n1"))
    site.see(pod("new", priority=10))
    site.worker.look(KEY)
    assert site.asked == []
    site.saved("Running")
    site.worker.look(KEY)
    assert site.world.removed == [MADE]


def test_what_was_begun_for_a_pod_that_is_gone_is_taken_back(site):
    site.saved()
    site.see(pod("new", priority=10), "DELETED")
    assert site.due == [KEY, KEY]
    site.worker.look(KEY)
    assert [one[1] for one in site.world.posted] == ["preempt-wake-c-lab"]
    assert (site.world.removed, site.world.evicted) == ([MADE], [])


@pytest.mark.parametrize("name", ["preempt-wake-c-lab", f"{MADE}-wake"], ids=["now", "before"])
def test_the_request_that_wakes_a_pod_again_is_left_alone(site, name):
    site.saved("Running", name=name, mode="Wake")
    site.see(pod("new", priority=10), "DELETED")
    site.worker.look(KEY)
    site.worker.tidy()
    assert (site.world.posted, site.world.removed) == ([], [])


def test_a_request_of_somebody_else_makes_nobody_leave(site):
    site.saved(by="system:serviceaccount:shop:default")
    site.worker.look(KEY)
    assert (site.world.evicted, site.world.removed) == ([], [])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({**ANSWER, "checked": False}, "has not named a node"),
        ({**ANSWER, "uid": "another"}, "another pod has its name"),
        (NotFoundError("no such pod"), "no such pod"),
        (RetryableError("nobody answers"), "nobody answers"),
        ({**ANSWER, "steps": [{**SUSPEND, "kind": "eat"}]}, "eat"),
    ],
)
def test_without_a_plan_for_this_very_pod_nothing_is_done(site, answer, why):
    site.answer = answer
    site.worker.look(KEY)
    assert site.world.posted == []
    found = site.victims.plan(site.waiters.get(KEY), ["u2", "u1"])
    assert isinstance(found, NoPlan)
    assert why in found.why
    assert site.asked[-1] == "/preemption/shop/new?spare=u1%2Cu2"


def test_the_lowest_priority_of_those_with_a_seat_follows_them():
    seen = PodsSeen()
    seen.on_event("ADDED", pod("a", node="n1", priority=-5))
    assert (seen.outranks_one(-5), seen.outranks_one(-4)) == (False, True)
    seen.on_event("MODIFIED", pod("a", node="n1", priority=3))
    assert seen.outranks_one(3) is False
    seen.on_event("DELETED", pod("a", node="n1", priority=3))
    assert seen.outranks_one(100) is False


def test_a_namespace_that_lets_nobody_be_woken_holds_up_no_other(site):
    site.world.full = {"lab"}
    site.saved()
    site.saved(name="preempt-u-gone-u-low", namespace="shop")
    site.see(pod("new", priority=10), "DELETED")
    site.worker.tidy()
    assert [one[:2] for one in site.world.posted] == [("shop", "preempt-wake-c-shop")]
    assert site.world.removed == ["preempt-u-gone-u-low"], "the other one is tried again"
    site.world.full = set()
    site.worker.tidy()
    assert MADE in site.world.removed


def test_another_makes_room_where_somebody_else_has_taken_the_requests_name(site):
    site.saved("Running", by="system:serviceaccount:lab:default")
    site.world.ask = lambda _namespace, _body: False
    for _ in range(2):
        site.worker.look(KEY)
    assert site.asked == ["/preemption/shop/new", "/preemption/shop/new?spare=u-low"]


def test_another_makes_room_where_a_state_may_not_be_asked_for(site):
    site.world.full = {"lab"}
    site.worker.look(KEY)
    assert site.world.posted == []
    site.worker.look(KEY)
    assert site.asked == ["/preemption/shop/new", "/preemption/shop/new?spare=u-low"]


def test_another_makes_room_where_nobody_here_sees_the_pod(site):
    site.see(pod("other", "lab", node="n1"))
    site.see(pod("low", "lab", node="n1"), "DELETED")
    site.worker.look(KEY)
    assert site.world.posted == []
    site.worker.look(KEY)
    assert site.asked == ["/preemption/shop/new", "/preemption/shop/new?spare=u-low"]


def test_a_pod_that_was_made_room_for_in_vain_is_told_so(site):
    site.saved()
    site.see(pod("low", "lab", node="n1"), "DELETED")
    site.see(pod("other", "lab", node="n1"))
    site.worker._wall = lambda: NOW + 301
    site.worker.look(KEY)
    assert (site.asked, site.world.posted) == ([], [])
    ((*where, message),) = site.world.said
    assert where == ["shop", "new", "PreemptedInVain"]
    assert "not been bound" in message
    assert "5 min" in message
