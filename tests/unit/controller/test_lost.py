"""Pods that are lost with their node, or failed by their kubelet: which requests are made for them,
and what there is of them to continue from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from controller.base.kinds import CHECKPOINT
from controller.base.known import Requests
from controller.base.queue import Queue
from controller.checkpoints.lost import LostPods, LostWorker, Remains
from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.api.requests import dump_status, to_evict
from kybernate.api.watched.slim import slim_pod
from kybernate.core.requests.checkpoint import (
    Mode,
    Outcome,
    PodFacts,
    Remnant,
    Request,
    Status,
    operation_name,
)
from kybernate.core.requests.reasons import Reason
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.runtime.lead import Open
from kybernate.types import Tier

if TYPE_CHECKING:
    Json = dict[str, Any]

SPACE = ("shop", "")
STAMP = "2026-01-01T00:00:00Z"
ID = "shop/a@20260101T000000Z-0000000{}"


def pod(uid: str = "u1", *, owned: bool = True, phase: str = "Running", **more: Any) -> Json:
    """`more`: of its metadata."""
    owner = [{"controller": True, "kind": "ReplicaSet", "name": "a-1", "uid": "rs"}]
    meta = {"namespace": "shop", "name": "a", "uid": uid, "resourceVersion": "1"}
    limits = {keys.seat_resource(1): "1"}
    return slim_pod(
        {
            "metadata": {**meta, **({"ownerReferences": owner} if owned else {}), **more},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "c", "resources": {"limits": limits}}],
            },
            "status": {"phase": phase},
        }
    )


def leaving(uid: str = "u1", **more: Any) -> Json:
    return pod(uid, deletionTimestamp=STAMP, **more)


def failed(reason: str, at: str = "") -> Json:
    told = [{"manager": "kubelet", "operation": "Update", "subresource": "status", "time": at}]
    found = pod(phase="Failed", managedFields=told if at else [])
    found["status"]["reason"] = reason
    return found


class World:
    """The API server and the registry."""

    def __init__(self) -> None:
        self.now, self.away, self.off = 1000.0, "node n1 is not ready", ""
        self.asked: list[Json] = []
        self.refuses: Exception | None = None
        self.spared = [""]
        self.stops: list[tuple[str, wire.Stop]] = []
        self.entries: list[wire.Entry] = []
        self.unknown = False
        self.claim: Json = {}
        self.queue = Queue(lambda: self.now)
        self.lost = LostPods(self.queue.add, lambda: self.now)
        self.requests: Requests[Request] = Requests(CHECKPOINT, lambda _key: None)
        parts: Any = (self.queue, self.lost, self.requests, self, Open())
        self.worker = LostWorker(*parts)

    # --- Cluster
    def is_away(self, _node: str) -> str:
        return self.away

    def is_off(self, _node: str) -> str:
        return self.off

    def ask(self, namespace: str, body: Json) -> bool:
        if self.refuses and body["spec"]["pod"] not in self.spared:
            raise self.refuses
        self.asked.append(body)
        meta = {"namespace": namespace, "uid": "r1", "resourceVersion": "1"}
        meta["creationTimestamp"] = STAMP
        self.item = {**body, "metadata": {**body["metadata"], **meta}}
        self.item["spec"]["requestedBy"] = keys.CONTROLLER_USER
        self.requests.on_event("ADDED", self.item)
        return True

    def pinned(self) -> None:
        """The other worker has written what the request is about."""
        status = Status("u1", "n1", operation_name("r1"), owner="rs")
        meta = {**self.item["metadata"], "resourceVersion": "2"}
        told = dump_status(status, {}, 1, self.now)
        self.requests.on_event("MODIFIED", {**self.item, "metadata": meta, "status": told})

    # --- Registry
    def stopped(self, _namespace: str, uid: str, told: wire.Stop, _limit: float) -> None:
        self.stops.append((uid, told))
        if self.unknown:
            raise NotFoundError("there is no such pod")

    def pod(self, namespace: str, uid: str, _limit: float) -> wire.Pod:
        if self.unknown:
            raise NotFoundError("there is no such pod")
        return wire.Pod(namespace=namespace, uid=uid, **self.claim)

    def get(self, artifact: str, _limit: float) -> wire.Entry:
        found = [one for one in self.entries if one.id == artifact]
        if not found:
            raise NotFoundError("it is not known")
        return found[0]

    def page(self, wanted: wire.Filter, _limit: float) -> wire.Page:
        assert (wanted.namespace, wanted.pod_uid, wanted.place) == ("shop", "u1", Tier.OBJECT)
        return wire.Page(items=self.entries)

    def keep(self, number: int, place: Tier, state: wire.CopyState) -> None:
        where: Json = {"store": "s3"} if place is Tier.OBJECT else {"node": "n1"}
        copy = wire.KnownCopy(place=place, state=state, size=7, told_ms=1, **where)
        made: Json = {"digest": "0" * 64, "pod": "a", "pod_uid": "u1", "size": 7}
        named: Json = {"id": ID.format(number), "namespace": "shop"}
        times: Json = {"created_ms": number, "recorded_ms": number}
        self.entries.insert(0, wire.Entry(**made, **named, **times, copies=[copy]))


@pytest.fixture
def world() -> World:
    return World()


def looks(world: World) -> int:
    """How many looks are due now."""
    found = 0
    while len(world.queue):
        key = world.queue.get()
        assert key == SPACE
        world.worker.look(key)
        world.queue.done(key)
        found += 1
    return found


def test_a_pod_that_goes_while_its_node_is_away_gets_a_request_once(world: World) -> None:
    world.lost.on_event("ADDED", pod())
    assert looks(world) == 0
    world.lost.on_event("MODIFIED", leaving())
    world.lost.on_event("MODIFIED", leaving())
    assert looks(world) == 1
    (body,) = world.asked
    assert body["metadata"] == {"name": "lost-u1"}
    assert (body["spec"]["pod"], body["spec"]["mode"], body["spec"]["tier"]) == (
        *("a", "Evict"),
        "object",
    )
    (seen,) = world.requests.all()
    assert world.lost.pinned(seen) == PodFacts("u1", "n1", seat=True, ended=False, owner="rs")
    world.now += 2
    assert looks(world) == 1
    assert len(world.asked) == 1
    world.pinned()
    world.now += 2
    assert looks(world) == 1
    assert world.lost.pinned(seen) is None, "the request says it by itself now"
    world.now += 2
    assert looks(world) == 0


def test_a_pod_that_vanishes_with_its_node_is_one(world: World) -> None:
    world.lost.on_event("DELETED", pod())
    assert looks(world) == 1
    assert len(world.asked) == 1


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        ("MODIFIED", pod()),
        ("MODIFIED", leaving(owned=False)),
        ("DELETED", pod(phase="Succeeded")),
        ("MODIFIED", pod(phase="Failed")),
        ("MODIFIED", failed("DeadlineExceeded")),
    ],
)
def test_who_is_none(world: World, kind: str, item: Json) -> None:
    world.lost.on_event(kind, item)
    looks(world)
    assert not world.asked


def test_a_pod_of_a_node_that_is_well_is_deleted_as_somebody_wants(world: World) -> None:
    world.away = ""
    world.lost.on_event("MODIFIED", leaving())
    assert looks(world) == 1
    assert not world.asked
    assert world.lost.of("shop") == []


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "NodeShutdown", "Evicted"])
def test_one_that_its_kubelet_has_failed_is_lost_wherever_it_was(world: World, reason: str) -> None:
    world.away = ""
    world.lost.on_event("MODIFIED", failed(reason))
    looks(world)
    assert len(world.asked) == 1


def test_what_may_not_be_asked_for_holds_up_no_other_and_old_news_is_none(world: World) -> None:
    world.refuses = RefusedError("exceeded quota")
    world.lost.on_event("MODIFIED", leaving())
    assert looks(world) == 1
    assert world.lost.of("shop") == []
    world.refuses = None
    world.lost.on_event("MODIFIED", leaving("u2"))
    world.now += 601
    looks(world)
    assert not world.asked, "a replica that leads only now knows nothing of that node then"


@pytest.mark.parametrize(
    ("reason", "ended", "asks"),
    [
        (Reason.AGENT_UNREACHABLE, 0.0, 1),
        (Reason.EVICTED, 900.0, 0),
        (Reason.DEADLINE_EXCEEDED, 900.0, 1),
    ],
)
def test_what_was_evicted_with_its_state_is_not_lost(
    world: World, reason: Reason, ended: float, asks: int
) -> None:
    """Its node may go right after."""
    world.ask("shop", to_evict("evict-u1-1", "a", 60, None))
    status = Status("u1", "n1", operation_name("r1"), ended_at=ended, reason=reason, owner="rs")
    meta = {**world.item["metadata"], "resourceVersion": "2"}
    told = dump_status(status, {}, 1, world.now)
    world.requests.on_event("MODIFIED", {**world.item, "metadata": meta, "status": told})
    world.asked.clear()
    world.lost.on_event("DELETED", pod())
    looks(world)
    assert len(world.asked) == asks


@pytest.mark.parametrize(
    "item",
    [
        failed("Evicted", "2026-01-01T00:00:00Z"),
        pod(deletionTimestamp="2026-01-01T00:00:30Z", deletionGracePeriodSeconds=30),
    ],
    ids=["failed", "deleted"],
)
@pytest.mark.parametrize(("passed", "asks"), [(599, 1), (601, 0)])
def test_a_controller_that_starts_knows_since_when_a_pod_goes(
    world: World, item: Json, passed: int, asks: int
) -> None:
    world.now = 1767225600.0 + passed
    world.lost.on_event("ADDED", item)
    looks(world)
    assert len(world.asked) == asks
    world.lost.on_event("DELETED", item)
    looks(world)
    vanishes = item["status"]["phase"] != "Failed"
    assert len(world.asked) == (asks or vanishes), "of a failed one its end is no news"


def test_what_an_agent_that_is_well_puts_away_is_waited_for(world: World) -> None:
    world.away = ""
    world.ask("shop", to_evict("evict-u1-1", "a", 60, None))
    world.pinned()
    world.asked.clear()
    world.lost.on_event("MODIFIED", failed("NodeShutdown"))
    looks(world)
    world.now += 2
    assert looks(world) == 1, "its eviction is under way"
    assert not world.asked
    status = Status("u1", "n1", ended_at=world.now, reason=Reason.FAILED, owner="rs")
    meta = {**world.item["metadata"], "resourceVersion": "3"}
    told = dump_status(status, {}, 1, world.now)
    world.requests.on_event("MODIFIED", {**world.item, "metadata": meta, "status": told})
    world.now += 2
    looks(world)
    assert len(world.asked) == 1


def test_what_fails_for_one_pod_holds_up_no_other(world: World) -> None:
    world.refuses, world.spared = RetryableError("the API server has too much to do"), ["b"]
    world.lost.on_event("MODIFIED", leaving("u1"))
    world.lost.on_event("MODIFIED", leaving("u2", name="b"))
    with pytest.raises(RetryableError):
        world.worker.look(SPACE)
    assert [one["metadata"]["name"] for one in world.asked] == ["lost-u2"]
    world.refuses = None
    world.worker.look(SPACE)
    assert [one["metadata"]["name"] for one in world.asked] == ["lost-u2", "lost-u1"]


def test_a_replica_that_does_not_lead_forgets_them_too(world: World) -> None:
    for number in range(3):
        world.lost.on_event("DELETED", pod(f"u{number}"))
        world.now += 700
    kept = world.lost._replaced["shop"]
    assert list(kept) == ["u2"]


def test_nobody_continues_from_a_templates_pod(world: World) -> None:
    item = leaving()
    item["metadata"]["ownerReferences"][0]["kind"] = keys.SNAPSHOT_TEMPLATE_KIND
    world.lost.on_event("MODIFIED", item)
    assert looks(world) == 0


# --- what is left --------------------------------------------------------------------------------

REQUEST = Request(
    *("r1", "shop", "lost-u1", "a", Mode.EVICT, Tier.OBJECT, keys.CONTROLLER_USER, 0.0, 60.0),
    keep_s=None,
    status=Status("u1", "n1", operation_name("r1"), owner="rs"),
)
GOES = PodFacts("u1", "n1", seat=True, ended=False, leaving=True)
GONE, OTHER = None, replace(GOES, uid="u2", leaving=False)


@pytest.fixture
def remains(world: World) -> Remains:
    found: Any = Remains(world, lambda: world)  # type: ignore[arg-type, return-value]
    return found  # type: ignore[no-any-return]


def test_of_a_node_that_is_off_the_newest_in_the_store_is_left(
    world: World, remains: Remains
) -> None:
    world.off = "node n1 has the taint out-of-service"
    verified = wire.CopyState.VERIFIED
    world.keep(1, Tier.OBJECT, verified)
    world.keep(2, Tier.OBJECT, verified)
    world.keep(3, Tier.NVME, verified)
    world.keep(4, Tier.OBJECT, next(one for one in wire.CopyState if one is not verified))
    for pod_now in (GOES, GONE, OTHER, replace(GOES, leaving=False, ended=True)):
        assert remains.of(REQUEST, pod_now) == Remnant(
            world.off, Outcome(ID.format(2), "object", 7)
        )
    uid, told = world.stops[0]
    assert (uid, told.proof, told.why) == ("u1", wire.Proof.OUT_OF_SERVICE, world.off)


def test_what_nothing_proves_is_not_left(world: World, remains: Remains) -> None:
    world.keep(1, Tier.OBJECT, wire.CopyState.VERIFIED)
    assert remains.of(REQUEST, GOES) is None, "its node is only away"
    world.off = "node n1 is gone"
    assert remains.of(REQUEST, replace(GOES, leaving=False)) is None, "nobody deletes it"
    assert world.stops == []


def test_a_lost_pod_that_has_ended_leaves_what_it_has_whose_stop_its_agent_proves(
    world: World, remains: Remains
) -> None:
    world.keep(1, Tier.OBJECT, wire.CopyState.VERIFIED)
    for pod_now in (GONE, replace(GOES, ended=True)):
        left = remains.of(REQUEST, pod_now)
        assert left == Remnant("the pod has ended", Outcome(ID.format(1), "object", 7))
    assert world.stops == [], "the controller has seen nothing of that"
    drained = replace(REQUEST, name="evict-u1-1", by=keys.WEBHOOK_USER)
    assert remains.of(drained, GONE) is None, "who drains has it deleted"
    claimed = replace(REQUEST, by="ann")
    assert remains.of(claimed, GONE) is None, "anybody may call a request so"


CLAIM = {"successor": "u2", "successor_node": "n2"}
CONTINUES = "pod u2 on node n2 continues with "


def test_of_a_pod_that_has_a_successor_what_was_claimed_is_left(
    world: World, remains: Remains
) -> None:
    """Though the successor has continued, and nobody knows of the state any more."""
    world.off, verified = "node n1 is gone", wire.CopyState.VERIFIED
    world.claim = {**CLAIM, "artifact": ID.format(1)}
    told = CONTINUES + ID.format(1)
    gone = Remnant(world.off, Outcome(ID.format(1), "object", 0), told)
    assert remains.of(REQUEST, GONE) == gone
    world.keep(1, Tier.OBJECT, verified)
    world.keep(2, Tier.OBJECT, verified)
    there = Remnant(world.off, Outcome(ID.format(1), "object", 7), told)
    assert remains.of(REQUEST, GONE) == there
    world.entries.clear()
    world.keep(1, Tier.NVME, verified)
    near = Remnant(world.off, Outcome(ID.format(1), "nvme", 7), told)
    assert remains.of(REQUEST, GONE) == near, "it has moved, and never was in the store"


def test_of_what_its_successor_let_go_of_what_people_keep_is_left(
    world: World, remains: Remains
) -> None:
    world.off, world.claim = "node n1 is gone", CLAIM
    told = CONTINUES + "its state"
    removed = Remnant(world.off, Outcome("", "object", 0), told)
    assert remains.of(REQUEST, GONE) == removed, "people have removed it since"
    world.keep(1, Tier.OBJECT, wire.CopyState.VERIFIED)
    kept = Remnant(world.off, Outcome(ID.format(1), "object", 7), told)
    assert remains.of(REQUEST, GONE) == kept


def test_a_pod_that_claimed_itself_has_no_successor(world: World, remains: Remains) -> None:
    world.off = "node n1 is gone"
    world.claim = {"successor": "u1", "successor_node": "n1", "artifact": ID.format(1)}
    left = remains.of(REQUEST, GONE)
    assert left is not None
    assert left.outcome is None


def test_without_artifacts_or_a_registry(world: World, remains: Remains) -> None:
    world.off, world.unknown = "node n1 is gone", True
    left = remains.of(REQUEST, GONE)
    assert left is not None
    assert left.outcome is None
    assert "no verified artifact" in left.why
    alone: Any = Remains(world, None)  # type: ignore[arg-type]
    assert alone.of(REQUEST, GOES) is None, "its agent may answer"
    nothing = alone.of(REQUEST, GOES, silent=True)
    assert nothing.outcome is None
    assert "without a registry" in nothing.why
    drained = replace(REQUEST, name="evict-u1-1", by=keys.WEBHOOK_USER)
    assert alone.of(drained, GOES, silent=True) is None
