"""Traffic in GPUNodes, rules for sharing, and plans to make room, on the real API server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kybernate import keys
from kybernate.cli import main
from kybernate.core.swap.activity import HOURS
from kybernate.errors import RefusedError
from tests.kit.servers.extenderserver import NAMESPACE, ONE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.servers.extenderserver import Extender, Extenders, World

pytestmark = pytest.mark.integration

BUSY = {
    "busy": [700] * HOURS,
    "calls": [120.5] * HOURS,
    "recentBusy": 650,
    "recentCalls": 118,
}


def seat(pod: dict[str, Any], activity: dict[str, Any]) -> dict[str, Any]:
    meta = pod["metadata"]
    return {
        "uid": meta["uid"],
        "name": "G0-seat-1",
        "group": "G0",
        "namespace": NAMESPACE,
        "pod": meta["name"],
        "state": "parked",
        "activity": activity,
    }


def publish(world: World, node: str, *seats: dict[str, Any]) -> None:
    status = {"status": {"seats": list(seats)}}
    world.api.patch(f"{keys.GPU_NODES_PATH}/{node}/status", status)


@pytest.fixture(scope="module")
def strict(extenders: Extenders) -> Iterator[Extender]:
    """An extender that keeps hot models apart, and goes by traffic."""
    running = extenders.make("strict", HOT_APART="true")
    running.start()
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"busy": [700] * 23}, "at least 24"),
        ({"busy": [700] * 25}, "at most 24"),
        ({"busy": [1001] * 24}, "less than or equal to 1000"),
        ({"busy": [-2] * 24}, "greater than or equal to -1"),
        ({"calls": ["x"] * 24}, "number"),
        ({"recentBusy": 1001}, "less than or equal to 1000"),
        ({"busy": None}, "busy"),
    ],
)
def test_the_api_server_refuses_what_is_no_activity(
    world: World, change: dict[str, Any], says: str
) -> None:
    node, pod = world.node(), world.pod()
    publish(world, node, seat(pod, BUSY))
    with pytest.raises(RefusedError, match=says):
        publish(world, node, seat(pod, {**BUSY, **change}))
    kept = world.api.get(f"{keys.GPU_NODES_PATH}/{node}")["status"]["seats"][0]["activity"]
    assert kept == BUSY


def test_a_hot_model_is_kept_from_another_ones_gpu(strict: Extender, world: World) -> None:
    """Published by an agent, learned by the extender, and by the model's next pod obeyed."""
    node = world.node()
    hot = [
        world.pod(ONE, vram="20Gi", model="hot", **{"require-group": group})
        for group in ("G0", "G1")
    ]
    for pod in hot:
        until(lambda pod=pod: not strict.bind(pod, node), "it is bound")
    publish(world, node, *(seat(world.read(pod), BUSY) for pod in hot))
    again, other = (world.pod(ONE, vram="20Gi", model=name) for name in ("hot", "other"))
    until(lambda: strict.filter(again, node)["FailedNodes"], "the traffic is seen")
    assert "hot models" in strict.filter(again, node)["FailedNodes"][node]
    assert strict.filter(other, node)["NodeNames"] == [node]


def test_parties_share_no_gpu(extenders: Extenders, world: World) -> None:
    running = extenders.make("parties", SHARING="labels:team")
    running.start()
    try:
        node = world.node()
        red, blue = world.pod(ONE, vram="20Gi"), world.pod(ONE, vram="20Gi")
        for pod, team in ((red, "red"), (blue, "blue")):
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
            world.api.patch(path, {"metadata": {"labels": {"team": team}}})
        until(lambda: running.filter(world.read(red), node)["NodeNames"] == [node], "it is seen")
        for pod in (red, blue):
            assert running.bind(world.read(pod), node) == ""
        assert {world.group(red), world.group(blue)} == {"G0", "G1"}
        green = world.read(world.pod(ONE, vram="20Gi"))
        reason = running.filter(green, node)["FailedNodes"][node]
        assert "pods of team=blue and of team=red, the pod is of team=," in reason
    finally:
        assert running.stop() == 0


def test_a_plan_is_made_by_the_command(extender: Extender, world: World) -> None:
    """All seats of one node are taken by pods that would run on the other, too."""
    tight, wide = world.node(seats=1), world.node(seats=1)
    first = [world.pod(ONE, vram="20Gi") for _ in range(2)]
    for pod in first:
        # Only who is replaced is moved. No cluster knows the kind: nobody collects the pod.
        owner = {"apiVersion": "example.com/v1", "kind": "Trainer", "name": "t", "uid": "t-uid"}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        world.api.patch(path, {"metadata": {"ownerReferences": [{**owner, "controller": True}]}})
        until(lambda pod=pod: not extender.bind(pod, tight), "it is bound")
    # What waits wants a group by name, which the nodes have both; one is free of it, one is not.
    blocker = world.pod(ONE, vram="20Gi", **{"require-group": "G0"})
    until(lambda: not extender.bind(blocker, wide), "it is bound")
    waiting = world.pod(ONE, vram="20Gi", **{"require-group": "G0"})
    name = waiting["metadata"]["name"]
    until(lambda: not extender.filter(waiting, tight, wide)["NodeNames"], "there is no seat")
    ask = ["rebalance", "--dry-run", name, "-n", NAMESPACE, "--tls-dir", str(extender.tls)]
    ask += ["--extender", f"https://127.0.0.1:{extender.port}"]
    result = CliRunner().invoke(main, [*ask, "--json"])
    found = json.loads(result.output)
    assert (result.exit_code, found["room"], found["moves"]) == (0, True, 1)
    move, place = found["steps"]
    assert move["from"] == {"node": tight, "group": "G0"} == place["to"]
    assert move["to"] == {"node": wide, "group": "G1"}
    plain = CliRunner().invoke(main, ask)
    assert "1. Move" in plain.output
    assert "no other moves cost less" in plain.output
    refused = CliRunner().invoke(main, [*ask, "--moves", "0"])
    assert refused.exit_code == 1
    assert "No moves make room" in refused.output
