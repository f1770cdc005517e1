"""Every overlay builds, and a real API server accepts all of it and the pods that come of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kybernate import keys
from kybernate.errors import ConflictError
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.servers import imageregistry

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "config" / "overlays"
BUILD_S = 600.0
"""On a machine where no layer was made before."""
OVERLAYS = sorted(path.parent.name for path in FOLDER.glob("*/kustomization.yaml"))

PATHS = {
    "containerd": ("/run/containerd", "/var/lib/kubelet/pod-resources"),
    "below-ram": ("/run/containerd", "/var/lib/kubelet/pod-resources"),
    "one-machine": ("/run/containerd", "/var/lib/kubelet/pod-resources"),
    "k3s": ("/run/k3s/containerd", "/var/lib/kubelet/pod-resources"),
    "microk8s": (
        "/var/snap/microk8s/common/run",
        "/var/snap/microk8s/common/var/lib/kubelet/pod-resources",
    ),
}
"""Where the runtime's socket and the kubelet's pod-resources lie."""


def rendered(cluster: Cluster, overlay: str) -> str:
    return cluster.kubectl("kustomize", str(FOLDER / overlay))


def daemon_sets(text: str) -> dict[str, dict[str, Any]]:
    found = [one for one in yaml.safe_load_all(text) if one["kind"] == "DaemonSet"]
    return {one["metadata"]["name"]: one for one in found}


def test_each_overlay_has_its_paths() -> None:
    assert set(PATHS) == set(OVERLAYS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_accepted(control_plane: Cluster, overlay: str) -> None:
    text = rendered(control_plane, overlay)
    # As whoever applied the fixture's overlay, so that what is gone from that is gone here, too.
    manager = "--field-manager=one-machine"
    options = ("--server-side", "--dry-run=server", "--force-conflicts", manager)
    said = control_plane.kubectl("apply", *options, "-f", "-", text=text)
    assert len(said.splitlines()) == sum(1 for one in yaml.safe_load_all(text) if one)
    agent = daemon_sets(text)["kyb-agent"]["spec"]["template"]["spec"]
    volumes = {one["name"]: one.get("hostPath", {}).get("path") for one in agent["volumes"]}
    assert (volumes["runtime"], volumes["pod-resources"]) == PATHS[overlay]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_its_pods_are_admitted(control_plane: Cluster, overlay: str) -> None:
    for name, one in daemon_sets(rendered(control_plane, overlay)).items():
        pod = {"apiVersion": "v1", "kind": "Pod", **one["spec"]["template"]}
        pod["metadata"] = {**pod["metadata"], "name": name}
        path = f"/api/v1/namespaces/{keys.NAMESPACE}/pods?dryRun=All"
        made = control_plane.api().post(path, pod)
        assert made["spec"]["priority"] == 2000001000
        assert made["status"]["qosClass"] == "Burstable"


@pytest.mark.slow
@pytest.mark.timeout(2 * BUILD_S)
def test_microk8s_runs_images_that_were_pushed_to_localhost(
    control_plane: Cluster, tmp_path: Path
) -> None:
    """As docs/how-to/install/microk8s.md has it, with a registry where MicroK8s has its own: each
    image that the page's overlay names was pushed by the page's line."""
    reader = Kubectl(control_plane.kubectl_path, tmp_path, control_plane.kubeconfig)
    page = Page("microk8s", reader, repository=str(REPOSITORY))
    page("make images", limit=BUILD_S)
    (tmp_path / "build").symlink_to(REPOSITORY / "build")
    imageregistry.skopeo(tmp_path)
    (tmp_path / "overlay").mkdir()
    overlay = page.manifest("apiVersion: kustomize")
    (tmp_path / "overlay" / "kustomization.yaml").write_text(overlay)
    text = rendered(control_plane, str(tmp_path / "overlay"))
    options = ("--dry-run=server", "--force-conflicts", "--field-manager=one-machine")
    control_plane.kubectl("apply", "--server-side", *options, "-f", "-", text=text)
    kinds = ("Deployment", "DaemonSet")
    pods = [
        one["spec"]["template"]["spec"]
        for one in yaml.safe_load_all(text)
        if one and one["kind"] in kinds
    ]
    containers = [c for pod in pods for c in (*pod["containers"], *pod.get("initContainers", ()))]
    env = [e for one in containers for e in one.get("env", ())]
    images = {one["image"] for one in containers}
    images |= {e["value"] for e in env if e["name"].endswith("_IMAGE")}
    others = {one for one in images if not one.startswith("localhost:32000/kybernate/")}
    assert {one.partition(":")[0] for one in others} == {"UPSTREAM/kube-scheduler"}
    assert len(images - others) == 8
    with imageregistry.serving(tmp_path), page:
        page("for i in agent device-plugin", limit=BUILD_S)
        for one in images - others:
            name, _, tag = one.removeprefix(f"{imageregistry.HOST}/").partition(":")
            assert imageregistry.manifest(name, tag)["layers"], one
    agent = daemon_sets(text)["kyb-agent"]["spec"]["template"]["spec"]
    volumes = {one["name"]: one.get("hostPath", {}).get("path") for one in agent["volumes"]}
    assert (volumes["runtime"], volumes["pod-resources"]) == PATHS["microk8s"]


def test_the_control_side_runs_restricted(control_plane: Cluster) -> None:
    """Both ways to run extender and registry, and all others, as Pod Security sees them."""
    api, name = control_plane.api(), "restricted-check"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = f"/api/v1/namespaces/{name}"
    with suppress(ConflictError):
        api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    folder = FOLDER.parent
    text = "---\n".join(
        control_plane.kubectl("kustomize", str(path))
        for path in (
            folder / "default",
            folder / "extender" / "service",
            folder / "registry" / "postgresql",
        )
    )
    found = [one for one in yaml.safe_load_all(text) if one and one["kind"] == "Deployment"]
    assert len(found) == 7
    for one in found:
        pod = {"apiVersion": "v1", "kind": "Pod", **one["spec"]["template"]}
        pod["metadata"] = {"name": one["metadata"]["name"]}
        # Accounts and the priority class belong to another namespace.
        pod["spec"] = {**pod["spec"], "serviceAccountName": "default", "priorityClassName": ""}
        with suppress(ConflictError):
            api.post(f"{space}/serviceaccounts", {"metadata": {"name": "default"}})
        assert api.post(f"{space}/pods?dryRun=All", pod)["spec"]["securityContext"]


def test_the_service_way_is_accepted(control_plane: Cluster) -> None:
    text = control_plane.kubectl("kustomize", str(FOLDER.parent / "extender" / "service"))
    options = (
        "--server-side",
        "--dry-run=server",
        "--force-conflicts",
        "--field-manager=one-machine",
    )
    said = control_plane.kubectl("apply", *options, "-f", "-", text=text)
    assert {"deployment", "lease", "networkpolicy", "poddisruptionbudget", "service"} == {
        line.partition("/")[0].partition(".")[0] for line in said.splitlines()
    }
