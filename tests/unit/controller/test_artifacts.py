"""Artifacts as objects: what is written of what the registry tells, and by how many calls."""

from __future__ import annotations

import threading

import pytest

from controller.base.kinds import CHECKPOINT
from controller.base.known import Requests
from controller.policies import Policies
from controller.restoring.artifacts import MOST_WRITES, Artifacts, Projection, describing
from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.api.restoring.artifacts import dump_artifact, read_artifact
from kybernate.api.watched.slim import slim_artifact, slim_pod
from kybernate.core.artifacts.listed import Listed, object_name
from kybernate.errors import DeadlineError, NotFoundError, RefusedError, RetryableError
from kybernate.runtime.lead import Open
from kybernate.types import Tier
from tests.unit.controller.test_policies import pod, policy
from tests.unit.controller.test_worker import item


def entry(number=0, namespace="shop", state="verified"):
    place = {"place": Tier.OBJECT, "store": "s3://x", "state": wire.CopyState(state), "size": 5}
    return wire.Entry(
        id=f"{namespace}/a@20260131T120000Z-{number:08x}",
        namespace=namespace,
        digest="0" * 64,
        pod="a",
        pod_uid="u1",
        size=7,
        created_ms=1000 + number,
        recorded_ms=1,
        copies=[wire.KnownCopy(told_ms=1, **place)],
    )


class World:
    """An API server that has Artifacts, and a registry."""

    def __init__(self):
        self.entries, self.calls, self.away = [], [], False
        self.artifacts, self.missing, self.refused = Artifacts(), set(), set()
        self.fence = Open()

    # --- registry
    def all(self, wanted):
        if self.away:
            raise DeadlineError("away")
        assert wanted.newest == 200
        yield from self.entries

    # --- API server
    def post(self, path, body, *, timeout):
        namespace = path.split("/")[5]
        self.calls.append(("post", namespace))
        if namespace in self.missing:
            raise NotFoundError("no such namespace")
        if {namespace, body["status"]["artifact"]} & self.refused:
            raise RefusedError("it is not allowed")
        self.put(namespace, body)

    def patch(self, path, body, *, timeout):
        self.calls.append(("patch", path.rpartition("/")[2]))
        meta = {**body["metadata"], "name": path.rpartition("/")[2]}
        self.put(path.split("/")[5], {**body, "metadata": meta})

    def delete(self, path, *, timeout):
        self.calls.append(("delete", path.rpartition("/")[2]))
        meta = {"namespace": path.split("/")[5], "name": path.rpartition("/")[2]}
        self.artifacts.on_event("DELETED", {"metadata": meta})

    def put(self, namespace, body):
        meta = {**body["metadata"], "namespace": namespace, "uid": "x"}
        self.artifacts.on_event("ADDED", slim_artifact({**body, "metadata": meta}))

    def projection(self, described=lambda one: one):
        parts = self, self.artifacts, lambda: self, lambda: described, self.fence
        return Projection(*parts, timeout=1.0, every=1.0, each=200)

    def project(self, described=lambda one: one, *, projection=None):
        (projection or self.projection(described)).project(threading.Event())
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def world():
    return World()


def test_objects_come_change_and_go_with_the_registry(world):
    world.entries = [entry(state="pending")]
    assert world.project() == [("post", "shop")]
    assert world.project() == [], "nothing is written that is there"
    world.entries = [entry()]
    name = object_name(entry().id)
    assert world.project() == [("patch", name)]
    assert world.artifacts.get(("shop", name)).tier == "object"
    world.entries = []
    assert world.project() == [("delete", name)]
    assert world.artifacts.all() == {}


def test_a_registry_that_is_away_takes_nothing_away(world):
    world.entries = [entry()]
    world.project()
    world.away = True
    with pytest.raises(DeadlineError):
        world.project()
    assert (len(world.artifacts.all()), world.calls) == (1, [])


