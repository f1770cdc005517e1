"""A look at a RestoreRequest: what the registry is asked, the pod that is made, what is written."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from controller.base.kinds import RESTORE
from controller.base.known import Requests
from controller.base.queue import Queue
from controller.base.worker import RequestWorker
from controller.restoring.artifacts import Artifacts
from controller.restoring.restores import RestoreCarrier, Sources
from controller.templates import Templates
from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.api.restoring.artifacts import dump_artifact
from kybernate.api.restoring.requests import dump_restore
from kybernate.api.watched.nodefacts import read_seat
from kybernate.api.watched.slim import slim_artifact, slim_request
from kybernate.core.artifacts.grants import Grant
from kybernate.core.artifacts.listed import Listed, object_name
from kybernate.core.requests.restore import RestoreReason
from kybernate.errors import (
    ConflictError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.runtime.lead import Open
from tests.unit.api.restoring.test_copies import admitted, written
from tests.unit.controller.lasting.test_templates import template
from tests.unit.controller.test_artifacts import entry

KEY = ("shop", "once")
NODE = {"spec": {}}


def item(namespace="shop", **spec):
    meta = {"namespace": namespace, "name": "once", "uid": "r1", "resourceVersion": "1"}
    meta |= {"generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    asked = {"source": {"pod": "a"}, "as": "template", "podName": "copy", "deadlineSeconds": 600}
    return {"metadata": meta, "spec": {**asked, **spec}}


class World:
    """The API server and the registry. `broken`: what the next calls of a kind raise."""

    def __init__(self, found=None):
        self.item = found or item()
        self.pods = {("shop", "a"): admitted(written())}
        self.seats, self.off, self.stops, self.made = {}, "", [], []
        self.broken, self.told, self.removed = {}, [], []
        self.pod_row = wire.Pod(namespace="shop", uid="u1", node="n1")
        self.grants, self.entries, self.templates = (), [entry()], []
        self.version = 1

    def fail(self, what):
        if self.broken.get(what):
            raise self.broken[what].pop()

    # --- Cluster
    def whole_pod(self, namespace, name):
        return self.pods.get((namespace, name))

    def pod(self, namespace, name):
        found = self.pods.get((namespace, name))
        return found and SimpleNamespace(uid=found["metadata"]["uid"], ended=False)

    def make_pod(self, pod):
        self.fail("make")
        meta = pod["metadata"]
        key = meta["namespace"], meta["name"]
        if key in self.pods:
            raise ConflictError("there is one")
        self.made.append(pod)
        self.pods[key] = {**pod, "metadata": {**meta, "uid": f"made-{len(self.made)}"}}
        return self.pods[key]

    def seat(self, node, uid):
        row = self.seats.get((node, uid), {})
        return read_seat({"status": {"seats": [{"uid": uid, **row}]}}, uid)

    def is_off(self, node):
        assert node == "n1"
        return self.off

    def write(self, seen, status, now):
        self.fail("write")
        if seen.version != self.item["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        self.version += 1
        meta = {**self.item["metadata"], "resourceVersion": str(self.version)}
        told = dump_restore(status, seen.status, seen.generation, now)
        self.item = {**self.item, "metadata": meta, "status": told}
        return self.item

    def remove(self, request):
        self.removed.append(request.uid)

    def tell(self, _request, reason, _message):
        self.told.append(reason)

    # --- registry
    def get(self, artifact, _deadline):
        found = [one for one in self.entries if one.id == artifact]
        if not found:
            raise NotFoundError("not known")
        return found[0]

    def latest(self, wanted, _deadline):
        self.fail("latest")
        found = [one for one in self.entries if one.pod == wanted.pod]
        if not found or wanted.namespace != "shop":
            raise NotFoundError("nothing")
        return found[-1]

    def registry_pod(self, _namespace, _uid, _deadline):
        return self.pod_row

    def stopped(self, _namespace, _uid, told, _deadline):
        self.stops.append(told)
        self.pod_row = self.pod_row.model_copy(update={"stopped": told.proof})

    # --- what is tested
    def rig(self, now=1_767_225_601.0, registry=True):
        queue, artifacts = Queue(), Artifacts()
        requests = Requests(RESTORE, queue.add)
        requests.on_event("ADDED", slim_request(self.item))
        for one in self.entries:
            made = dump_artifact(Listed(one.id, "a", "u1", "", 7, 1000, ()))
            made["metadata"] |= {"namespace": "shop", "uid": "x"}
            artifacts.on_event("ADDED", slim_artifact(made))
        client = SimpleNamespace(
            get=self.get, latest=self.latest, pod=self.registry_pod, stopped=self.stopped
        )
        known = artifacts, (lambda: client) if registry else None, lambda: self.grants
        templates = Templates(lambda *_: None)
        for one in self.templates:
            templates.on_event("ADDED", one)
        sources = Sources(*known, templates.get)
        carrier = RestoreCarrier(self, sources, Open(), lambda: now)
        return RequestWorker(carrier, queue, requests, self, Open(), lambda: now)

    def looks(self, times=3, **more):
        """Each by a controller that remembers nothing."""
        key = self.item["metadata"]["namespace"], "once"
        for _ in range(times):
            self.rig(**more).look(key)
        return self.reason

    @property
    def reason(self):
        return self.item["status"]["conditions"][0]["reason"]

    @property
    def message(self):
        return self.item["status"]["conditions"][0]["message"]


def test_from_nothing_to_restored_with_a_new_controller_for_each_look():
    world = World()
    assert world.looks(1) == "Pending"
    assert (world.item["status"]["artifact"], world.made) == (entry().id, [])
    assert world.looks(1) == "PodNotBound"
    assert world.item["status"]["podUID"] == "made-1"
    pod = world.pods["shop", "copy"]
    pod["spec"]["nodeName"] = "n1"
    world.seats["n1", "made-1"] = {"state": "waiting", "reason": "it waits its turn"}
    assert world.looks(1) == "Restoring"
    assert "it waits its turn" in world.message
    world.seats["n1", "made-1"] = {"state": "active"}
    assert world.looks(1) == "Restored"
    assert world.looks(2) == "Restored"
    assert len(world.made) == 1
    assert [str(one) for one in world.told] == ["Pending", "PodNotBound", "Restoring", "Restored"]


def test_a_seat_that_was_parked_again_has_woken_before():
    world = World()
    world.looks(2)
    world.pods["shop", "copy"]["spec"]["nodeName"] = "n1"
    world.seats["n1", "made-1"] = {"state": "parked", "wakes": 1}
    assert world.looks(1) == "Restored"


def test_killed_after_the_pod_is_made_and_before_it_is_written():
    world = World()
    world.looks(1)
    world.broken["write"] = [RetryableError("killed")]
    with pytest.raises(RetryableError):
        world.looks(1)
    assert "podUID" not in world.item["status"]
    assert world.looks(1) == "PodNotBound"
    assert (len(world.made), world.item["status"]["podUID"]) == (1, "made-1")


def test_two_that_make_it_at_once_make_one():
    world = World(item(template={"spec": {"containers": [{"name": "c", "image": "x"}]}}))
    world.looks(1)
    rig = world.rig()
    request, other = rig._requests.get(KEY).request, rig._carrier
    first = other.decided(request)
    assert first.status.pod_uid == "made-1"
    real, world.whole_pod = world.whole_pod, lambda *_: None
    try:
        with pytest.raises(ConflictError):
            other.decided(request)
    finally:
        world.whole_pod = real
    assert other.decided(request).status.pod_uid == "made-1"


def test_by_an_artifacts_name():
    older = entry(0)
    world = World(item(source={"artifact": object_name(older.id)}))
    world.entries = [older, entry(1)]
    world.looks()
    assert world.item["status"]["artifact"] == older.id
    assert world.made[0]["metadata"]["annotations"][keys.RESTORE_FROM] == older.id


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"source": {"pod": "nobody"}}, "NoArtifact"),
        ({"source": {"artifact": "nothing"}}, "NoArtifact"),
        ({"podName": "a"}, "NameTaken"),
    ],
)
def test_what_can_not_be_done(spec, reason):
    world = World(item(**spec))
    assert world.looks() == reason
    assert "completionTime" in world.item["status"]


def test_what_the_registry_has_dropped_since_is_not_restored():
    world = World(item(source={"artifact": object_name(entry().id)}))
    rig = world.rig()
    world.entries = []
    rig.look(KEY)
    assert world.reason == "NoArtifact"


def test_a_registry_that_is_away_or_unknown_is_waited_for():
    world = World()
    world.broken["latest"] = [DeadlineError("nobody answered")]
    assert world.looks(1) == "RegistryAway"
    assert world.looks(1) == "Pending"
    world = World()
    assert world.looks(1, registry=False) == "RegistryAway"
    assert "registry_url" in world.message


def test_a_source_that_is_gone_takes_a_template():
    world = World()
    world.pods["shop", "a"]["metadata"]["uid"] = "u9"
    assert world.looks() == "TemplateNeeded"
    assert world.made == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [("exceeded quota: few", "Quota"), ("no such image policy", "Refused")],
)
def test_a_pod_that_is_refused(said, reason):
    world = World()
    world.broken["make"] = [RefusedError(said)]
    assert world.looks(2) == reason
    assert said in world.message


def test_a_grant_is_needed_for_another_namespaces_and_nothing_else_is_told():
    spec = {"source": {"pod": "a", "namespace": "shop"}}
    world = World(item("dev", **spec))
    assert world.looks() == "NotGranted"
    said = world.message
    world = World(item("dev", **spec))
    world.entries = []
    assert (world.looks(), world.message) == ("NotGranted", said)
    world = World(item("dev", **spec))
    world.grants = (Grant("shop", ("dev",), ("a",)),)
    assert world.looks() == "PodNotBound"
    assert world.made[0]["metadata"]["namespace"] == "dev"


def successor():
    template = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
    return World(item(**{"as": "successor"}, template=template))


def test_a_successor_waits_until_the_pod_is_gone_and_takes_nobodys_place():
    world = successor()
    assert world.looks() == "SourceRuns"
    assert "delete it" in world.message
    del world.pods["shop", "a"]
    # Its node is there: the agent says that it has stopped, and the successor waits for that.
    assert world.looks(1) == "PodNotBound"
    assert world.stops == []
    assert world.made[0]["metadata"]["annotations"][keys.RESTORE_FROM] == "pod/u1"
    world = successor()
    world.pod_row = world.pod_row.model_copy(update={"successor": "u7", "successor_node": "n2"})
    assert world.looks() == "Taken"


def test_a_node_that_is_off_proves_that_its_pods_have_stopped_once_they_are_gone():
    world = successor()
    world.off = "node n1 has the taint node.kubernetes.io/out-of-service"
    assert world.looks() == "SourceRuns"
    assert world.stops == []
    del world.pods["shop", "a"]
    assert world.looks(1) == "PodNotBound"
    (told,) = world.stops
    assert (told.proof, told.why) == (wire.Proof.OUT_OF_SERVICE, world.off)


def test_it_goes_after_its_time():
    world = World(item(source={"pod": "nobody"}, ttlSecondsAfterFinished=5))
    world.looks(1)
    assert world.removed == []
    world.looks(1, now=1_767_225_700.0)
    assert world.removed == ["r1"]


def test_a_status_is_read_as_it_was_written():
    world = World()
    world.looks(2)
    request = RESTORE.read(world.item)
    again = dump_restore(request.status, world.item["status"], 1, 0.0)
    assert again == world.item["status"]
    assert RESTORE.read({**world.item, "status": again}) == request
    newer = replace(request.status, reason=None)
    assert dump_restore(newer, {}, 1, 0.0)["conditions"][0]["reason"] == RestoreReason.PENDING


def birch(artifact=""):
    """A SnapshotTemplate, with what it has made."""
    found = template()
    probe = {"httpGet": {"path": "/", "port": 8000}}
    found["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = probe
    status = {"artifact": {"name": artifact, "at": "2026-01-01T00:00:00Z"}} if artifact else {}
    return found | {"status": status}


@pytest.mark.parametrize("kind", ["template", "clone"])
def test_a_snapshot_templates_artifact_starts_the_pod_that_the_template_says(kind):
    world = World(item(source={"template": "birch"}, **{"as": kind}))
    assert (world.looks(1), world.made) == ("NoArtifact", []), "there is no such template"
    world = World(item(source={"template": "birch"}, **{"as": kind}))
    world.templates = [birch()]
    assert world.looks(1) == "TemplateNotReady"
    world.templates = [birch(entry().id)]
    assert world.looks(2) == "PodNotBound"
    (pod,) = world.made
    assert pod["metadata"]["annotations"][keys.RESTORE_FROM] == entry().id
    assert pod["metadata"]["annotations"][keys.RESTORE_AS] == kind
    (container,) = pod["spec"]["containers"]
    assert container["image"] == birch()["spec"]["template"]["spec"]["containers"][0]["image"]
    cut_off = kind == "clone"
    assert ("app" in pod["metadata"]["labels"], "readinessProbe" in container) == (
        not cut_off,
        not cut_off,
    )


def test_how_much_of_the_artifact_is_on_its_node_is_in_the_status():
    world = World()
    world.looks(2)
    world.pods["shop", "copy"]["spec"]["nodeName"] = "n1"
    seat = {"state": "parked", "savedBytes": 100}
    world.seats["n1", "made-1"] = {**seat, "copiedBytes": 0}
    world.looks(1)
    world.seats["n1", "made-1"] = {**seat, "copiedBytes": 40}
    world.looks(1, now=1_767_225_605.0)
    status = world.item["status"]
    assert (status["bytesDone"], status["bytesTotal"]) == (40, 100)
    assert status["estimatedCompletionTime"] == "2026-01-01T00:00:11Z"
