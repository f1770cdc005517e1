"""The Helm chart: the same as kustomize for the same choices; installed, upgraded with seats in
use, and uninstalled on a real API server."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from images.cache import REPOSITORY
from kybernate import keys
from kybernate.errors import NotFoundError
from tests.cluster.fetched import binaries
from tests.integration.hooks import until
from tests.kit.clients.kubectl import Kubectl
from tests.kit.gobuild import HELM
from tests.kit.howto import Page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.cluster import Cluster

    Key = tuple[str, str, str]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(HELM.why_not()), reason=HELM.why_not() or "-"),
]

CONFIG = REPOSITORY / "config"
CHART = CONFIG / "chart"
NAMESPACE = ("Namespace", "", keys.NAMESPACE)
CORE = list(yaml.safe_load((CONFIG / "default/kustomization.yaml").read_text())["resources"])


def run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(HELM.ensure()), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def by_key(text: str) -> dict[Key, Any]:
    """Objects by kind, namespace and name. The order of volumes means nothing."""
    found = {}
    for one in yaml.safe_load_all(text):
        if one:
            meta = one["metadata"]
            pod = ((one.get("spec") or {}).get("template") or {}).get("spec") or {}
            if "volumes" in pod:
                pod["volumes"].sort(key=lambda volume: volume["name"])
            found[one["kind"], meta.get("namespace", ""), meta["name"]] = one
    return found


def rendered(*choices: str) -> dict[Key, Any]:
    done = run("template", "kybernate", str(CHART), *(f"--set={one}" for one in choices))
    assert done.returncode == 0, done.stderr
    found = by_key(done.stdout)
    if namespace := found.get(NAMESPACE):
        # What kustomize has no word for: see `test_the_namespace_stays`.
        assert namespace["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    return found


def kustomized(folder: Path) -> dict[Key, Any]:
    kubectl = binaries.ensure(("kubectl",), print).path("kubectl")
    argv = [str(kubectl), "kustomize", str(folder)]
    return by_key(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def overlay(folder: Path, **told: Any) -> Path:
    """A kustomization of the reader's, made from parts of config/."""
    paths = {
        name: [os.path.relpath(CONFIG / one.removeprefix("../"), folder.resolve()) for one in parts]
        for name, parts in told.items()
        if name in ("resources", "components")
    }
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**kind, **told, **paths}))
    return folder


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("containerd", []),
        ("k3s", ["distribution=k3s"]),
        ("microk8s", ["distribution=microk8s"]),
        ("below-ram", ["offload.enabled=true"]),
    ],
)
def test_it_is_the_overlay(name: str, choices: list[str]) -> None:
    assert rendered(*choices) == kustomized(CONFIG / "overlays" / name)


def test_other_parts_are_chosen_as_in_an_overlay(tmp_path: Path) -> None:
    swapped = {
        "../extender/beside": "../extender/service",
        "../registry/sqlite": "../registry/postgresql",
    }
    parts = [swapped.get(one, one) for one in CORE]
    assert set(swapped) <= set(CORE)
    folder = overlay(tmp_path, resources=parts, components=["below-ram", "runtime"])
    found = rendered(
        "extender=service", "registry=postgresql", "offload.enabled=true", "runtimeWrapper=true"
    )
    assert found == kustomized(folder)


