"""CheckpointPolicies as they come, change and go, and what an agent then believes of its pods."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.api.pods import read_pod
from kybernate.errors import RetryableError
from kybernate.runtime.policies import CheckpointPolicies
from nodeagent.kube.pods import PodCache, PodFacts
from tests.unit.k8s.script import Script, until

if TYPE_CHECKING:
    from collections.abc import Iterator


def item(name: str, version: int = 1, namespace: str = "shop", **spec: object) -> dict[str, Any]:
    meta = {"namespace": namespace, "name": name, "uid": f"u-{name}", "resourceVersion": version}
    return {"metadata": meta, "spec": {"selector": {}, **spec}}


def pod(namespace: str = "shop", **notes: str) -> dict[str, Any]:
    meta = {"namespace": namespace, "name": "a", "uid": f"u-{namespace}", "annotations": notes}
    limits = {keys.seat_resource(1): "1"}
    return {
        "metadata": {**meta, "labels": {"app": "llm"}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


ON_REQUEST = {"mode": "on-request"}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def told() -> list[int]:
    return []


@pytest.fixture
def policies(script: Script, told: list[int]) -> Iterator[CheckpointPolicies]:
    made = CheckpointPolicies(lambda: told.append(1))
    yield made
    script.feed()
    made.stop()


def turn(policies: CheckpointPolicies, namespace: str = "shop") -> str | None:
    found = policies.judge(read_pod(pod(namespace))).values.get(keys.TURN)
    return found.text if found else None


def test_they_count_from_the_list_on_and_as_they_change(
    script: Script, policies: CheckpointPolicies, told: list[int]
) -> None:
    assert turn(policies) is None
    script.listing(item("p", turn=ON_REQUEST))
    feed = script.feed()
    policies.start(script)
    policies.settle(10.0)
    assert turn(policies) == "on-request"
    assert told == [1]
    feed.send("ADDED", item("q", 2, turn={"weight": 3}, precedence=1))
    until(lambda: turn(policies) == "auto,weight=3")
    feed.send("DELETED", item("q", 3))
    until(lambda: turn(policies) == "on-request")
    feed.items.put(RetryableError("the connection broke"))
    script.watches.put(RetryableError("no connection"))
    script.feed()
    until(lambda: len(script.asked) == 4)
    assert turn(policies) == "on-request"


def test_a_policy_reaches_pods_of_its_own_namespace_alone(
    script: Script, policies: CheckpointPolicies
) -> None:
    script.listing(item("p", namespace="evil", precedence=1_000_000, turn=ON_REQUEST))
    script.feed()
    policies.start(script)
    policies.settle(10.0)
    assert turn(policies, "evil") == "on-request"
    assert turn(policies) is None


def test_one_that_can_not_be_read_is_named_and_governs_nothing(
    script: Script, policies: CheckpointPolicies, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [{"cron": "0 8 * * *", "duration": "1h", "timeZone": "Mars", "turn": ON_REQUEST}]
    script.listing(item("low", turn={"mode": "always"}), item("p", schedule=wrong, precedence=9))
    script.feed()
    with caplog.at_level(logging.WARNING):
        policies.start(script)
        policies.settle(10.0)
    assert "shop/p: spec.schedule[0]: timeZone is 'Mars'" in caplog.text
    assert turn(policies) == "always"


def test_without_an_answer_nobody_waits_for_ever(
    script: Script, policies: CheckpointPolicies
) -> None:
    policies.settle(0.05)
    assert not policies.settled()
    script.lists.put(RetryableError("no connection"))
    policies.start(script)
    policies.settle(10.0)
    assert policies.settled()
    assert "no connection" in (policies.unlisted or "")
    assert turn(policies) is None


class Node:
    """A cache of pods beside policies; the clock stands until a test moves it."""

    def __init__(self, policies: CheckpointPolicies) -> None:
        self.told: list[PodFacts] = []
        self.wall = 0.0
        gone: list[object] = []
        self.cache = PodCache(self.told.append, gone.append, policies.judge, lambda: self.wall)


def test_pods_that_run_are_told_anew_once_policies_change(
    script: Script, policies: CheckpointPolicies
) -> None:
    node = Node(policies)
    node.cache.event("ADDED", pod())
    node.cache.event("ADDED", pod("other"))
    node.cache.review()
    assert [one.weight for one in node.told] == [1.0, 1.0]
    script.listing(item("p", turn=ON_REQUEST, idle={"vram": "30s"}))
    script.feed()
    policies.start(script)
    policies.settle(10.0)
    node.cache.outdated()
    node.cache.review()
    assert [(one.ref.namespace, one.weight, dict(one.idle)) for one in node.told[2:]] == [
        ("shop", None, {"vram": 30.0}),
        ("other", 1.0, {}),
    ]
    node.cache.event("MODIFIED", pod(**{keys.TURN: "always,weight=2"}))
    assert node.told[-1].weight == 2.0
    assert node.told[-1].idle == {"vram": 30.0}
    before = len(node.told)
    node.cache.review()
    assert len(node.told) == before, "nothing changes by itself here"


def test_pods_are_told_anew_when_a_time_begins_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = CheckpointPolicies()
    schedule = [{"cron": "0 8 * * *", "duration": "10h", "turn": ON_REQUEST}]
    policies._on_event("ADDED", item("p", turn={"mode": "always"}, schedule=schedule))
    node = Node(policies)
    monkeypatch.setattr("kybernate.runtime.policies.time.time", lambda: node.wall)
    hours = 3600.0
    node.wall = 7.999 * hours
    node.cache.event("ADDED", pod())
    assert node.told[-1].weight == 1.0
    node.cache.review()
    assert len(node.told) == 1
    node.wall = 8 * hours
    node.cache.review()
    assert node.told[-1].weight is None
    node.wall = 17.999 * hours
    node.cache.review()
    assert node.told[-1].weight is None
    node.wall = 18 * hours
    node.cache.review()
    assert node.told[-1].weight == 1.0
    node.cache.event("DELETED", pod())
    before = len(node.told)
    node.wall = 32 * hours
    node.cache.review()
    assert len(node.told) == before
