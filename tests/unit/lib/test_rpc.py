"""Calls and answers of all four kinds, by a service's descriptor alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from kybernate.gen import agent_pb2 as pb
from kybernate.lib import rpc


class Half:
    """A release that has some methods of the service."""

    def GetStatus(self, _request, _context):  # noqa: N802 - gRPC's name
        return pb.NodeStatus(node="n1")

    def WatchStatus(self, _request, _context):  # noqa: N802 - gRPC's name
        yield from (pb.NodeStatus(node="n1"), pb.NodeStatus(node="n2"))

    def Serve(self, reports, _context):  # noqa: N802 - gRPC's name
        for report in reports:
            yield pb.AgentOrder()
            assert isinstance(report, pb.ProxyReport)


@pytest.fixture
def agent(tmp_path):
    server = grpc.server(ThreadPoolExecutor(2))
    rpc.serve(server, pb.DESCRIPTOR, "NodeAgent", Half())
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    with grpc.insecure_channel(f"unix:{tmp_path}/s") as channel:
        yield rpc.Stub(channel, pb.DESCRIPTOR, "NodeAgent")
    server.stop(None)


def test_one_answer_or_a_stream_of_them(agent):
    assert agent.GetStatus(pb.GetStatusRequest(), timeout=10).node == "n1"
    found = agent.WatchStatus(pb.GetStatusRequest(), timeout=10)
    assert [one.node for one in found] == ["n1", "n2"]


def test_a_stream_is_answered_by_a_stream(agent):
    assert len(list(agent.Serve(iter([pb.ProxyReport()] * 3), timeout=10))) == 3


def test_what_the_other_side_does_not_have_is_unimplemented(agent):
    with pytest.raises(grpc.RpcError) as refused:
        agent.Park(pb.ParkRequest(), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_the_service_does_not_have_is_no_call(agent):
    with pytest.raises(AttributeError, match=r"kybernate\.agent\.v1\.NodeAgent has no method park"):
        agent.park  # noqa: B018 - looked up alone
