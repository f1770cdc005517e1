"""A SnapshotTemplate from its pod to its artifact, with a controller that may die at any act."""

from __future__ import annotations

import copy
import itertools
import json

import pytest

from controller.base.kinds import CHECKPOINT
from controller.base.known import Nodes, Requests
from controller.base.queue import Queue
from controller.templates import Templates, TemplateWorker
from kybernate import keys
from kybernate.api.events import stamp
from kybernate.api.watched.nodefacts import slim_node
from kybernate.api.watched.slim import slim_pod, slim_request
from kybernate.core.requests.template import KEPT_S, TemplateReason
from kybernate.errors import ConflictError, RefusedError, RetryableError
from kybernate.runtime.lead import Open

NOW = 1_767_225_600.0
STAMP = "2026-01-01T00:00:00Z"
KEY = ("shop", "birch")
SEAT = {keys.seat_resource(1): "1"}


class KilledError(Exception):
    """The controller's process is gone."""


def node(name, product="H100", driver="580.1"):
    status = {"gpus": [{"product": product}], "driver": {"version": driver}}
    return {"metadata": {"name": name, "uid": name}, "status": status}


def container(image="llm:1"):
    return {
        "name": "main",
        "image": image,
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": SEAT},
    }


def template(**spec):
    meta = {"namespace": "shop", "name": "birch", "uid": "u-t", "generation": 1}
    pod = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [container()]}}
    warm = [{"post": "/v1/completions", "body": {"prompt": "hello"}}]
    return {
        "metadata": {**meta, "resourceVersion": "1"},
        "spec": {"template": pod, "warmUp": warm, **spec},
    }


class World:
    """An API server with a template, and an agent. Of the controller's acts the one of number
    `dies` kills it, before it has come to pass or after."""

    def __init__(self, dies=-1, *, after=False):
        self.now, self.dies, self.after = NOW, dies, after
        self.item, self.nodes = template(), {"n1": node("n1"), "n2": node("n2")}
        self.pods, self.requests, self.dropped, self.acts = {}, {}, [], 0
        self.made, self.asked, self.refuses, self.away = [], [], "", False
        self.versions, self.events, self.full = itertools.count(2), [], ""
        self.begin()

    def begin(self):
        """Another controller, which lists what there is."""
        queue = Queue(lambda: self.now)
        self.queue = queue
        self.templates = Templates(queue.add)
        self.nodes_seen = Nodes(self.templates.touch)
        self.seen = Requests(
            CHECKPOINT, lambda _: None, lambda one: self.templates.touch(one.namespace)
        )
        self.worker = TemplateWorker(
            *(queue, self.templates, self.seen, self.nodes_seen, self, self),
            *(Open(), "sidecar:1", lambda: self.now),
        )
        self.watch()

    def watch(self):
        """Events of all that there is."""
        for one in self.nodes.values():
            self.nodes_seen.on_event("ADDED", slim_node(one))
        self.templates.on_event("ADDED", copy.deepcopy(self.item))
        for one in self.pods.values():
            self.templates.on_pod("ADDED", slim_pod(one))
        for one in self.requests.values():
            self.seen.on_event("ADDED", slim_request(one))

    def look(self, times=1):
        for _ in range(times):
            try:
                self.worker.look(KEY)
            except KilledError:
                self.dies = -1
                self.begin()

    def run(self, times=12):
        """Pods become ready, and requests are sealed, as the cluster has them."""
        for _ in range(times):
            self.look()
            for one in self.pods.values():
                if one["status"].get("phase") is None:
                    ready(one)
            for one in self.requests.values():
                if "status" not in one:
                    seal(one, self.pods[one["spec"]["pod"]]["metadata"]["uid"], self.now)
            self.watch()

    @property
    def status(self):
        return self.item.get("status", {})

    @property
    def told(self):
        (condition,) = self.status["conditions"]
        return condition["status"], condition["reason"], condition["message"]

    def _act(self, what):
        self.acts += 1
        if self.acts - 1 != self.dies:
            return what()
        if self.after:
            what()
        raise KilledError

    # --- Cluster
    def create(self, path, body):
        return self._act(lambda: self._create(path, copy.deepcopy(body)))

    def whole_pod(self, _namespace, name):
        return copy.deepcopy(self.pods.get(name))

    def _create(self, path, body):
        name, those = body["metadata"]["name"], self.requests if "kyb.ai" in path else self.pods
        refused = self.full if those is self.requests else self.refuses
        if refused:
            raise RefusedError(refused)
        if name in those:
            return False
        (self.asked if "kyb.ai" in path else self.made).append(name)
        body["metadata"] |= {
            "uid": f"u-{name}",
            "namespace": "shop",
            "resourceVersion": "1",
            "creationTimestamp": stamp(self.now),
        }
        if those is self.requests:
            body["spec"]["requestedBy"] = keys.CONTROLLER_USER
        else:
            body["status"] = {}
        those[name] = body
        return True

    def end_pod(self, _namespace, name, uid):
        def end():
            if self.pods.get(name, {}).get("metadata", {}).get("uid") == uid:
                self.templates.on_pod("DELETED", slim_pod(self.pods.pop(name)))

        self._act(end)

    def remove(self, request):
        def remove():
            item = self.requests.pop(request.name, None)
            if item is not None:
                self.seen.on_event("DELETED", slim_request(item))

        self._act(remove)

    def write_status(self, _path, version, status):
        def write():
            if version != self.item["metadata"]["resourceVersion"]:
                raise ConflictError("changed")
            merge(self.item.setdefault("status", {}), status)
            self.item["metadata"]["resourceVersion"] = str(next(self.versions))
            return copy.deepcopy(self.item)

        return self._act(write)

    def say(self, about, reason, _message, *, warning):
        assert about["kind"] == keys.SNAPSHOT_TEMPLATE_KIND
        self.events.append((reason, warning))

    # --- Agents
    def drop(self, _node, name, _why):
        if self.away:
            raise RetryableError("the agent is away")
        self._act(lambda: self.dropped.append(name))