def test_a_round_has_so_many_calls(world):
    world.entries = [entry(n, f"ns{n}") for n in range(MOST_WRITES + 5)]
    assert len(world.project()) == MOST_WRITES
    assert len(world.project()) == 5
    assert world.project() == []


def test_a_namespace_that_is_gone_costs_one_call(world):
    world.missing = {"dev"}
    world.entries = [entry(3, "dev"), entry(2, "dev"), entry(1)]
    assert world.project() == [("post", "dev"), ("post", "shop")]


def test_who_does_not_lead_writes_nothing(world):
    class Shut:
        def closed(self):
            return None

        def check(self):
            raise RetryableError("another leads")

    world.fence, world.entries = Shut(), [entry()]
    with pytest.raises(RetryableError):
        world.project()
    assert world.calls == []


def test_owner_and_policy_outlive_the_pod_and_the_request(world):
    policies = Policies(lambda _key, _after: None)
    policies.on_event("ADDED", policy("hourly"))
    owner = {"kind": "ReplicaSet", "name": "a-7f", "uid": "r", "controller": True}
    policies.on_pod("ADDED", slim_pod(pod(ownerReferences=[owner])))
    requests = Requests(CHECKPOINT, lambda _key: None)
    made = item(mode="Snapshot", requestedBy=keys.CONTROLLER_USER)
    made["metadata"]["ownerReferences"] = [{"kind": "CheckpointPolicy", "uid": "u-hourly"}]
    outcome = {"name": entry().id, "tier": "object", "bytes": 7}
    operation = f"ckpt-{made['metadata']['uid']}"
    made["status"] = {"operation": operation, "artifact": outcome}
    requests.on_event("ADDED", made)
    world.entries = [entry()]
    world.project(describing(requests, policies))
    world.project(lambda one: one)
    (found,) = world.artifacts.all().values()
    assert (found.owner, found.policy) == ("a-7f", "hourly")


def test_one_that_cannot_be_read_is_written_again(world):
    world.entries = [entry()]
    name = object_name(entry().id)
    world.artifacts.on_event("ADDED", {"metadata": {"namespace": "shop", "name": name}})
    assert world.project() == [("patch", name)]


def test_a_name_that_no_label_can_have_is_not_written_again_and_again(world):
    owner = {"kind": "ReplicaSet", "name": "a" * 99, "uid": "r", "controller": True}
    policies = Policies(lambda _key, _after: None)
    policies.on_pod("ADDED", slim_pod(pod(ownerReferences=[owner])))
    described = describing(Requests(CHECKPOINT, lambda _key: None), policies)
    world.entries = [entry()]
    assert world.project(described) == [("post", "shop")]
    assert world.project(described) == []


def test_labels_that_no_label_can_have_are_left_out():
    one = Listed(entry().id, "a" * 100, "u1", "", 7, 1000, ())
    found = dump_artifact(one)
    assert found["metadata"]["labels"][keys.OF_POD_LABEL] is None
    assert read_artifact(found) == one


def test_a_namespace_that_takes_none_keeps_no_other_from_being_written(world):
    world.refused = {"full"}
    world.entries = [entry(n, "full") for n in range(MOST_WRITES + 5, 5, -1)] + [entry(1)]
    projection = world.projection()
    world.project(projection=projection)
    assert ("post", "shop") in world.project(projection=projection)


def test_one_that_is_refused_keeps_no_other_of_its_namespace_from_being_written(world):
    world.refused = {entry(2).id}
    world.entries = [entry(2), entry(1)]
    world.project()
    assert [key[1] for key in world.artifacts.all()] == [object_name(entry(1).id)]


def test_a_time_that_no_calendar_has_keeps_none_from_being_written(world):
    late = entry(2).model_copy(update={"created_ms": wire.LARGEST})
    world.entries = [late, entry(1)]
    assert len(world.project()) == 2
    assert world.project() == []