def test_images_are_those_of_an_overlay(tmp_path: Path) -> None:
    names = ("agent", "device-plugin", "extender", "webhook", "proxy", "registry", "controller")
    images: list[dict[str, str]] = [
        {"name": f"kybernate/{name}", "newName": f"R/kyb/{name}", "newTag": "v9"} for name in names
    ]
    images.append({"name": "kube-scheduler", "newName": "R/kube-scheduler", "newTag": "v1.33.0"})
    found = rendered(
        "images.prefix=R/kyb/", "images.tag=v9", "images.scheduler=R/kube-scheduler:v1.33.0"
    )
    wanted = kustomized(overlay(tmp_path, resources=["../default"], images=images))
    for name in ("webhook", "controller"):
        pod = wanted["Deployment", keys.NAMESPACE, f"kyb-{name}"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        (sidecar,) = (one for one in container["env"] if one["name"].endswith("_SIDECAR_IMAGE"))
        sidecar["value"] = "R/kyb/sidecar:v9"
    assert found == wanted


def test_seats_and_the_namespace_are_chosen(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    seats = {"profiles": [{"name": "1x", "resource": "kyb.ai/gpu-1x-seat", "groupSize": 1}]}
    values.write_text(yaml.safe_dump({"seats": seats, "createNamespace": False}))
    done = run("template", "kybernate", str(CHART), "-f", str(values))
    found = by_key(done.stdout)
    config = found["ConfigMap", keys.NAMESPACE, "kyb-deviceplugin-config"]["data"]["config.yaml"]
    assert yaml.safe_load(config) == seats
    assert NAMESPACE not in found


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("distribution=k8s", "/distribution"),
        ("ofload.enabled=true", "ofload"),
        ("images.prefix=registry.lan/kybernate", "/images/prefix"),
        ("offload.folder=relative", "/offload/folder"),
        ("runtimeWrapper=perhaps", "/runtimeWrapper"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_its_name(choice: str, said: str) -> None:
    done = run("template", "kybernate", str(CHART), f"--set={choice}")
    assert done.returncode == 1
    assert said in done.stderr.replace("'", "")


def test_it_is_installed_upgraded_and_leaves_nothing(bare: Cluster, tmp_path: Path) -> None:
    """As docs/how-to/install/helm.md has it."""
    api, reader = bare.api(), Kubectl(bare.kubectl_path, tmp_path, bare.kubeconfig)
    (tmp_path / "helm").symlink_to(HELM.ensure())
    page, values = Page("helm", reader), tmp_path / "values.yaml"
    values.write_text(page.manifest("images:"))
    bare.kubectl("apply", "-f", str(CONFIG / "rbac/namespace.yaml"))
    assert "kubectl label node NODE kyb.ai/gpu-node=true" in page("helm install")
    ours = rendered("createNamespace=false")
    bare.kubectl("wait", "--for=condition=Established", "crd", "gpunodes.kyb.ai")

    # What a running cluster adds: the webhook's own certificates, a node with a seat, a request.
    hook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kyb-webhook"
    count = len(api.get(hook)["webhooks"])
    add = [
        {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": "Cg=="}
        for number in range(count)
    ]
    api.patch(hook, add, "json")
    secret = f"/api/v1/namespaces/{keys.NAMESPACE}/secrets/kyb-webhook-tls"
    api.patch(secret, {"data": {"tls.crt": "Cg=="}})
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND}
    node = api.post(keys.GPU_NODES_PATH, {**kind, "metadata": {"name": "n1"}})["metadata"]["uid"]
    seat = {"uid": "u", "name": "G0-seat-1", "group": "G0", "namespace": "default", "pod": "a"}
    status = {"status": {"seats": [{**seat, "state": "parked", "tier": "ram"}]}}
    api.patch(f"{keys.GPU_NODES_PATH}/n1/status", status)

    changed = yaml.safe_load(values.read_text())
    changed["images"]["tag"] = "v9"
    values.write_text(yaml.safe_dump({**changed, "offload": {"enabled": True}}))
    page("helm upgrade")
    found = api.get(f"{keys.GPU_NODES_PATH}/n1")
    assert found["metadata"]["uid"] == node, "an upgrade must not make the CRDs again"
    assert found["status"]["seats"][0]["state"] == "parked"
    assert {one["clientConfig"]["caBundle"] for one in api.get(hook)["webhooks"]} == {"Cg=="}
    assert api.get(secret)["data"]["tls.crt"] == "Cg=="
    agent = api.get(f"/apis/apps/v1/namespaces/{keys.NAMESPACE}/daemonsets/kyb-agent")
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/kybernate/agent:v9"
    assert "nvme" in {one["name"] for one in agent["spec"]["template"]["spec"]["volumes"]}

    with page:
        page("helm uninstall")
        until(lambda: not left(bare, ours), f"left: {left(bare, ours)}", 60)
        assert api.get(f"/api/v1/namespaces/{keys.NAMESPACE}/secrets")["items"] == []
        with pytest.raises(NotFoundError):
            api.get(keys.GPU_NODES_PATH)
        page("kubectl delete namespace")


def test_the_namespace_stays_with_all_in_it_where_the_chart_makes_it_no_more(
    bare: Cluster, tmp_path: Path
) -> None:
    def helm(*words: str) -> None:
        argv = [str(HELM.ensure()), *words, "--kubeconfig", str(bare.kubeconfig)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    key = f"/api/v1/namespaces/{keys.NAMESPACE}/secrets"
    helm("install", "kybernate", str(CHART), "-n", "default")
    bare.api().post(key, {"metadata": {"name": "kyb-wrap-keys"}})
    helm("upgrade", "kybernate", str(CHART), "-n", "default", "--set=createNamespace=false")
    try:
        namespace = bare.api().get(f"/api/v1/namespaces/{keys.NAMESPACE}")
        assert namespace["status"]["phase"] == "Active"
        assert bare.api().get(f"{key}/kyb-wrap-keys")
    finally:
        helm("uninstall", "kybernate", "-n", "default")
        ours = rendered("createNamespace=false")
        until(lambda: not left(bare, ours), f"left: {left(bare, ours)}", 60)
        bare.kubectl("delete", "namespace", keys.NAMESPACE)


def left(bare: Cluster, ours: dict[Key, Any]) -> list[str]:
    """What is still there of all that was installed, and of what came of it."""
    text = "---\n".join(yaml.safe_dump(one) for one in ours.values())
    named = bare.kubectl("get", "--ignore-not-found", "-o", "name", "-f", "-", text=text)
    api, crds = bare.api(), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for one in api.get(crds)["items"]:
        # See `installation._HANGS_S`.
        if "deletionTimestamp" in one["metadata"]:
            with suppress(NotFoundError):
                api.delete(f"{crds}/{one['metadata']['name']}")
    made = bare.kubectl("-n", keys.NAMESPACE, "get", "-o", "name", "pods,replicasets,leases")
    return [*named.split(), *made.split()]