def merge(into, given):
    for name, value in given.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


def ready(pod, image="llm@sha256:1", on="n1"):
    pod["spec"]["nodeName"] = on
    runs = {"name": "main", "imageID": image, "state": {"running": {}}}
    condition = {"type": "Ready", "status": "True"}
    pod["status"] = {"phase": "Running", "containerStatuses": [runs], "conditions": [condition]}


def seal(request, uid, now, reason="Sealed", message="it is kept"):
    done = "True" if reason == "Sealed" else "False"
    request["status"] = {
        "podUID": uid,
        "node": "n1",
        "operation": f"ckpt-{request['metadata']['uid']}",
        "completionTime": stamp(now),
        "artifact": {"name": f"shop/{request['spec']['pod']}@1", "tier": "object", "bytes": 7},
        "conditions": [{"type": "Complete", "status": done, "reason": reason, "message": message}],
    }


def test_a_pod_is_made_kept_and_ended():
    world = World()
    world.look()
    assert world.status["build"]["number"] == 1
    world.watch()
    world.look()
    (pod,) = world.pods.values()
    assert pod["metadata"]["name"] == world.status["build"]["pod"]
    main, warm = pod["spec"]["containers"]
    assert main == container()
    (argument,) = warm["args"]
    assert json.loads(argument.removeprefix("--warm-up=")) == {
        "port": 8000,
        "ready": "",
        "requests": [["POST", "/v1/completions", '{"prompt": "hello"}']],
        "within": 1800,
    }
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["metadata"]["annotations"] == {keys.TURN: "always"}
    world.run()
    (request,) = world.asked
    assert world.told == ("True", "Ready", f"pods start from shop/{request}@1")
    assert world.templates.number(TemplateReason.READY) == 1
    assert world.templates.number(TemplateReason.STARTING) == 0
    assert world.pods == {}
    assert world.requests[request]["spec"]["mode"] == "Snapshot"
    assert world.requests[request]["spec"]["tier"] == "object"
    assert "build" not in world.status
    assert world.events == [("Starting", False), ("Saving", False), ("Ready", False)]
    made = world.status["artifact"]["madeOn"]
    assert (made["image"], made["product"], made["driver"]) == ("llm@sha256:1", "H100", "580.1")
    acts = world.acts
    world.run()
    assert world.acts == acts, "nothing is left to do"


