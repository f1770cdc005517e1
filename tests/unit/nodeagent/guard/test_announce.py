"""What belongs to no seat is told on the GPUNode, and on its pod by name."""

from __future__ import annotations

import asyncio

from kybernate.types import PodRef, PodUid
from nodeagent.guard.announce import Roster
from nodeagent.kube.attendance import Attendance
from nodeagent.kube.publish import Publisher
from nodeagent.seat.node import Notice


class Api:
    """Notes calls. Implements `ports.KubeApi`."""

    def __init__(self):
        self.calls = []

    def get(self, path, params=None, *, timeout=10.0):
        assert path == "/api/v1/nodes/n1"
        return {"metadata": {"uid": "u"}}

    def post(self, path, body, *, timeout=10.0):
        self.calls.append((path, body))

    def patch(self, path, body, kind="merge", params=None, *, timeout=10.0):
        self.calls.append((path, body))


async def test_events_and_conditions_of_the_node(rig):
    r, api = rig(), Api()

    async def connected():
        return api

    publisher = Publisher(r.node, connected, "10.0.0.1:9443", Attendance())
    task = asyncio.create_task(publisher.run())
    r.node.notices["HostMemory"] = Notice(False, "NodeShort", "no room", 1_700_000_000.0)
    publisher.told_node("Warning", "ForeignProcess", "process 7 uses GPU-0")
    publisher.told_pod(PodRef("x", "thief", PodUid("u")), "Warning", "Intruder", "it uses GPU-0")
    await asyncio.sleep(3)
    task.cancel()
    told = {path: body for path, body in api.calls if path.endswith("/events")}
    node = told["/api/v1/namespaces/default/events"]
    assert node["involvedObject"] == {
        "apiVersion": "kyb.ai/v1alpha1",
        "kind": "GPUNode",
        "name": "n1",
    }
    assert node["metadata"]["namespace"] == "default"
    assert (node["reason"], node["message"]) == ("ForeignProcess", "process 7 uses GPU-0")
    pod = told["/api/v1/namespaces/x/events"]
    assert (pod["involvedObject"]["kind"], pod["involvedObject"]["uid"]) == ("Pod", "u")
    status = [body["status"] for path, body in api.calls if path.endswith("/status")][-1]
    assert status["conditions"][1] == {
        "type": "HostMemory",
        "status": "False",
        "reason": "NodeShort",
        "message": "no room",
        "lastTransitionTime": "2023-11-14T22:13:20Z",
    }


def test_the_roster_knows_every_pod_until_it_is_gone():
    roster = Roster()
    pod = {"metadata": {"namespace": "x", "name": "y", "uid": "u"}}
    assert roster.named(PodUid("u")) is None
    roster.event("ADDED", pod)
    assert str(roster.named(PodUid("u"))) == "x/y"
    assert roster.named(None) is None
    roster.event("DELETED", pod)
    assert roster.named(PodUid("u")) is None
