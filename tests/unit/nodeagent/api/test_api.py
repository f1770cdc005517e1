"""The agent's API over real sockets: who may call it, and the proxy's stream."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import grpc
import pytest

from kybernate import keys
from kybernate.adapters.pki import Folder, Validity
from kybernate.core.seat.operations import Kind
from kybernate.gen import agent_pb2
from kybernate.gen import agent_pb2 as pb
from kybernate.lib import rpc
from kybernate.runtime.identity import Identity
from kybernate.types import SeatState
from nodeagent.api.doorkeeper import CALLERS, Doorkeeper, Rates
from nodeagent.api.servers import serve_network, serve_node
from nodeagent.api.service import NodeApi, Parts, _ask
from nodeagent.api.streams import Streams
from nodeagent.kube.attendance import Attendance
from nodeagent.offload.arrivals import SOCKETS
from nodeagent.operations.operations import Operations
from nodeagent.operations.wire import status_message
from nodeagent.seat.changes import Changes


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    Folder(folder).init(["n1"], Validity(), datetime.now(UTC))
    return folder


def channel(tls, port, name):
    credentials = grpc.ssl_channel_credentials(
        (tls / "ca.crt").read_bytes(),
        (tls / f"{name}.key").read_bytes(),
        (tls / f"{name}.crt").read_bytes(),
    )
    options = [("grpc.ssl_target_name_override", keys.agent_server_name("n1"))]
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options)


async def orders(stream, count):
    return [await asyncio.wait_for(stream.read(), 5.0) for _ in range(count)]


def node_api(r, preparer=None, touched=None):
    """All that answers calls, on this made-up machine."""
    changes, streams, operations = (
        Changes(),
        Streams(r.loop.proxies, r.loop.offload.departures),
        Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy),
    )
    r.node.observers += [changes, streams, operations]
    return NodeApi(
        Parts(
            loop=r.loop,
            preparer=preparer,
            attendance=Attendance(),
            changes=changes,
            streams=streams,
            operations=operations,
            reported=lambda: touched.append(1) if touched is not None else None,
        )
    )


@contextlib.asynccontextmanager
async def serving(rig, tls, rates=None):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    keeper = Doorkeeper(rates or Rates(), r.clock.time, unix=False)
    server, port = await serve_network(node_api(r), keeper, "127.0.0.1:0", Identity("n1", tls))
    try:
        yield r, port
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def on_the_node(r, tmp_path, rates=None, **more):
    keeper = Doorkeeper(rates or Rates(), r.clock.time, unix=True)
    server = await serve_node(node_api(r, **more), keeper, tmp_path / "agent.sock")
    try:
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/agent.sock") as ch:
            yield rpc.Stub(ch, agent_pb2.DESCRIPTOR, "NodeAgent")
    finally:
        await server.stop(0)


async def refusal(stream, first):
    """The status with which the agent ends a stream that begins like this."""
    # A write may meet the end of the stream with an error of its own; the code is the agent's.
    with contextlib.suppress(grpc.aio.AioRpcError):
        await stream.write(first)
        while await stream.read() is not grpc.aio.EOF:
            pass
    return await stream.code()


HELLO = pb.ProxyReport(hello=pb.Hello(proxy="p1", version=1))


@pytest.mark.real_time
async def test_a_proxy_gets_seats_then_grants_and_drains_when_told(rig, tls):
    async with serving(rig, tls) as (r, port), channel(tls, port, "proxy") as ch:
        a = await r.seat("a", delay=0.0)
        await r.until(a, SeatState.ACTIVE)
        stream = rpc.Stub(ch, agent_pb2.DESCRIPTOR, "NodeAgent").Serve()
        await stream.write(HELLO)
        first, second = await orders(stream, 2)
        assert first.seat.address == "10.0.0.1:8000"
        assert second.grant == pb.Lease(uid=a, generation=1)
        b = await r.seat("b", delay=0.0)
        while (order := (await orders(stream, 1))[0]).WhichOneof("kind") != "drain":
            assert order.WhichOneof("kind") in ("seat", "proxies")
        assert order.drain == pb.Lease(uid=a, generation=1)
        await stream.write(pb.ProxyReport(drained=pb.Drained(uid=a, generation=1)))
        await r.until(b, SeatState.ACTIVE)
        await stream.write(pb.ProxyReport(demand=pb.Demand(uid=a, waiting=1)))
        while (order := (await orders(stream, 1))[0]).WhichOneof("kind") != "drain":
            pass
        await stream.write(pb.ProxyReport(drained=pb.Drained(uid=b, generation=1)))
        await r.until(a, SeatState.ACTIVE)
        stream.cancel()


@pytest.mark.real_time
async def test_nobody_but_a_proxy_may_call(rig, tls):
    async with serving(rig, tls) as (r, port), channel(tls, port, "scheduler") as ch:
        stub = rpc.Stub(ch, agent_pb2.DESCRIPTOR, "NodeAgent")
        assert await refusal(stub.Serve(), HELLO) is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetStatus(pb.GetStatusRequest())
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert r.node.leases.names() == []


@pytest.mark.real_time
async def test_a_controller_deletes_snapshots_of_requests_alone(rig, tls):
    async with serving(rig, tls) as (_, port), channel(tls, port, "controller") as ch:
        stub = rpc.Stub(ch, agent_pb2.DESCRIPTOR, "NodeAgent")
        found = await stub.DropSnapshot(pb.DropSnapshotRequest(name="ckpt-1"))
        assert found.artifact == ""
        with pytest.raises(grpc.aio.AioRpcError, match="artifacts rm") as refused:
            await stub.DropSnapshot(pb.DropSnapshotRequest(name="before-the-change"))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.real_time
async def test_without_a_certificate_there_is_no_connection(rig, tls):
    credentials = grpc.ssl_channel_credentials((tls / "ca.crt").read_bytes())
    options = [("grpc.ssl_target_name_override", keys.agent_server_name("n1"))]
    async with (
        serving(rig, tls) as (_, port),
        grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as ch,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rpc.Stub(ch, agent_pb2.DESCRIPTOR, "NodeAgent").GetStatus(
                pb.GetStatusRequest(), timeout=2
            )
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("first", "code"),
    [
        (pb.ProxyReport(demand=pb.Demand(uid="x")), grpc.StatusCode.INVALID_ARGUMENT),
        (
            pb.ProxyReport(hello=pb.Hello(proxy="p", version=9)),
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
        (
            pb.ProxyReport(hello=pb.Hello(proxy=SOCKETS, version=1)),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
async def test_a_stream_begins_with_a_hello_of_our_version(rig, tls, first, code):
    async with serving(rig, tls) as (_, port), channel(tls, port, "proxy") as ch:
        assert await refusal(rpc.Stub(ch, agent_pb2.DESCRIPTOR, "NodeAgent").Serve(), first) is code


@pytest.mark.real_time
async def test_the_plugin_reports_and_asks_on_a_private_socket(rig, prepared, tmp_path):
    r, preparer, _ = prepared(rig)
    touched = []
    async with on_the_node(r, tmp_path, preparer=preparer, touched=touched) as stub:
        assert (tmp_path / "agent.sock").stat().st_mode & 0o777 == 0o600
        await report_and_prepare(stub)
    assert touched


@pytest.mark.real_time
async def test_the_plugin_hears_what_is_held_and_what_may_be_parked(rig, prepared, tmp_path):
    r, preparer, pods = prepared(rig)
    r.begin()
    r.node.park_budget = 100 << 30
    async with on_the_node(r, tmp_path, preparer=preparer) as stub:
        await watch_holdings(stub, preparer, pods)


async def watch_holdings(stub, preparer, pods):
    stream = stub.WatchHoldings(pb.WatchHoldingsRequest())
    empty = await asyncio.wait_for(stream.read(), 5.0)
    assert (empty.park_budget_bytes, list(empty.seats)) == (100 << 30, [])
    pods.create("a", group="G0", token="G1-seat-2", vram="7Gi")
    await preparer.prepare("kyb.ai/gpu-1x-seat", ["G1-seat-2"])
    one = await asyncio.wait_for(stream.read(), 5.0)
    assert list(one.seats) == [pb.HeldSeat(device_id="G1-seat-2", group="G0", vram_bytes=7 << 30)]
    group = pb.Group(name="G0", resource="kyb.ai/gpu-1x-seat", gpus=["GPU-0"], seats=4)
    gpu = pb.Gpu(uuid="GPU-0", memory_bytes=80 << 30, healthy=True)
    same = pb.ReportInventoryRequest(gpus=[gpu], groups=[group])
    again = await stub.ReportInventory(same)
    assert (again.park_budget_bytes, list(again.held_groups)) == (100 << 30, ["G0"])
    with pytest.raises(grpc.aio.AioRpcError, match="group G0 is held by pod default/a") as refused:
        await stub.ReportInventory(pb.ReportInventoryRequest(gpus=[gpu]))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    pods.delete("a")
    assert not (await asyncio.wait_for(stream.read(), 5.0)).seats
    stream.cancel()


async def report_and_prepare(stub):
    group = pb.Group(name="G0", resource="kyb.ai/gpu-1x-seat", gpus=["GPU-0"], seats=2)
    gpu = pb.Gpu(uuid="GPU-0", memory_bytes=1 << 30, healthy=True)
    await stub.ReportInventory(pb.ReportInventoryRequest(gpus=[gpu], groups=[group]))
    status = await stub.GetStatus(pb.GetStatusRequest())
    assert status.groups[0].active_slots == 1
    assert dict(status.used_bytes) == {"GPU-0": 0}
    request = pb.PrepareSeatRequest(resource=group.resource, device_ids=["G0-seat-1"])
    with pytest.raises(grpc.aio.AioRpcError) as later:
        await stub.PrepareSeat(request)
    assert later.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("lost", [True, False])
async def test_a_parked_seat_of_a_lost_gpu_is_called_movable(rig, lost):
    r = rig()
    r.begin()
    a = await r.seat("a", delay=0.0)
    await r.until(a, SeatState.ACTIVE)
    r.loop.operators.send_away(a, "an operator asks")
    await r.until(a, SeatState.PARKED)
    left = tuple(replace(gpu, healthy=not lost) for gpu in r.node.inventory.gpus)
    r.loop.inventory_reported(replace(r.node.inventory, gpus=left))
    (seat,) = status_message(r.node, {}).seats
    assert seat.movable is lost
    assert ("GPU-0 is lost" in seat.movable_reason) is lost
    assert seat.held_bytes == 40 << 30


async def code_of(call):
    """The status and sentence of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details()


