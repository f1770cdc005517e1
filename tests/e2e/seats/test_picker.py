"""An InferencePool on a node: its endpoint picker holds a request, a parked model wakes for it, and
the kubelet's word of its readiness lets the picker send it there. What the picker scrapes wakes
nobody.

docs/how-to/install/inference-pool.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.processes import free_port, port_taken
from kybernate import keys
from tests.cluster.fetched.envoy import envoy
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.integration.gateway.picker import PICKER, POOLS, Picker
from tests.integration.gateway.test_envoy import begun
from tests.integration.gateway.test_picker import told, written
from tests.kit.clients.direct import Direct
from tests.kit.clients.models import Models
from tests.kit.pods import PODS, PORT, SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster import Cluster
    from tests.kit.pods import Pods

    Json = dict[str, Any]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(PICKER.not_built()), reason=PICKER.not_built()),
]

GROUP = {keys.REQUIRE_GROUP: "G0"}


@pytest.fixture
def gateway(cluster: Cluster, tmp_path: Path) -> Iterator[Models]:
    """A client of an Envoy that asks the picker of the pool of pods app=picked, of which the
    cluster's proxy is told."""
    config, flags = written("apiVersion"), written("args")["args"]
    picker = Picker(cluster, tmp_path, "picked", PORT, config, *flags)
    port = free_port()
    told_of = {"KYB_PROXY_PICKERS": f"default/picked={picker.metrics}"}
    cluster.restart_from("proxy", REPOSITORY, told_of)
    client = Models(f"http://127.0.0.1:{port}")
    try:
        with begun(envoy(), told(port, picker.port), tmp_path):
            wait_until(lambda: port_taken(port), 20, "no Envoy listens")
            yield client
    finally:
        client.close()
        cluster.restart_from("proxy", REPOSITORY)
        cluster.api().delete(f"{POOLS}/picked")
        picker.close()


def picked() -> Json:
    """A model as the page has its pods."""
    notes = written("metadata")["metadata"]["annotations"]
    manifest = SeatPod("picked", node="n1", annotations={**notes, **GROUP}).manifest()
    manifest["metadata"]["labels"]["app"] = "picked"
    manifest["metadata"]["annotations"][keys.MODEL] = "picked"
    return manifest


def seat(cluster: Cluster) -> Json:
    """What the GPUNode says of the model's seat."""
    rows = cluster.api().get(f"{keys.GPU_NODES_PATH}/n1")["status"]["seats"]
    (found,) = (one for one in rows if one["pod"] == "picked")
    return dict(found)


def test_a_pools_parked_model_wakes_for_what_its_picker_holds(
    cluster: Cluster, pods: Pods, gateway: Models
) -> None:
    cluster.api().post(PODS, picked())
    first = pods.wait(["picked"], ready, 90, "Ready")["picked"]
    assert Direct.to(first).ask().counter == 1
    pods.create(SeatPod("other", node="n1", annotations=GROUP))
    pods.wait(["other"], ready, 90, "Ready")
    pods.wait(["picked"], lambda one: not ready(one), 60, "parked, and no candidate")
    wait_until(lambda: seat(cluster)["state"] == "parked", 10, "it isn't parked")

    answer = gateway.ask("picked", limit=90)
    assert (answer.status, answer.counter, answer.intact) == (200, 2, True), answer.body
    wait_until(lambda: seat(cluster)["state"] == "active", 10, "it isn't active")
    assert seat(cluster)["wakes"] == 1, "a scrape woke it"
    pods.wait(["picked"], ready, 30, "a candidate again")
    assert gateway.ask("picked", limit=90).counter == 3
    statuses = pods.get("picked")["status"]["containerStatuses"]
    assert [one["restartCount"] for one in statuses] == [0]