@pytest.mark.parametrize("after", [False, True])
def test_whenever_it_dies_the_next_controller_comes_to_the_same_end(after):
    whole = World()
    whole.run()
    for dies in range(whole.acts):
        world = World(dies, after=after)
        world.run(16)
        assert (world.made, world.asked) == (whole.made, whole.asked), dies
        assert world.status["artifact"] == whole.status["artifact"], dies
        assert (world.pods, world.dropped, world.dies) == ({}, [], -1), dies


def changed(world, what):
    if what == "spec":
        spec = world.item["spec"]["template"]["spec"]
        spec["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    elif what in {"driver", "product"}:
        world.nodes = {n: node(n, **{what: "other"}) for n in world.nodes}
    else:
        # A pod that asks for it, on a node that has pulled another image under its name.
        pod = {
            "metadata": {
                "namespace": "shop",
                "name": "a",
                "uid": "a",
                "creationTimestamp": STAMP,
                "annotations": {keys.RESTORE_FROM: "template/birch"},
            },
            "spec": {"containers": [container()]},
            "status": {},
        }
        ready(pod, "llm@sha256:2")
        world.pods["a"] = pod


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("what", ["spec", "driver", "product", "image"])
def test_what_changes_has_it_made_again_and_the_old_one_kept_until_then(what, after):
    def until_second(dies):
        world = World()
        world.run()
        world.acts, world.dies, world.after = 0, dies, after
        first = world.status["artifact"]["name"]
        changed(world, what)
        world.now += 86_400
        world.watch()
        world.look(2)
        assert world.told[0] == "True"
        assert world.status["artifact"]["name"] == first, "it is there until the next one is"
        world.run(16)
        world.now += KEPT_S + 61
        world.run()
        return world

    whole = until_second(-1)
    assert whole.status["artifact"]["name"] == f"shop/{whole.asked[1]}@1"
    for dies in range(whole.acts):
        world = until_second(dies)
        assert world.asked == whole.asked, (what, dies)
        assert len(world.made) == 2
        assert set(world.dropped) == {f"ckpt-u-{world.asked[0]}"}
        assert list(world.requests) == [world.asked[1]]
        assert set(world.pods) <= {"a"}


def test_the_old_one_stays_for_pods_that_wait_to_start_from_it():
    world = World()
    world.run()
    changed(world, "spec")
    world.now += 86_400
    world.watch()
    world.run()
    assert len(world.requests) == 2
    world.now += KEPT_S - 120
    world.run()
    assert world.dropped == []
    world.away = True
    world.now += 600
    world.run()
    assert len(world.requests) == 2, "what its agent could not drop is still told of"
    world.away = False
    world.run()
    assert len(world.requests) == len(world.dropped) == 1


def test_an_image_that_only_other_nodes_have_is_tried_for_once():
    world = World()
    changed(world, "image")
    world.run(20)
    # Its own pods come to run sha256:1, on another node.
    assert len(world.made) == 2
    world.run(20)
    assert len(world.made) == 2


def test_of_two_drivers_that_counts_which_more_nodes_have():
    world = World()
    world.run()
    world.nodes |= {"n2": node("n2", driver="590")}
    world.watch()
    world.run()
    assert len(world.made) == 1
    world.nodes |= {"n3": node("n3", driver="590")}
    world.watch()
    world.run()
    assert len(world.made) == 2


@pytest.mark.parametrize(
    ("breaks", "reason", "says"),
    [
        ("exit", "PodFailed", "container kyb-warm-up ended with 1: GET / was answered with 500"),
        ("pod", "PodFailed", "it has ended (Failed)"),
        ("late", "DeadlineExceeded", "was not ready and kept within 1800 s"),
        ("save", "NotSaved", "no room"),
    ],
)
def test_what_fails_is_told_and_tried_again_later_each_time(breaks, reason, says):
    world = World()
    for pause in (60, 120, 240):
        world.watch()
        world.look(2)
        world.watch()
        (pod,) = world.pods.values()
        if breaks == "exit":
            said = "GET / was answered with 500"
            ended = {"terminated": {"exitCode": 1, "message": said}}
            pod["status"] = {
                "phase": "Running",
                "containerStatuses": [{"name": "kyb-warm-up", "state": ended}],
            }
        elif breaks == "pod":
            pod["status"] = {"phase": "Failed"}
        elif breaks == "late":
            world.now += 10_000
        else:
            ready(pod)
            world.watch()
            world.look(2)
            (request,) = world.requests.values()
            seal(request, pod["metadata"]["uid"], world.now, "Failed", "no room")
        world.watch()
        world.look()
        assert world.told[:2] == ("False", reason)
        assert says in world.told[2]
        assert f"tried again in {pause} s" in world.told[2]
        assert world.events[-1] == (reason, True)
        world.look()
        assert (world.pods, world.requests) == ({}, {})
        world.now += pause - 1
        world.look()
        assert world.pods == {}
        world.now += 2


def test_a_pod_that_is_not_let_in_is_told_of():
    world = World()
    world.refuses = "exceeded quota: pods"
    world.look(2)
    assert world.told[:2] == ("False", "PodRefused")
    assert "exceeded quota: pods" in world.told[2]


def test_a_pod_that_has_a_build_s_name_holds_up_that_build_alone():
    other = World()
    other.look(2)
    (name,) = other.made
    world = World()
    world.pods[name] = copy.deepcopy(other.pods[name])
    world.pods[name]["metadata"] |= {"uid": "mallory", "ownerReferences": []}
    world.look(2)
    assert world.told[:2] == ("False", "PodRefused")
    assert f"there is a pod {name}, which isn't this template's" in world.told[2]
    world.now += 61
    world.run()
    assert world.told[:2] == ("True", "Ready")
    assert world.pods[name]["metadata"]["uid"] == "mallory"


def test_a_request_that_may_not_be_made_is_told_of():
    world = World()
    world.full = "exceeded quota: requests"
    world.run(6)
    assert world.told[:2] == ("False", "Saving")
    assert "can't be made: exceeded quota: requests" in world.told[2]
    world.full = ""
    world.run(6)
    assert world.told[:2] == ("True", "Ready")


def test_a_pod_of_another_namespace_that_names_the_template_is_not_its_own():
    world = World()
    world.look(2)
    (pod,) = copy.deepcopy([*world.pods.values()])
    pod["metadata"] |= {"namespace": "mallory", "uid": "forged"}
    pod["status"] = {"phase": "Failed"}
    world.templates.on_pod("ADDED", slim_pod(pod))
    world.watch()
    world.look(2)
    assert world.told[1] == "Starting"
    world.run()
    assert world.told[:2] == ("True", "Ready")
    assert len(world.made) == 1


def test_where_there_are_no_such_gpus_nothing_is_made():
    world = World()
    world.item["spec"]["template"]["metadata"]["annotations"] = {keys.GPU_PRODUCT: "B200"}
    world.watch()
    world.look(3)
    assert (world.made, world.told[1]) == ([], "NoGPUs")
    assert "product B200" in world.told[2]


def test_one_of_which_no_pod_can_be_made_says_why():
    world = World()
    world.item["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
    world.watch()
    world.look(2)
    assert world.told[:2] == ("False", "Invalid")
    assert "spec.template.spec.containers: none asks for a seat; write limits" in world.told[2]


def test_pods_that_have_nothing_to_do_with_templates_are_kept_as_before():
    item = {
        "metadata": {"namespace": "shop", "name": "a", "uid": "a", "annotations": {"x": "y"}},
        "spec": {"containers": [container()]},
        "status": {"containerStatuses": [{"name": "main", "imageID": "secret"}]},
    }
    assert "secret" not in str(slim_pod(item))
