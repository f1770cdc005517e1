"""Helm's own upgrade under seats, and its removal, on a node.

What Helm renders is fitted to the one-machine cluster as its overlay is: services without a node
stay processes of the machine.

docs/how-to/install/helm.md
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from images.build import full_name
from kybernate import keys
from kybernate.errors import NotFoundError
from tests.cluster import ClusterSpec, GpuSpec
from tests.cluster.cluster import Cluster, running
from tests.cluster.fetched import prefix
from tests.cluster.layout import REPOSITORY
from tests.cluster.parts import manifests
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import OVERLAY
from tests.e2e.conftest import emptied
from tests.e2e.rollout.test_rollout import DAEMONS, LIMIT, daemon_pods, tally, trace
from tests.kit.clients.kubectl import Kubectl
from tests.kit.clients.models import Models
from tests.kit.gobuild import HELM
from tests.kit.howto import Page
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(HELM.why_not()), reason=HELM.why_not() or "-"),
]

SPEC = ClusterSpec(
    name="helmed",
    subnet="10.98.0.0/16",
    nodes=("n1",),
    gpus=GpuSpec(count=1),
    node_pods=True,
)
NEXT = "next"
"""The tag of the images to which the release is upgraded: today's, under another name."""
HERE = f"from {__name__} import fitted; fitted()"


def fitted() -> None:
    """Helm's post-renderer, a process of its own: the objects of standard input as `SPEC`'s cluster
    is to have them, on standard output."""
    cluster, folder = Cluster.attach(SPEC), Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    (folder / "all.yaml").write_text(sys.stdin.read())
    overlay = yaml.safe_load((OVERLAY / "kustomization.yaml").read_text())
    overlay["resources"] = ["all.yaml", "runtimeclass.yaml"]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    for beside in OVERLAY.glob("*.yaml"):
        if beside.name != "kustomization.yaml":
            (folder / beside.name).write_text(beside.read_text())
    text = cluster.kubectl("kustomize", str(folder))
    sys.stdout.write(manifests.fitted(text, SPEC, cluster.layout, cluster.ports))


def helm(folder: Path) -> None:
    """Helm for who follows the page. The cluster has objects of ours already: they are taken."""
    fit = folder / "fit"
    words = shlex.join([sys.executable, "-c", HERE, str(folder / "fitted")])
    fit.write_text(f"#!/bin/sh\ncd {REPOSITORY} && exec {words}\n")
    fit.chmod(0o755)
    real, program = HELM.ensure(), folder / "helm"
    program.write_text(
        "#!/bin/sh\n"
        "case $1 in\n"
        f'install) exec {real} "$@" --take-ownership --post-renderer {fit} ;;\n'
        f'upgrade) exec {real} "$@" --post-renderer {fit} ;;\n'
        f'*) exec {real} "$@" ;;\n'
        "esac\n"
    )
    program.chmod(0o755)


def name_again(cluster: Cluster) -> None:
    """Have the node know today's images of its daemons by the next release's tag as well."""
    socket = str(cluster.layout.node("n1").cri_socket)
    words = [str(prefix.ensure(print).ctr), "-a", socket, "-n", "k8s.io", "images", "tag"]
    for image in ("agent", "device-plugin"):
        old = full_name(image)
        new = f"{old.rpartition(':')[0]}:{NEXT}"
        subprocess.run([*words, old, new], check=True, timeout=60, capture_output=True)


def test_seats_keep_their_state_through_helms_upgrade_and_nothing_is_left(tmp_path: Path) -> None:
    with running(SPEC, print) as cluster, emptied(cluster) as pods:
        reader = Kubectl(cluster.kubectl_path, tmp_path, cluster.kubeconfig)
        helm(tmp_path)
        page, values = Page("helm", reader), tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump({"createNamespace": False}))
        page("helm install")
        names = ["parked", "active"]
        models = Models(cluster.proxy_url)
        for name in names:
            pods.create(SeatPod(name, bytes_="1GiB"))
            pods.wait([name], ready, 120, "Ready")
            assert models.ask(name).counter == 1
        wait_until(lambda: tally(cluster) == (1, 1), 30, "not one parked and one active seat")
        before, daemons = ({n: trace(one) for n, one in pods.all().items()}, daemon_pods(cluster))

        name_again(cluster)
        values.write_text(yaml.safe_dump({"createNamespace": False, "images": {"tag": NEXT}}))
        page("helm upgrade")
        for name in DAEMONS:
            done = ("rollout", "status", f"daemonset/{name}", f"--timeout={LIMIT}s")
            cluster.kubectl("-n", keys.NAMESPACE, *done, limit=LIMIT + 10)
        assert not daemons & daemon_pods(cluster)
        assert {tag(one) for one in running_images(cluster)} == {NEXT}
        wait_until(lambda: tally(cluster) == (1, 1), 30, "not one parked and one active any more")
        for name in names:
            answer = models.ask(name)
            assert (answer.status, answer.counter, answer.intact) == (200, 2, True)
        assert {name: trace(one) for name, one in pods.all().items()} == before
        models.close()

        pods.delete(names)
        pods.gone(names, 60)
        installed = (tmp_path / "fitted" / "all.yaml").read_text()
        with page:
            page("helm uninstall")
            wait_until(lambda: not left(cluster, installed), 60, lambda: left(cluster, installed))
            with pytest.raises(NotFoundError):
                cluster.api().get(keys.GPU_NODES_PATH)
            page("kubectl delete namespace")


def running_images(cluster: Cluster) -> list[str]:
    """Of all containers of ours that run as pods."""
    items = cluster.api().get(f"/api/v1/namespaces/{keys.NAMESPACE}/pods")["items"]
    return [one["image"] for pod in items for one in pod["spec"]["containers"]]


def tag(image: str) -> str:
    return image.rpartition(":")[2]


def left(cluster: Cluster, installed: str) -> str:
    """What is still there of all that was installed, and of what came of it."""
    named = cluster.kubectl("get", "--ignore-not-found", "-o", "name", "-f", "-", text=installed)
    made = cluster.kubectl("-n", keys.NAMESPACE, "get", "-o", "name", "pods,secrets")
    return f"{named}{made}"
