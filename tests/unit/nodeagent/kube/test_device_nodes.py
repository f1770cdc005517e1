"""Seats on a node whose container runtime has no CDI."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.errors import RefusedError
from kybernate.gen import agent_pb2 as pb
from nodeagent.operations.wire import inventory_from
from nodeagent.seat.node import Inventory
from tests.unit.nodeagent.conftest import INVENTORY, RESOURCE

NODES = replace(INVENTORY, strategy="nodes")


async def test_only_the_mounts_are_settled_late(prepared, rig):
    r, preparer, pods = prepared(rig)
    r.loop.inventory_reported(NODES)
    pods.create("a", group="G1", token="G1-seat-3")
    seat = await preparer.prepare(RESOURCE, ["G1-seat-3"])
    # The container's environment names the seat already.
    assert seat.identity.name == "G1-seat-3"
    spec = r.machine.specs["G1-seat-3"]
    assert not spec.cdi
    assert set(spec.mounts) == {"/run/kyb", "/kyb/kyb-init"}


async def test_an_id_of_another_group_is_refused_with_what_to_do(prepared, rig):
    r, preparer, pods = prepared(rig)
    r.loop.inventory_reported(NODES)
    pods.create("a", group="G1", token="G0-seat-1")
    with pytest.raises(RefusedError, match="delete the pod"):
        await preparer.prepare(RESOURCE, ["G0-seat-1"])
    assert "G0-seat-1" not in r.machine.specs
    assert r.node.seats == {}


async def test_with_cdi_an_id_of_another_group_is_a_token(prepared, rig):
    r, preparer, pods = prepared(rig)
    r.loop.inventory_reported(INVENTORY)
    pods.create("a", group="G1", token="G0-seat-1")
    seat = await preparer.prepare(RESOURCE, ["G0-seat-1"])
    assert seat.identity.group == "G1"
    assert r.machine.specs["G0-seat-1"].cdi


def test_the_strategy_is_reported_and_remembered():
    report = pb.ReportInventoryRequest(device_strategy="nodes")
    assert inventory_from(report).strategy == "nodes"
    assert inventory_from(pb.ReportInventoryRequest()).strategy == "cdi"
    assert Inventory.from_record(NODES.record()) == NODES
    old = NODES.record()
    del old["strategy"]
    assert Inventory.from_record(old).strategy == "cdi"