@pytest.mark.real_time
async def test_every_call_has_its_callers_and_nobody_else_gets_in(rig, tls, tmp_path):
    methods = agent_pb2.DESCRIPTOR.services_by_name["NodeAgent"].methods_by_name
    assert set(CALLERS) == set(methods)
    roles = {"proxy": "kyb-proxy", "controller": "kyb-controller", "scheduler": "kyb-scheduler"}
    async with serving(rig, tls) as (_, port):
        for file, role in roles.items():
            async with channel(tls, port, file) as ch:
                for name in methods:
                    denied = await ask_nothing(ch, methods[name]) == DENIED
                    assert denied is (role not in CALLERS[name]), (role, name)
    async with on_the_node(rig(), tmp_path) as stub:
        assert await refusal(stub.Serve(), HELLO) is grpc.StatusCode.PERMISSION_DENIED


DENIED = grpc.StatusCode.PERMISSION_DENIED


async def ask_nothing(ch, method):
    """The status of a call with an empty message, None if it goes on."""
    path = f"/kybernate.agent.v1.NodeAgent/{method.name}"
    kind = ("stream_" if method.client_streaming else "unary_") + (
        "stream" if method.server_streaming else "unary"
    )
    open_call = getattr(ch, kind)(path)
    call = open_call(iter([b""]) if method.client_streaming else b"", timeout=5.0)
    try:
        await asyncio.wait_for(call.read() if method.server_streaming else call, 5.0)
    except grpc.aio.AioRpcError as error:
        return error.code()
    code = await call.code() if call.done() else None
    call.cancel()
    return code


