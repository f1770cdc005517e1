"""Events: each sentence once, repetitions counted, and never a flood."""

from __future__ import annotations

import pytest

from nodeagent import metrics
from nodeagent.kube.events import BURST, COUNT_EVERY, FORGET_AFTER, PER_SECOND, Events


class Api:
    def __init__(self):
        self.made, self.changed = [], []

    def post(self, path, body):
        self.made.append((path, body))

    def patch(self, path, body):
        self.changed.append((path, body))


class Scene:
    def __init__(self):
        self.api, self.now = Api(), 1_700_000_000.0
        self.events = Events(lambda _, call: call(self.api), lambda: self.now, "n1")

    def tell(self, sentence="its park failed", pod="a"):
        self.events.tell("shop", {"name": pod, "uid": f"uid-{pod}"}, "Warning", "Why", sentence)


@pytest.fixture
def scene():
    return Scene()


def test_an_event_says_who_what_and_where(scene):
    scene.tell()
    ((path, body),) = scene.api.made
    assert path == "/api/v1/namespaces/shop/events"
    assert body["message"] == "its park failed"
    assert body["source"] == {"component": "kyb-agent", "host": "n1"}
    assert (body["count"], body["lastTimestamp"]) == (1, "2023-11-14T22:13:20Z")


def test_the_same_sentence_again_is_counted_now_and_then(scene):
    for _ in range(10):
        scene.tell()
        scene.now += 1
    assert (len(scene.api.made), scene.api.changed) == (1, [])
    scene.now += COUNT_EVERY
    scene.tell()
    ((path, body),) = scene.api.changed
    assert path.endswith(scene.api.made[0][1]["metadata"]["name"])
    assert body["count"] == 11
    scene.tell("another sentence")
    assert len(scene.api.made) == 2


def test_after_a_while_it_is_a_new_event(scene):
    scene.tell()
    scene.now += FORGET_AFTER + 1
    scene.tell()
    names = {body["metadata"]["name"] for _, body in scene.api.made}
    assert len(names) == 2


def test_an_object_has_only_so_many_events(scene):
    before = metrics.EVENTS_DROPPED._value.get()
    for number in range(BURST + 7):
        scene.tell(f"sentence {number}")
    assert len(scene.api.made) == BURST
    assert metrics.EVENTS_DROPPED._value.get() - before == 7
    scene.tell(pod="b")
    assert len(scene.api.made) == BURST + 1
    scene.now += 1 / PER_SECOND
    scene.tell("one more")
    assert len(scene.api.made) == BURST + 2


def test_what_is_remembered_has_a_limit(scene):
    for number in range(5000):
        scene.tell(pod=f"p{number}")
    assert len(scene.api.made) == 5000
    assert len(scene.events._told) <= 2049
    assert len(scene.events._buckets) <= 2048
