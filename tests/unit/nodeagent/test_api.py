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
from kybernate.gen import agent_pb2 as pb
from kybernate.gen import agent_pb2_grpc
from kybernate.testing.clock import run_virtual
from kybernate.types import SeatState
from nodeagent.api import PluginApi, ProxyApi, serve_plugin, serve_proxies
from nodeagent.attendance import Attendance
from nodeagent.changes import Changes
from nodeagent.streams import Streams
from nodeagent.wire import status_message


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


@contextlib.asynccontextmanager
async def serving(rig, tls):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    streams = Streams(r.loop)
    r.node.observers.append(streams)
    server, port = await serve_proxies(ProxyApi(r.loop, streams), "127.0.0.1:0", tls, "n1")
    try:
        yield r, port
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


def test_a_proxy_gets_seats_then_grants_and_drains_when_told(rig, tls):
    async def main():
        async with serving(rig, tls) as (r, port), channel(tls, port, "proxy") as ch:
            a = await r.seat("a", delay=0.0)
            await r.until(a, SeatState.ACTIVE)
            stream = agent_pb2_grpc.NodeAgentStub(ch).Serve()
            await stream.write(HELLO)
            first, second = await orders(stream, 2)
            assert first.seat.address == "10.0.0.1:8000"
            assert second.grant == pb.Lease(uid=a, generation=1)
            b = await r.seat("b", delay=0.0)
            while (order := (await orders(stream, 1))[0]).WhichOneof("kind") != "drain":
                assert order.WhichOneof("kind") == "seat"
            assert order.drain == pb.Lease(uid=a, generation=1)
            await stream.write(pb.ProxyReport(drained=pb.Drained(uid=a, generation=1)))
            await r.until(b, SeatState.ACTIVE)
            await stream.write(pb.ProxyReport(demand=pb.Demand(uid=a, waiting=1)))
            while (order := (await orders(stream, 1))[0]).WhichOneof("kind") != "drain":
                pass
            await stream.write(pb.ProxyReport(drained=pb.Drained(uid=b, generation=1)))
            await r.until(a, SeatState.ACTIVE)
            stream.cancel()

    asyncio.run(main())


def test_nobody_but_a_proxy_may_call(rig, tls):
    async def main():
        async with serving(rig, tls) as (r, port), channel(tls, port, "scheduler") as ch:
            stub = agent_pb2_grpc.NodeAgentStub(ch)
            assert await refusal(stub.Serve(), HELLO) is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetStatus(pb.GetStatusRequest())
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert r.node.leases.names() == []

    asyncio.run(main())


def test_without_a_certificate_there_is_no_connection(rig, tls):
    async def main():
        credentials = grpc.ssl_channel_credentials((tls / "ca.crt").read_bytes())
        options = [("grpc.ssl_target_name_override", keys.agent_server_name("n1"))]
        async with (
            serving(rig, tls) as (_, port),
            grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as ch,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await agent_pb2_grpc.NodeAgentStub(ch).GetStatus(pb.GetStatusRequest(), timeout=2)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(main())


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (pb.ProxyReport(demand=pb.Demand(uid="x")), grpc.StatusCode.INVALID_ARGUMENT),
        (
            pb.ProxyReport(hello=pb.Hello(proxy="p", version=9)),
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
    ],
)
def test_a_stream_begins_with_a_hello_of_our_version(rig, tls, first, code):
    async def main():
        async with serving(rig, tls) as (_, port), channel(tls, port, "proxy") as ch:
            assert await refusal(agent_pb2_grpc.NodeAgentStub(ch).Serve(), first) is code

    asyncio.run(main())


def test_the_plugin_reports_and_asks_on_a_private_socket(rig, prepared, tmp_path):
    async def main():
        r, preparer, _ = prepared(rig)
        socket = tmp_path / "agent.sock"
        touched = []
        api = PluginApi(r.loop, preparer, Attendance(), lambda: touched.append(1), Changes())
        server = await serve_plugin(api, socket)
        try:
            assert socket.stat().st_mode & 0o777 == 0o600
            async with grpc.aio.insecure_channel(f"unix:{socket}") as ch:
                await report_and_prepare(agent_pb2_grpc.NodeAgentStub(ch))
            assert touched
        finally:
            await server.stop(0)

    asyncio.run(main())


def test_the_plugin_hears_what_is_held_and_what_may_be_parked(rig, prepared, tmp_path):
    async def main():
        r, preparer, pods = prepared(rig)
        changes = Changes()
        r.node.observers.append(changes)
        r.begin()
        r.node.park_budget = 100 << 30
        api = PluginApi(r.loop, preparer, Attendance(), lambda: None, changes)
        server = await serve_plugin(api, tmp_path / "agent.sock")
        try:
            async with grpc.aio.insecure_channel(f"unix:{tmp_path}/agent.sock") as ch:
                await watch_holdings(agent_pb2_grpc.NodeAgentStub(ch), preparer, pods)
        finally:
            await server.stop(0)

    asyncio.run(main())


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
def test_a_parked_seat_of_a_lost_gpu_is_called_movable(rig, lost):
    async def main():
        r = rig()
        r.begin()
        a = await r.seat("a", delay=0.0)
        await r.until(a, SeatState.ACTIVE)
        r.loop.send_away(a, "an operator asks")
        await r.until(a, SeatState.PARKED)
        left = tuple(replace(gpu, healthy=not lost) for gpu in r.node.inventory.gpus)
        r.loop.inventory_reported(replace(r.node.inventory, gpus=left))
        (seat,) = status_message(r.node, {}).seats
        assert seat.movable is lost
        assert ("GPU-0 is lost" in seat.movable_reason) is lost
        assert seat.held_bytes == 40 << 30

    run_virtual(main())