@pytest.mark.real_time
async def test_a_controller_parks_watches_and_is_told_what_became_of_it(rig, tls):
    async with serving(rig, tls) as (r, port), channel(tls, port, "controller") as ch:
        stub = rpc.Stub(ch, agent_pb2.DESCRIPTOR, "NodeAgent")
        a = await r.seat("a", delay=0.0)
        await r.until(a, SeatState.ACTIVE)
        dry = await stub.Evict(pb.EvictRequest(uid=a, dry_run=True))
        assert (dry.dry_run, dry.state) == (True, "")
        assert any("host's RAM" in step for step in dry.plan)
        begun = await stub.Evict(pb.EvictRequest(name="e1", uid=a, deadline_seconds=20))
        assert (begun.kind, begun.by, begun.pod) == ("evict", "kyb-controller", "a")
        assert 19 < begun.due_at - begun.created_at < 21
        watch = stub.WatchOperation(pb.GetOperationRequest(name="e1"))
        seen = [one async for one in watch]
        assert seen[-1].state == "succeeded"
        assert seen[-1].saved == pb.Saved(tier="ram", bytes=40 << 30, outlives_pod=False)
        assert await stub.Evict(pb.EvictRequest(name="e1", uid=a)) == seen[-1]
        listed = await stub.ListOperations(pb.ListOperationsRequest(ended_too=True))
        assert list(listed.operations) == [seen[-1]]
        parked = await stub.Park(pb.ParkRequest(name="p1", uid=a, deadline_seconds=900))
        assert 899 < parked.due_at - parked.created_at < 901
        assert not (await stub.ListOperations(pb.ListOperationsRequest())).operations
        assert await stub.CancelOperation(pb.CancelOperationRequest(name="e1")) == seen[-1]


class Local:
    """The context of a call that came without a certificate."""

    def auth_context(self):
        return {}


