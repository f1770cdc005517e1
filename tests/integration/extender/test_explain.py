"""Why a pod waits, with the real kube-scheduler: as an event, over HTTP and by the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from kybernate.cli import main
from tests.integration.extender.upstream import condition, node_of, offer
from tests.kit.servers.extenderserver import LIMIT_S, NAMESPACE, TWO, until

if TYPE_CHECKING:
    from tests.integration.extender.upstream import Scheduler
    from tests.kit.servers.extenderserver import Extender, World

pytestmark = pytest.mark.integration


def told(world: World, name: str) -> list[str]:
    events = world.api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return [
        event["message"]
        for event in events
        if event["involvedObject"]["name"] == name and event["reason"] == "NoSeat"
    ]


def test_a_pod_without_a_seat_is_explained_everywhere(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """The scheduler counts seats: it says "Insufficient", and never asks the extender."""
    node = offer(world, world.node(seats=1), x2="1")
    first = world.pod(TWO, vram="24Gi")
    until(lambda: node_of(world, first), "the first pod is bound")
    waiting = world.pod(TWO, vram="24Gi")
    name, holder = waiting["metadata"]["name"], first["metadata"]["name"]
    until(lambda: "Insufficient kyb.ai/gpu-2x-seat" in condition(world, waiting), "it waits")
    why = (
        f"1 node: no free 2x seat; suspending {NAMESPACE}/{holder} (48Gi) would fit it on {node}, "
        "group G01"
    )
    with extender.session() as session:
        url = f"https://127.0.0.1:{extender.port}/explain/{NAMESPACE}/{name}"
        answer = session.get(url, timeout=LIMIT_S).json()
    assert answer["summary"] == why
    assert answer["groups"][0]["sentence"] == "all 1 seats of G01 are taken"
    assert "Insufficient" in answer["scheduler"]
    ask = ["explain", "pod", name, "-n", NAMESPACE, "--tls-dir", str(extender.tls)]
    result = CliRunner().invoke(
        main, [*ask, "--json", "--extender", f"https://127.0.0.1:{extender.port}"]
    )
    assert json.loads(result.output) == answer
    until(lambda: told(world, name), "it is told as an event")
    assert told(world, name) == [f"No seat for it: {why}"]
    counted = 'kyb_extender_pending_pods{reason="seat"} 1.0'
    until(lambda: counted in extender.probe("metrics").text, "it is counted")


def test_only_the_scheduler_and_the_operator_may_ask(extender: Extender) -> None:
    url = f"https://127.0.0.1:{extender.port}/explain/{NAMESPACE}/nobody"
    statuses = {}
    for name in ("scheduler", "controller", "proxy"):
        with extender.session(name) as session:
            statuses[name] = session.get(url, timeout=LIMIT_S).status_code
    assert statuses == {"scheduler": 404, "controller": 404, "proxy": 403}
