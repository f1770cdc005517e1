"""What the controller writes of Shares, and whom it believes."""

from __future__ import annotations

from controller.base.known import Nodes
from controller.shares import Shares
from kybernate.api.events import stamp
from kybernate.api.watched.nodefacts import slim_node
from kybernate.errors import ConflictError
from kybernate.runtime.lead import Open

NOW = 1_767_225_600.0 + 60
BEGINS = 1_767_225_600.0


def node(name, seconds, since=BEGINS):
    used = {"since": stamp(since), "gpuSeconds": seconds, "wakes": 1, "parkedBytes": 5}
    rows = [{"namespace": "team", "used": used}, {"namespace": "other", "used": used}]
    return slim_node({"metadata": {"name": name, "uid": name}, "status": {"usage": rows}})


def share(name="team", status=None, **spec):
    meta = {"name": name, "uid": f"u-{name}", "resourceVersion": "7", "generation": 3}
    return {"metadata": meta, "spec": spec, "status": status}


class Api:
    """Implements what Shares call of `Cluster`."""

    def __init__(self):
        self.written, self.refuses = {}, ()

    def write_status(self, path, version, status):
        if path in self.refuses:
            raise ConflictError("changed")
        assert version == "7"
        self.written[path] = status
        return {}


def world(*items, revoked=()):
    nodes, api = Nodes(), Api()
    shares = Shares(
        nodes,
        lambda _: ["a pod"],
        lambda n: "it is" if n in revoked else "",
        api,
        Open(),
        lambda: NOW,
    )
    for item in items:
        shares.seen._on_event("ADDED", item)
    return nodes, api, shares


PATH = "/apis/kyb.ai/v1alpha1/shares"


def test_what_believed_nodes_have_counted_is_added_up_and_written_once():
    nodes, api, shares = world(share(quota={"gpuSeconds": 50}), revoked=("evil",))
    for name, seconds in (("n1", 20.0), ("n2", 29.5), ("evil", 1e6)):
        nodes.on_event("ADDED", node(name, seconds))
    nodes.on_event("ADDED", node("old", 900.0, BEGINS - 86_400))
    shares.look()
    status = api.written.pop(f"{PATH}/team")
    assert status["used"]["gpuSeconds"] == 49.5
    assert status["used"]["wakes"] == 2
    (condition,) = status["conditions"]
    assert (condition["reason"], condition["observedGeneration"]) == ("WithinQuota", 3)
    shares.seen._on_event("MODIFIED", share(status=status, quota={"gpuSeconds": 50}))
    shares.look()
    assert api.written == {}
    nodes.on_event("DELETED", node("n2", 29.5))
    nodes.on_event("MODIFIED", node("n1", 51.0))
    shares.look()
    (condition,) = api.written[f"{PATH}/team"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "GpuSecondsUsedUp")


def test_one_that_can_not_be_read_or_written_holds_up_no_other():
    _, api, shares = world(share("bad", window="1s"), share("full", weight=2), share(weight=3))
    api.refuses = (f"{PATH}/full",)
    shares.look()
    (condition,) = api.written[f"{PATH}/bad"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "Invalid")
    assert "spec.window" in condition["message"]
    assert f"{PATH}/team" in api.written


def test_no_node_tells_so_much_that_a_sum_can_not_be_written():
    nodes, api, shares = world(share(quota={"gpuSeconds": 50}))
    used = {"since": stamp(BEGINS), "gpuSeconds": 1.7e308, "parkedGiBHours": 1.7e308}
    used |= {"wakes": 2**63 - 1, "parkedBytes": 2**63 - 1}
    for name in ("evil", "worse"):
        rows = [{"namespace": "team", "used": used}]
        told = {"metadata": {"name": name, "uid": name}, "status": {"usage": rows}}
        nodes.on_event("ADDED", slim_node(told))
    shares.look()
    status = api.written[f"{PATH}/team"]
    assert status["conditions"][0]["reason"] == "GpuSecondsUsedUp"
    # The API server takes whole numbers of 64 bits, and none that is infinite.
    assert set(status["used"]) == {"since", *used}
    assert all(0 < status["used"][name] < 2**63 for name in used if name != "since")