@pytest.mark.parametrize("wanted", [False, True])
def test_an_eviction_says_whether_its_state_is_copied_first(wanted):
    request = pb.EvictRequest(name="e1", uid="a", tier="object", precopy=wanted)
    assert _ask(Kind.EVICT, request, Local()).precopy is wanted


async def test_an_operation_that_ends_while_its_message_goes_out_is_still_told_to_the_end(rig):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    api = node_api(r)
    a = await r.seat("a", delay=0.0)
    await r.until(a, SeatState.ACTIVE)
    await api.Evict(pb.EvictRequest(name="e1", uid=a), Local())
    watch = api.WatchOperation(pb.GetOperationRequest(name="e1"), None)
    assert (await anext(watch)).state != "succeeded"
    await r.until(a, SeatState.PARKED)
    assert [one.state async for one in watch][-1] == "succeeded"


async def test_what_is_held_is_told_at_once_if_it_changed_while_a_message_went_out(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    watch = node_api(r, preparer).WatchHoldings(pb.WatchHoldingsRequest(), None)
    assert not (await anext(watch)).seats
    pods.create("a", group="G0", token="G0-seat-2")
    await preparer.prepare("kyb.ai/gpu-1x-seat", ["G0-seat-2"])
    asked = r.clock.time()
    assert [one.device_id for one in (await anext(watch)).seats] == ["G0-seat-2"]
    assert r.clock.time() == asked
    await watch.aclose()


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("method", "request_", "code", "words"),
    [
        ("Park", pb.ParkRequest(), "INVALID_ARGUMENT", "uid: must be the UID"),
        ("Park", pb.ParkRequest(uid="x" * 254), "INVALID_ARGUMENT", "uid: has 254 characters"),
        ("Park", pb.ParkRequest(uid="a\nb"), "INVALID_ARGUMENT", "uid: has characters that"),
        ("Park", pb.ParkRequest(uid="a", name="A b"), "INVALID_ARGUMENT", "name: 'A b' must be"),
        ("Park", pb.ParkRequest(uid="a", why="w" * 1025), "INVALID_ARGUMENT", "why: has 1025"),
        ("Wake", pb.WakeRequest(uid="nobody"), "NOT_FOUND", "GetStatus lists"),
        (
            "Evict",
            pb.EvictRequest(uid="a", deadline_seconds=float("nan")),
            "INVALID_ARGUMENT",
            "deadline_seconds: must be from 0 to 86400",
        ),
        (
            "ReportInventory",
            pb.ReportInventoryRequest(groups=[pb.Group(name="g" * 300)]),
            "INVALID_ARGUMENT",
            "groups[0].name: has 300 characters",
        ),
        ("GetOperation", pb.GetOperationRequest(name="o"), "NOT_FOUND", "no operation is named"),
    ],
)
async def test_what_is_wrong_with_a_call_is_named(rig, tmp_path, method, request_, code, words):
    async with on_the_node(rig(), tmp_path) as stub:
        status, text = await code_of(getattr(stub, method)(request_))
        assert (status.name, words in text) == (code, True), text


@pytest.mark.real_time
async def test_a_message_above_the_limit_is_refused_and_the_connection_lives(rig, tmp_path):
    async with on_the_node(rig(), tmp_path) as stub:
        big = pb.ParkRequest(uid="a", why="w" * (1 << 20))
        assert (await code_of(stub.Park(big)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.GetStatus(pb.GetStatusRequest())).node == "n1"


@pytest.mark.real_time
async def test_a_peer_that_calls_too_often_is_told_when_to_come_again(rig, tls, tmp_path):
    rates = Rates(calls=0.5, burst=2, streams=1)
    async with on_the_node(rig(), tmp_path, rates) as stub:
        for _ in range(2):
            await stub.GetStatus(pb.GetStatusRequest())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetStatus(pb.GetStatusRequest())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "retry in " in refused.value.details()
        again = dict(refused.value.trailing_metadata())["grpc-retry-pushback-ms"]
        assert 0 < int(again) <= 2000


@pytest.mark.real_time
async def test_a_peer_may_not_have_more_streams_open_than_allowed(rig, tmp_path):
    async with on_the_node(rig(), tmp_path, Rates(streams=1)) as stub:
        one = stub.WatchStatus(pb.GetStatusRequest())
        await one.read()
        two = stub.WatchStatus(pb.GetStatusRequest())
        assert (await code_of(two.read()))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        one.cancel()
        async with asyncio.timeout(30):  # the agent hears of the end a moment later
            while True:
                three = stub.WatchStatus(pb.GetStatusRequest())
                with contextlib.suppress(grpc.aio.AioRpcError):
                    assert (await three.read()).node == "n1"
                    break
        three.cancel()
