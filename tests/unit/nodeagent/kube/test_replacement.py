"""Pods that the kubelet failed for good are marked, once, and nobody else is."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.kube.replacement import Replacements

ONE = "kyb.ai/gpu-1x-seat"
MESSAGE = (
    "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
    f"{ONE}, which is unexpected"
)


class Notices:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []
        self.marks: list[tuple[str, str]] = []

        self.failed: list[tuple[str, str]] = []
        self.ended: list[str] = []

    def fails(self, pod: Any, why: str) -> None:
        self.failed.append((pod.uid, why))

    def told_pod(self, pod: Any, kind: str, reason: str, sentence: str) -> None:
        self.events.append((str(pod), kind, reason, sentence))

    def mark_failed(self, pod: Any, sentence: str) -> None:
        self.marks.append((pod.uid, sentence))


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def replacements(notices: Notices) -> Replacements:
    return Replacements(notices, notices.fails, notices.ended.append)


def pod(**status: Any) -> dict[str, Any]:
    failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": MESSAGE}
    return {
        "metadata": {"namespace": "default", "name": "a", "uid": "u1"},
        "spec": {"containers": [{"name": "m", "resources": {"limits": {ONE: "1"}}}]},
        "status": failed | status,
    }


def test_a_pod_that_found_no_seat_is_marked_with_an_event(replacements, notices) -> None:
    replacements.event("ADDED", pod())
    ((about, kind, reason, sentence),) = notices.events
    assert (about, kind, reason) == ("default/a", "Warning", "SeatsNotThere")
    assert f"no {ONE} was there" in sentence
    assert "create it again" in sentence
    assert notices.marks == [("u1", sentence)]


ENDED = (
    "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: "
    "code = Unavailable desc = error reading from server: EOF, which is unexpected"
)
"""The kubelet's word for a plugin that is killed while it is asked."""


def test_a_plugin_that_ends_while_it_is_asked_is_ours_if_no_other_can_be(
    replacements, notices
) -> None:
    other = pod(message=ENDED)
    limits = {ONE: "1", "example.com/nic": "1"}
    other["spec"] = {"containers": [{"name": "m", "resources": {"limits": limits}}]}
    replacements.event("ADDED", other)
    assert notices.marks == []
    replacements.event("MODIFIED", pod(message=ENDED))
    assert [uid for uid, _ in notices.marks] == ["u1"]


def test_it_is_marked_once_whatever_the_watch_repeats(replacements, notices) -> None:
    for kind in ("ADDED", "MODIFIED", "MODIFIED"):
        replacements.event(kind, pod())
    assert len(notices.events) == len(notices.marks) == 1
    replacements.event("DELETED", pod())
    replacements.event("ADDED", pod())
    assert len(notices.events) == 2


def test_an_agent_that_restarts_does_not_mark_it_again(replacements, notices) -> None:
    replacements.event("ADDED", pod(conditions=[{"type": "kyb.ai/replace", "status": "True"}]))
    assert notices.events == []


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"conditions": [{"type": "kyb.ai/replace", "status": "True"}]}, True),
        ({"reason": "NodeShutdown"}, True),
        ({"reason": ""}, False),
        ({"phase": "Running"}, False),
    ],
)
def test_that_a_pod_was_failed_by_its_kubelet_is_told_once(
    replacements, notices, status, told
) -> None:
    for kind in ("ADDED", "MODIFIED"):
        replacements.event(kind, pod(**status))
    assert [uid for uid, _ in notices.failed] == (["u1"] if told else [])


def test_it_is_known_which_pods_are_there_and_which_have_ended(replacements, notices) -> None:
    replacements.event("ADDED", pod(phase="Running"))
    assert (replacements.there, notices.ended) == ({"u1"}, [])
    replacements.event("MODIFIED", pod(phase="Succeeded"))
    assert (replacements.there, notices.ended) == (set(), ["u1"])
    replacements.event("DELETED", pod(phase="Running"))
    assert (replacements.there, notices.ended) == (set(), ["u1", "u1"])


def test_the_owner_who_replaces_it_is_named(replacements, notices) -> None:
    owned = pod()
    owned["metadata"]["ownerReferences"] = [
        {"kind": "Node", "name": "n1"},
        {"kind": "ReplicaSet", "name": "toy-5d", "controller": True},
    ]
    replacements.event("ADDED", owned)
    assert notices.marks[0][1].endswith("ReplicaSet toy-5d makes another one")


@pytest.mark.parametrize(
    "other",
    [
        pod(phase="Running"),
        pod(reason="Evicted"),
        pod(message="Allocate failed due to no healthy devices present: example.com/nic"),
        pod() | {"spec": {"containers": [{"name": "m"}]}},
        pod() | {"status": {}},
    ],
    ids=["runs", "evicted", "another device", "no seat", "no status"],
)
def test_other_pods_are_left_alone(replacements, notices, other) -> None:
    replacements.event("ADDED", other)
    assert notices.events == notices.marks == []
