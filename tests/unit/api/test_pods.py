"""Whatever a pod is like, each service makes the same of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.http import decode
from extender.state import objects as extender
from extender.state.objects import Rules
from kybernate import keys
from kybernate.api.pods import read_pod
from kybernate.errors import ConfigError
from nodeagent.kube import pods as agent
from tests.unit.extender.objects import ONE, TWO, pod
from webhook.pods import asking, cluster, validate

NOTES = (
    *keys.USER_ANNOTATIONS,
    *keys.SYSTEM_ANNOTATIONS,
    keys.GPU_TOPOLOGY,
)
TEXTS = st.sampled_from(
    [
        *("", " ", "0", "1", "2", "1Gi", "24Gi", "lots", "G0", "30s", "kill", "keep", "nvme"),
        *("always", "always,weight=2", "vram=30s", "pod/u", "ns/p@20260131T120000Z-00c0ffee"),
        *("true", "template", "nvlink", "PCIE switch", "2026-01-02T03:04:05Z", "default", "|A"),
    ]
)
ODD = st.sampled_from([None, 0, 1, -1, 1.5, True, "", "x", [], [1], {}, {"a": 1}])
AMOUNTS = st.sampled_from(
    ["0", "1", "2", "0.0", "1000m", "-1", "x", "", 0, 1, 2, True, None, [], {}]
)
LIMITS = st.dictionaries(
    st.sampled_from([ONE, TWO, "kyb.ai/gpu-0x-seat", "nvidia.com/gpu", "cpu"]), AMOUNTS, max_size=3
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["a", "b"]),
            "resources": st.fixed_dictionaries({"limits": LIMITS | ODD}) | ODD,
            "ports": st.just([{"containerPort": 80}]) | ODD,
            "volumeMounts": st.just([{"name": "kube-api-access-x", "mountPath": "/"}]) | ODD,
        },
    )
    | ODD,
    max_size=3,
)
META = {
    "namespace": st.just("ns"),
    "name": st.just("p"),
    "uid": st.just("u"),
    "annotations": st.dictionaries(st.sampled_from(NOTES), TEXTS | ODD, max_size=6) | ODD,
    "labels": ODD,
    "creationTimestamp": TEXTS | ODD,
    "deletionTimestamp": ODD,
    "ownerReferences": st.just([{"kind": "Job", "name": "j", "controller": True}]) | ODD,
}
SPEC = {
    "containers": CONTAINERS | ODD,
    "initContainers": CONTAINERS | ODD,
    "nodeName": st.just("n1") | ODD,
    "priority": ODD,
    "schedulerName": TEXTS | ODD,
    "schedulingGates": ODD,
    "terminationGracePeriodSeconds": ODD,
}
STATUS = {"phase": st.sampled_from(["Running", "Failed"]) | ODD, "podIP": ODD, "conditions": ODD}
PODS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional=META) | ODD,
        "spec": st.fixed_dictionaries({}, optional=SPEC) | ODD,
        "status": st.fixed_dictionaries({}, optional=STATUS) | ODD,
    },
)
SEATED = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(META | {"annotations": META["annotations"]}),
        "spec": st.fixed_dictionaries(SPEC | {"containers": CONTAINERS}),
    }
)


def facts_of(raw: Any) -> tuple[agent.PodFacts | None, str]:
    try:
        return agent.read_pod(raw), ""
    except ConfigError as error:
        return None, str(error)


@given(PODS | SEATED)
def test_the_extender_and_the_agent_make_the_same_of_a_pod(raw: Any) -> None:
    placed, (facts, refusal) = extender.read_pod(raw, Rules()), facts_of(raw)
    if refusal:
        # What it restores is the agent's to judge: a pod waits for it where it is.
        assert placed.problem or refusal.startswith((keys.RESTORE_FROM, *_RESTORES))
        return
    if facts is None:
        assert (placed.resource, placed.problem) == (None, "")
        return
    assert (placed.ref, placed.resource, placed.group) == (facts.ref, facts.resource, facts.group)
    assert (placed.finished, placed.leaving) == (facts.over, facts.deleting)
    assert (placed.priority, placed.seated) == (facts.priority, facts.seat is not None)
    assert placed.model == (facts.model or facts.ref.name)
    assert placed.demand is None or placed.demand.vram == facts.vram
    assert not placed.problem or placed.problem.startswith((keys.POLICY, keys.GPU_TOPOLOGY))


_RESTORES = (keys.RESTORE_AS, keys.RESTORE_ELSE, keys.CLONE_STOPPED)


@given(PODS | SEATED)
def test_a_pod_reads_the_same_from_its_watch(raw: Any) -> None:
    event = decode.pods(orjson.dumps({"type": "ADDED", "object": raw}))
    assert event is not None
    assert extender.read_pod(event["object"], Rules()) == extender.read_pod(raw, Rules())


@given(
    st.dictionaries(st.sampled_from(NOTES), TEXTS, max_size=4),
    st.lists(
        st.dictionaries(st.sampled_from([ONE, TWO]), st.sampled_from(["0", "1", "2"]), max_size=2),
        min_size=1,
        max_size=2,
    ),
)
def test_what_the_webhook_lets_in_the_others_understand(
    notes: dict[str, str], limits: list[dict[str, str]]
) -> None:
    raw = pod(notes={keys.VRAM: "1Gi", **notes})
    raw["spec"]["containers"] = [
        {"name": f"c{number}", "resources": {"limits": one}} for number, one in enumerate(limits)
    ]
    if validate.refusals(raw, cluster.Cluster(), keys.SCHEDULER_NAME):
        return
    placed, (facts, refusal) = extender.read_pod(raw, Rules()), facts_of(raw)
    ask, _ = asking.read_ask(raw) if asking.concerns_us(raw) else (None, [])
    assert (placed.problem, refusal) == ("", "")
    assert placed.resource == (ask.resource if ask else None)
    assert (facts.resource if facts else None) == placed.resource


def test_a_limit_of_zero_asks_for_no_seat() -> None:
    raw = pod(limits={TWO: "1"})
    raw["spec"]["containers"][0]["resources"] = {"limits": {ONE: "0"}}
    facts, _ = facts_of(raw)
    assert facts is not None
    assert (facts.resource, facts.container) == (TWO, "model")
    assert extender.read_pod(raw, Rules()).resource == TWO
    assert facts_of(pod(limits={ONE: "0"})) == (None, "")


@pytest.mark.parametrize(
    ("limits", "notes", "text"),
    [
        ({ONE: "1", TWO: "1"}, {}, "one seat, not several"),
        ({ONE: "2"}, {}, 'must be "1"'),
        ({ONE: "1"}, {keys.VRAM: ""}, "'' is not a quantity"),
    ],
)
def test_the_agent_takes_no_pod_that_the_extender_would_not_place(
    limits: dict[str, str], notes: dict[str, str], text: str
) -> None:
    raw = pod(limits=limits, notes=notes)
    assert text in facts_of(raw)[1]
    assert extender.read_pod(raw, Rules()).problem == facts_of(raw)[1]


def test_what_the_extender_understands_the_webhook_lets_in() -> None:
    raw = pod(notes={keys.VRAM: "1Gi", keys.GPU_TOPOLOGY: "pcie"})
    assert extender.read_pod(raw, Rules()).demand is not None
    assert validate.refusals(raw, cluster.Cluster(), keys.SCHEDULER_NAME) == []


def test_a_pod_can_not_be_changed_by_who_reads_it() -> None:
    with pytest.raises(AttributeError):
        read_pod(pod()).notes = {}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "labels", "place"),
    [
        ("ReplicaSet", {}, "u"),
        ("Job", {}, "u"),
        ("Job", {"batch.kubernetes.io/job-completion-index": "3"}, "u/3"),
        ("StatefulSet", {}, "u/web-0"),
    ],
)
def test_pods_in_whose_place_another_comes_are_alike(kind, labels, place):
    owner = {"kind": kind, "uid": "u", "controller": True}
    meta = {"name": "web-0", "labels": labels, "ownerReferences": [owner]}
    assert read_pod({"metadata": meta}).succession == place
    del meta["ownerReferences"]
    assert read_pod({"metadata": meta}).succession == ""


@pytest.mark.parametrize(
    ("changes", "placed"),
    [
        ({}, True),
        ({"annotations": {keys.ASSIGNED_GROUP: "G0"}}, False),
        ({"ownerReferences": [{"kind": "Node", "name": "n1"}]}, False),
        ({"ownerReferences": [{"kind": "Job", "name": "j"}]}, True),
        ({"mirror": ""}, False),
    ],
)
def test_only_what_the_extender_bound_is_placed(changes: dict[str, Any], placed: bool) -> None:
    notes = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-02T03:04:05Z"}
    if "mirror" in changes:
        notes["kubernetes.io/config.mirror"] = changes.pop("mirror")
    found = read_pod({"metadata": {"annotations": notes, **changes}})
    assert found.placed == placed
