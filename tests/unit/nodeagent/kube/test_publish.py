"""What the agent writes to Kubernetes, and that it goes on when the API server is away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from kybernate.types import SeatState
from nodeagent.kube.attendance import Attendance
from nodeagent.kube.publish import _REWRITE_S, Publisher
from nodeagent.seat.node import Notice
from tests.unit.nodeagent.offloading import TIERS, down, two


class Api:
    """Notes calls. Implements `ports.KubeApi`."""

    def __init__(self):
        self.calls = []
        self.down = 0
        self.refusals = 0
        self.nodes = set()
        self.uid = "n1-uid"
        self.silent = False

    def get(self, path, params=None, *, timeout=10.0):
        if self.silent:
            raise RefusedError("nodes is forbidden")
        if path != "/api/v1/nodes/n1" or not self.uid:
            raise NotFoundError(path)
        return {"metadata": {"uid": self.uid}}

    def post(self, path, body, *, timeout=10.0):
        self._note("post", path, body)
        if path.endswith("gpunodes"):
            self.nodes.add(body["metadata"]["name"])
        return {}

    def patch(self, path, body, kind="merge", params=None, *, timeout=10.0):
        self._note(kind, path, body)
        if "gpunodes" in path and not self.nodes:
            raise NotFoundError(path)
        if "gone" in path:
            raise ConflictError(path)
        return {}

    def _note(self, verb, path, body):
        if self.down:
            self.down -= 1
            raise RetryableError("the API server does not answer")
        if self.refusals and "gpunodes" not in path:
            self.refusals -= 1
            raise RefusedError("the API server does not know its roles yet")
        self.calls.append((verb, path, body))


async def start(rig, attendance=None, **settings):
    api = Api()
    r = rig(**settings)
    if attendance is None:
        attendance = Attendance()
        attendance.set("plugin", ())

    async def connected():
        return api

    publisher = Publisher(r.node, connected, "10.0.0.1:9443", attendance)
    r.node.observe(publisher)
    task = asyncio.create_task(publisher.run())
    return r, api, publisher, task


async def test_where_seats_rest_is_published_and_its_bytes_where_that_is_below_ram(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    publisher = Publisher(r.node, None, "", Attendance())

    def told(uid):
        (seat,) = (one for one in publisher.status.now()["seats"] if one["uid"] == uid)
        return {name: seat[name] for name in ("tier", "savedBytes") if name in seat}

    assert told(cold) == {"tier": "ram"}
    await down(r, cold)
    assert told(cold) == {"tier": "nvme", "savedBytes": r.node.seats[cold].saved.size}
    assert told(cold)["savedBytes"] > 0


async def test_a_node_is_told_in_a_line(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    publisher = Publisher(r.node, None, "", Attendance())
    summary = publisher.status.now()["summary"]
    offered = sum(group.seats for group in r.node.inventory.groups)
    assert summary["seats"] == f"1/1/{offered - 2}"
    assert summary["gpus"] == len(r.node.inventory.gpus)
    tiers = {one["name"]: one for one in publisher.status.now()["tiers"]}
    ram = tiers["ram"]
    assert summary["ramPercent"] == round(100 * ram["usedBytes"] / ram["budgetBytes"]) > 0
    assert summary["nvmePercent"] == 0
    await down(r, cold)
    summary = publisher.status.now()["summary"]
    assert summary["seats"] == f"1/1/{offered - 2}", "offloaded is parked, too"
    assert (summary["ramPercent"], summary["nvmePercent"] > 0) == (0, True)


async def test_the_memory_that_a_seat_holds_is_published_as_seen(rig):
    """What it asks for is another thing; small changes are not worth a write."""
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    publisher = Publisher(r.node, None, "", Attendance())

    def told():
        (seat,) = (one for one in publisher.status.now()["seats"] if one["uid"] == cold)
        return seat.get("heldBytes")

    held = r.node.held(r.node.seats[cold])
    assert 0 < held <= told() <= 1.21 * held
    r.node.seats[cold].tree = replace(r.node.seats[cold].tree, held={})
    assert told() is None, "nobody has looked yet"
    r.node.seen[cold] = held - 1
    assert held - 1 <= told() <= 1.21 * held


async def test_the_node_is_created_and_kept_up_to_date_but_not_all_the_time(rig):
    r, api, _, task = await start(rig)
    await asyncio.sleep(0.01)
    assert [call[0] for call in api.calls] == ["merge", "post", "merge"]
    assert api.calls[-1][2]["status"]["conditions"][0]["status"] == "False"
    r.begin()
    a = await r.seat("a")
    await r.until(a, SeatState.ACTIVE)
    await asyncio.sleep(5)
    writes = [c[2]["status"] for c in api.calls if c[1].endswith("gpunodes/n1/status")]
    assert 2 <= len(writes) <= 8
    last = writes[-1]
    assert last["agent"]["address"] == "10.0.0.1:9443"
    assert last["conditions"][0]["status"] == "True"
    assert [g["name"] for g in last["groups"]] == ["G0", "G1", "G01"]
    assert last["seats"][0]["state"] == "active"
    before = len(api.calls)
    await asyncio.sleep(60)
    assert len(api.calls) == before
    task.cancel()


async def test_what_somebody_waits_for_is_written_at_once(rig):
    r, api, publisher, task = await start(rig, status_interval_s=30.0)
    r.begin()
    await asyncio.sleep(5)
    before = len(api.calls)
    r.node.draining = "a test"
    publisher.touch()
    await asyncio.sleep(0.01)
    assert len(api.calls) == before, "a swap comes first"
    publisher.hurry()
    await asyncio.sleep(0.01)
    assert "drained" in api.calls[-1][2]["status"]["conditions"][0]["message"]
    task.cancel()


def owners(api):
    """Who owns the GPUNode, by each call that says so."""
    said = [c[2]["metadata"] for c in api.calls if "gpunodes" in c[1] and "metadata" in c[2]]
    return [[(o["kind"], o["name"], o["uid"]) for o in one["ownerReferences"]] for one in said]


async def test_the_gpunode_is_owned_by_the_node_that_there_is(rig):
    _, api, publisher, task = await start(rig)
    await asyncio.sleep(0.01)
    assert owners(api)[-1] == [("Node", "n1", "n1-uid")]
    # The garbage collector takes it away with the Node; another machine gets the name.
    api.nodes.clear()
    api.uid = ""
    publisher.touch()
    await asyncio.sleep(_REWRITE_S + 5)
    assert not api.nodes, "without a Node there is no GPUNode"
    api.uid = "n1-again"
    await asyncio.sleep(5)
    assert api.nodes == {"n1"}
    assert owners(api)[-1] == [("Node", "n1", "n1-again")]
    task.cancel()


async def test_a_gpunode_from_before_gets_its_owner_and_one_that_was_deleted_comes_back(rig):
    _, api, _, task = await start(rig)
    api.nodes.add("n1")
    await asyncio.sleep(0.01)
    assert [call[0] for call in api.calls] == ["merge", "merge"]
    assert owners(api) == [[("Node", "n1", "n1-uid")]]
    api.nodes.clear()
    await asyncio.sleep(_REWRITE_S + 5)
    assert api.nodes == {"n1"}
    task.cancel()


async def test_an_agent_that_may_not_read_its_node_publishes_all_the_same(rig):
    _, api, _, task = await start(rig)
    api.silent = True
    await asyncio.sleep(0.01)
    assert [call[0] for call in api.calls] == ["merge", "post", "merge"]
    assert owners(api)[-1] == []
    task.cancel()


async def test_a_node_whose_plugin_is_away_says_at_once_that_it_takes_no_seats(rig):
    attendance = Attendance()
    r, api, _, task = await start(rig, attendance)
    r.begin()
    await asyncio.sleep(5)
    ready = lambda: api.calls[-1][2]["status"]["conditions"][0]  # noqa: E731
    assert ready()["status"] == "False"
    for unlisted, status in [((), "True"), (("kyb.ai/gpu-1x-seat",), "False"), ((), "True")]:
        attendance.set("plugin", unlisted)
        await asyncio.sleep(0.01)
        assert ready()["status"] == status
    attendance.set("its successor", ())
    attendance.left("plugin")
    await asyncio.sleep(1)
    assert ready()["status"] == "True"
    attendance.left("its successor")
    await asyncio.sleep(0.01)
    assert "plugin is away" in ready()["message"]
    task.cancel()


async def test_a_pod_is_wakeable_from_its_first_start_also_while_parked(rig):
    r, api, _, task = await start(rig)
    r.begin()
    a = await r.seat("a")
    b = await r.seat("b")
    await r.until(b, SeatState.ACTIVE)
    r.machine.end_container(a)
    await asyncio.sleep(2)
    said = [
        (c[2]["status"]["conditions"][0]["status"], c[2]["metadata"]["uid"])
        for c in api.calls
        if c[1].endswith("pods/a/status") or c[1].endswith("pods/b/status")
    ]
    assert said == [("True", a), ("True", b), ("False", a)]
    task.cancel()


async def test_what_cannot_be_written_now_is_written_later_and_only_the_newest(rig):
    _, api, publisher, task = await start(rig)
    await asyncio.sleep(0.1)
    api.down = 3
    writes = publisher._writes
    writes.put("k", lambda api: api.patch("/one", {}))
    await asyncio.sleep(0.5)
    writes.put("k", lambda api: api.patch("/two", {}))
    writes.put("g", lambda api: api.patch("/gone", {}))
    await asyncio.sleep(10)
    assert [c[1] for c in api.calls if c[1] in ("/one", "/two")] == ["/two"]
    task.cancel()


async def test_failures_become_events_of_the_pod(rig):
    r, api, _, task = await start(rig)
    r.begin()
    await r.seat("a")
    b = await r.seat("b")
    r.machine.faults.add("checkpoint-fails")
    await r.until(b, SeatState.ACTIVE)
    await asyncio.sleep(1)
    event = next(c[2] for c in api.calls if c[1].endswith("namespaces/default/events"))
    assert event["reason"] == "SeatFailed"
    assert event["involvedObject"]["name"] == "a"
    assert event["message"].endswith("the workload is started again")
    task.cancel()


async def test_a_refusal_is_taken_for_final_only_after_some_time(rig):
    r, api, _, task = await start(rig)
    r.begin()
    api.refusals = 3
    a = await r.seat("a")
    await r.until(a, SeatState.ACTIVE)
    await asyncio.sleep(5)
    written = [body for _, path, body in api.calls if path.endswith("/a/status")]
    assert written[-1]["status"]["conditions"][0]["status"] == "True"
    api.refusals = 100
    r.node.tell(r.node.seats[a], "Warning", "Refused", "an event that nobody takes")
    await asyncio.sleep(30)
    assert api.refusals == 90
    task.cancel()


async def test_no_message_is_longer_than_the_api_server_takes(rig):
    r, _, publisher, task = await start(rig)
    r.begin()
    a = await r.seat("a")
    await r.until(a, SeatState.ACTIVE)
    r.node.notices["ExclusiveGpus"] = Notice(False, "OthersUseGpus", "x" * 100_000, 0.0)
    r.node.seats[a].history.reason = "y" * 100_000
    status = publisher.status.now()
    assert len(status["conditions"][1]["message"]) == 4096
    assert len(status["seats"][0]["reason"]) == 4096
    task.cancel()
