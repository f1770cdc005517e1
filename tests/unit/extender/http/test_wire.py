"""The kube-scheduler's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from extender.http import wire
from kybernate.core.placement.verdicts import Fits
from kybernate.errors import RefusedError
from kybernate.types import NodeName
from tests.unit.extender.objects import pod


def node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"podCIDR": "10.0.0.0/24"}}


def test_names_in_and_names_out() -> None:
    args = wire.read_filter({"Pod": pod(), "Nodes": None, "NodeNames": ["n1", "n2"]})
    assert args.names == ["n1", "n2"]
    found = Fits([NodeName("n2")], {NodeName("n1"): "full"}, {})
    assert wire.filter_answer(args, found) == {
        "Nodes": None,
        "NodeNames": ["n2"],
        "FailedNodes": {"n1": "full"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_whole_nodes_in_and_whole_nodes_out() -> None:
    body = {"Pod": pod(), "Nodes": {"items": [node("n1"), node("n2")]}, "NodeNames": None}
    found = Fits([NodeName("n2")], {}, {NodeName("n1"): "no"})
    answer = wire.filter_answer(wire.read_filter(body), found)
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [node("n2")]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (None, "the body: must be an object, got nothing"),
        ([], "the body: must be an object, got list"),
        ({}, "Pod: must be an object"),
        ({"Pod": {}}, "Pod.metadata"),
        ({"Pod": {"metadata": {"uid": ""}}}, "Pod.metadata.uid: must not be empty"),
        ({"Pod": pod()}, "NodeNames and Nodes"),
        ({"Pod": pod(), "NodeNames": "n1"}, "NodeNames: must be a list, got str"),
        ({"Pod": pod(), "NodeNames": ["n1", ""]}, r"NodeNames\[\]: must not be empty"),
        ({"Pod": pod(), "NodeNames": [1]}, r"NodeNames\[\]: must be a string, got int"),
        ({"Pod": pod(), "Nodes": []}, "Nodes: must be an object"),
        ({"Pod": pod(), "Nodes": {"items": [{}]}}, r"Nodes.items\[\].metadata"),
    ],
)
def test_a_malformed_filter_names_the_field(body: object, field: str) -> None:
    with pytest.raises(RefusedError, match=field):
        wire.read_filter(body)


def test_reads_bind() -> None:
    body = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n"}
    args = wire.read_bind(body)
    assert (str(args.pod), args.pod.uid, args.node) == ("d/p", "u", "n")


@pytest.mark.parametrize("key", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", [None, "", 3, {}])
def test_a_malformed_bind_names_the_field(key: str, value: object) -> None:
    body = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n", key: value}
    with pytest.raises(RefusedError, match=key):
        wire.read_bind(body)


def test_victims_come_as_uids_or_as_pods() -> None:
    by_uid = {"n1": {"Pods": [{"UID": "uid-v"}], "NumPDBViolations": 1}}
    whole = {"n1": {"Pods": [pod("v")], "NumPDBViolations": 1}}
    for body in ({"NodeNameToMetaVictims": by_uid}, {"NodeNameToVictims": whole}):
        args = wire.read_preempt({"Pod": pod(), **body})
        assert args.victims == {"n1": wire.Victims(("uid-v",), 1)}
        assert wire.preempt_answer(args.victims) == {"NodeNameToMetaVictims": by_uid}


def test_no_victims_are_no_victims() -> None:
    assert wire.read_preempt({"Pod": pod(), "NodeNameToMetaVictims": None}).victims == {}


@pytest.mark.parametrize(
    ("victims", "field"),
    [
        ({"n1": None}, r"NodeNameToMetaVictims\[n1\]"),
        ({"n1": {"Pods": [{}]}}, "UID: must be a string"),
        ({"n1": {"Pods": [], "NumPDBViolations": "1"}}, "NumPDBViolations: must be a whole number"),
    ],
)
def test_malformed_victims_name_the_field(victims: object, field: str) -> None:
    with pytest.raises(RefusedError, match=field):
        wire.read_preempt({"Pod": pod(), "NodeNameToMetaVictims": victims})


def test_scores_keep_their_order() -> None:
    assert wire.prioritize_answer([NodeName("n2"), NodeName("n1")], [10, 0]) == [
        {"Host": "n2", "Score": 10},
        {"Host": "n1", "Score": 0},
    ]
