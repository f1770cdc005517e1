"""What the agent reads of a pod's turns: nothing that it can't read takes a seat's turn away."""

from __future__ import annotations

import pytest

from kybernate import keys
from kybernate.errors import ConfigError
from kybernate.runtime.load import load
from kybernate.settings.agent import AgentSettings
from nodeagent.kube.pods import read_pod


def pod(notes=None, owner=None, ports=()):
    meta = {"namespace": "ns", "name": "p", "uid": "u", "annotations": notes or {}}
    if owner:
        meta["ownerReferences"] = [{"kind": owner, "controller": True}]
    limits = {keys.seat_resource(1): "1"}
    container = {"name": "main", "resources": {"limits": limits}, "ports": list(ports)}
    return read_pod({"metadata": meta, "spec": {"containers": [container]}})


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        (pod(), 1.0),
        (pod(owner="Job", ports=[{"containerPort": 80}]), 1.0),
        (pod(owner="ReplicaSet", ports=[{"containerPort": 80}]), None),
        (pod({keys.MODEL: "llama"}), None),
        (pod({keys.TURN: "always,weight=4", keys.MODEL: "llama"}), 4.0),
        (pod({keys.TURN: "whenever"}), 1.0),
        (pod({keys.TURN: "whenever", keys.MODEL: "llama"}), None),
    ],
)
def test_who_always_wants_its_gpus(given, weight):
    assert given.weight == weight


def test_idle_times_that_cannot_be_read_are_left_out():
    assert pod({keys.IDLE: "vram=5s"}).idle == {"vram": 5.0}
    assert pod({keys.IDLE: "vram=5"}).idle == {}


def test_an_administrator_sets_what_namespaces_get():
    given = {"KYB_AGENT_TURN_SHARES": "research=3,batch=0.5"}
    settings = load(AgentSettings, "KYB_AGENT", {"node": "n"}, given, None)
    assert settings.shares == {"research": 3.0, "batch": 0.5}
    assert load(AgentSettings, "KYB_AGENT", {"node": "n"}, {}, None).shares == {}


@pytest.mark.parametrize(
    "text", ["research", "research=0", "research=-1", "Research=1", "a=1,,b=2"]
)
def test_shares_that_cannot_be_read_are_refused(text):
    with pytest.raises(ConfigError, match="turn_shares"):
        load(AgentSettings, "KYB_AGENT", {"node": "n"}, {"KYB_AGENT_TURN_SHARES": text}, None)


@pytest.mark.parametrize(("said", "active"), [("active", True), ("wakeable", False), ("?", False)])
def test_whether_only_an_active_seats_pod_is_ready(said, active):
    assert pod({keys.READY_WHILE: said}).ready_active is active


def test_what_is_said_of_residency_wait_and_prefetch():
    notes = {keys.MIN_RESIDENCY: "5s", keys.MAX_WAIT: "2m", keys.PREFETCH: "always"}
    found = pod(notes)
    assert (found.min_residency, found.max_wait, found.prefetch) == (5.0, 120.0, 0.0)
    found = pod(dict.fromkeys(notes, "?"))
    assert (found.min_residency, found.max_wait, found.prefetch) == (None, None, None)
