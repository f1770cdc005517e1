"""The policies and warnings that stand beside the webhook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml

from kybernate import keys
from kybernate.errors import KybernateError, RefusedError
from tests.integration.webhook.conftest import create, pods_path, seat_pod
from tests.integration.webhook.test_admission import VRAM

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("webhook")]


def warnings(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> str:
    """The warnings that a user sees who creates this pod."""
    user = yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]
    answer = requests.post(
        f"{cluster.server}{pods_path(namespace)}?dryRun=All",
        json=pod,
        cert=(user["client-certificate"], user["client-key"]),
        verify=str(cluster.layout.pki / "ca.crt"),
        timeout=10,
    )
    assert answer.status_code == 201, answer.text
    return answer.headers.get("Warning", "")


def test_slips_of_the_pen_are_told(control_plane: Cluster, namespace: str) -> None:
    pod = seat_pod("slip", annotations={**VRAM, "kyb.ai/perfer-group": "G0"})
    assert "did you mean kyb.ai/prefer-group?" in warnings(control_plane, namespace, pod)
    assert warnings(control_plane, namespace, seat_pod("fine", annotations=VRAM)) == ""


def test_annotations_of_a_pod_that_did_not_opt_in_are_told(
    control_plane: Cluster, namespace: str
) -> None:
    pod = seat_pod("unmanaged", labels={}, annotations=VRAM)
    assert "kyb.ai/vram without effect" in warnings(control_plane, namespace, pod)


@pytest.mark.parametrize("value", ["yes", "True", ""])
def test_a_label_that_says_neither_yes_nor_no_is_refused(
    control_plane: Cluster, namespace: str, value: str
) -> None:
    pod = seat_pod("label", labels={keys.MANAGED_LABEL: value}, annotations=VRAM)
    with pytest.raises(RefusedError, match=r'write kyb\.ai/managed: "true"'):
        create(control_plane.api(), namespace, pod)
    pod["metadata"]["labels"][keys.MANAGED_LABEL] = "false"
    create(control_plane.api(), namespace, pod, dryRun="All")


@pytest.mark.parametrize("resource", ["kyb.ai/gpu-1-seat", "kyb.ai/gpu-02x-seat", "kyb.ai/gpu"])
def test_a_misnamed_seat_is_refused_without_a_label(
    control_plane: Cluster, namespace: str, resource: str
) -> None:
    pod = seat_pod("misnamed", labels={}, annotations=VRAM)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    with pytest.raises(RefusedError, match=r"which is no seat; write kyb\.ai/gpu-1x-seat"):
        create(control_plane.api(), namespace, pod)


def test_what_the_memory_was_computed_from_stays(control_plane: Cluster, namespace: str) -> None:
    api = control_plane.api()
    create(api, namespace, seat_pod("sized", annotations=VRAM))
    path = pods_path(namespace, "sized")
    for name, value in (
        (keys.VRAM, "1Gi"),
        (keys.VRAM, None),
        (keys.GPUS_ANNOTATION, "1"),
        (keys.ORIGINAL_RESOURCES, None),
    ):
        with pytest.raises(RefusedError, match=f"{name} can't change once a pod exists"):
            api.patch(path, {"metadata": {"annotations": {name: value}}})
    api.patch(path, {"metadata": {"annotations": {keys.GPU_PRODUCT: "x", "mine": "y"}}})


@pytest.mark.parametrize("subresource", ["", "/status", "/resize", "/ephemeralcontainers"])
def test_no_subresource_is_a_way_to_system_annotations(
    control_plane: Cluster, namespace: str, subresource: str
) -> None:
    api, name = control_plane.api(), f"way{subresource.replace('/', '-')}"
    create(api, namespace, seat_pod(name, annotations=VRAM))
    path = pods_path(namespace, name)
    for number, annotation in enumerate(keys.SYSTEM_ANNOTATIONS):
        changed = api.get(path)
        # Controllers write to the pod meanwhile: an old version would be refused for being old.
        del changed["metadata"]["resourceVersion"]
        changed["metadata"]["annotations"][annotation] = "x"
        if subresource == "/ephemeralcontainers":
            debugger = {"name": f"e{number}", "image": "localhost/x"}
            changed["spec"].setdefault("ephemeralContainers", []).append(debugger)
        said = ""
        try:
            api.put(f"{path}{subresource}", changed)
        except KybernateError as error:
            said = str(error)
        assert not said or "leave" in said
        assert annotation not in api.get(path)["metadata"]["annotations"]


@pytest.mark.parametrize("variable", ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "KYB_X"])
def test_a_debug_container_gets_no_gpus_by_a_variable(
    control_plane: Cluster, namespace: str, variable: str
) -> None:
    api, name = control_plane.api(), f"debug-{variable.lower().replace('_', '-')}"
    create(api, namespace, seat_pod(name, annotations=VRAM))
    path = f"{pods_path(namespace, name)}/ephemeralcontainers"
    debugger = {"name": "debugger", "image": "localhost/x", "env": [{"name": "A", "value": "b"}]}
    api.patch(path, {"spec": {"ephemeralContainers": [debugger]}}, "strategic")
    second = {**debugger, "name": "second", "env": [{"name": variable, "value": "all"}]}
    with pytest.raises(RefusedError, match="container second sets a variable"):
        api.patch(path, {"spec": {"ephemeralContainers": [second]}}, "strategic")
