"""A ConfigMap and a pod in their shortest form, from the file to the group that the pod gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deviceplugin.inventory import Sighting, first_inventory
from kybernate import keys
from kybernate.errors import RefusedError
from kybernate.settings.plugin import parse_seats_config
from kybernate.types import Gpu, GpuUuid
from tests.integration.hooks import until
from tests.integration.webhook.conftest import GPU_NODE, create, pods_path
from tests.kit.servers.extenderserver import Extender, Extenders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("webhook")]

CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: kyb-deviceplugin-config
data:
  config.yaml: |
    profiles:
      - resource: kyb.ai/gpu-1x-seat
        seatsPerGroup: 4
      - resource: kyb.ai/gpu-2x-seat
        seatsPerGroup: 3
    groups:
      - name: G01
        gpus: [0,1]
      - name: G23
        gpus: [2,3]
"""
POD = """
metadata:
  name: wants
  annotations:
    prefer-group: G23
spec:
  containers:
    - name: model
      image: localhost/x
      resources:
        requests:
          kyb.ai/gpu-2x-seat: 1
"""
GIB = 2**30


def status_of(config_map: dict[str, Any], node: str) -> dict[str, Any]:
    """What the plugin makes of the ConfigMap on four GPUs, as the agent tells it."""
    config = parse_seats_config(config_map["data"]["config.yaml"])
    gpus = tuple(Gpu(GpuUuid(f"GPU-{node}-{index}"), index, "H100", 80 * GIB) for index in range(4))
    found = first_inventory(config, Sighting(gpus, {}))
    return {
        "observedGeneration": 1,
        "agent": {"address": "10.88.1.1:9443", "version": "0.1.0"},
        "driver": {"version": "580.1", "cuda": "13.0"},
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "product": gpu.product,
                "memoryBytes": gpu.memory,
                "numa": 0,
                "healthy": True,
            }
            for gpu in gpus
        ],
        "links": [],
        "groups": [
            {
                "name": group.name,
                "resource": group.resource,
                "gpus": list(group.gpus),
                "seats": group.seats,
                "activeSlots": group.active_slots,
            }
            for group in found.groups
        ],
    }


@pytest.fixture(scope="module")
def node(control_plane: Cluster) -> Iterator[str]:
    """A node with the ConfigMap's groups."""
    api, name = control_plane.api("agent"), "shortnode"
    made = control_plane.api().post(
        f"/api/v1/namespaces/{keys.NAMESPACE}/configmaps",
        {**yaml.safe_load(CONFIG_MAP), "metadata": {"name": "short"}},
    )
    api.post(keys.GPU_NODES_PATH, {**GPU_NODE, "metadata": {"name": name}})
    status = {"status": status_of(made, name)}
    api.patch(f"{keys.GPU_NODES_PATH}/{name}/status", status)
    yield name
    control_plane.api().delete(f"{keys.GPU_NODES_PATH}/{name}")


@pytest.fixture(scope="module")
def extender(
    control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Extender]:
    """An extender that spreads: a wish is against its policy."""
    folder = tmp_path_factory.mktemp("extender")
    running = Extenders(control_plane, control_plane.api(), folder).make("short")
    running.start()
    yield running
    assert running.stop() == 0


def admitted(cluster: Cluster, namespace: str, name: str, **notes: str) -> dict[str, Any]:
    """The pod as the API server has it; `notes` in place of its own annotations, if any."""
    pod = yaml.safe_load(POD)
    pod["metadata"] |= {"name": name, **({"annotations": notes} if notes else {})}
    found: list[dict[str, Any]] = []

    def created() -> bool:
        # The webhook hears of the node in a moment: until then it knows no memory of its GPUs.
        try:
            found.append(create(cluster.api(), namespace, pod))
        except RefusedError as error:
            if "No node is known" not in str(error):
                raise
        return bool(found)

    until(created, "the webhook doesn't know the node")
    return found[0]


def test_the_short_config_map_makes_its_groups() -> None:
    groups = status_of(yaml.safe_load(CONFIG_MAP), "n")["groups"]
    found = {one["name"]: (one["resource"], one["seats"]) for one in groups}
    assert found["G01"] == found["G23"] == ("kyb.ai/gpu-2x-seat", 3)
    assert {found[f"G{index}"] for index in range(4)} == {("kyb.ai/gpu-1x-seat", 4)}


def test_a_pod_with_requests_and_a_bare_wish_gets_its_group(
    control_plane: Cluster, namespace: str, node: str, extender: Extender
) -> None:
    first = admitted(control_plane, namespace, "wants-0")
    limits = first["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"kyb.ai/gpu-2x-seat": "1"}
    assert first["metadata"]["annotations"][keys.PREFER_GROUP] == "G23"
    until(lambda: node in extender.filter(first, node)["NodeNames"], "the node isn't offered")

    def placed(pod: dict[str, Any]) -> str:
        assert extender.offer(pod, node)["NodeNames"] == [node]
        assert extender.bind(pod, node) == ""
        found = control_plane.api().get(pods_path(namespace, pod["metadata"]["name"]))
        return str(found["metadata"]["annotations"][keys.ASSIGNED_GROUP])

    others = [admitted(control_plane, namespace, f"any-{n}", other="x") for n in range(2)]
    assert {placed(pod) for pod in others} == {"G01", "G23"}
    assert placed(first) == placed(admitted(control_plane, namespace, "wants-1")) == "G23"
    # A wish and no more: the group is full, and the other one will do.
    assert placed(admitted(control_plane, namespace, "wants-2")) == "G01"


def test_a_wish_for_a_group_that_nobody_has_is_told(
    control_plane: Cluster, namespace: str, node: str
) -> None:
    until(lambda: admitted(control_plane, namespace, "known", other="x"), f"{node} isn't known")
    with pytest.raises(RefusedError, match=r"prefer-group is G45, but no node.*: G01, G23"):
        admitted(control_plane, namespace, "nowhere", **{keys.SHORT_PREFER_GROUP: "G45"})
