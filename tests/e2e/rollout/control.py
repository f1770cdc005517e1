"""The Deployments of config/ on a test cluster: the control side as pods, as on any cluster.

What a test cluster lacks is put in their place: pods reach the API server by a relay on their
node's bridge, since it listens on loopback, and no registry has the images. Names of Services lead
nowhere; the API server calls the webhook's endpoints itself.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from images.build import full_name
from kybernate import keys
from tests.cluster.fetched.images import SCHEDULER_IMAGE
from tests.cluster.layout import REPOSITORY
from tests.integration.extender.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster import Cluster
    from tests.kit.howto import Page

    Json = dict[str, Any]

WANTED = (
    *("Deployment", "Service", "PodDisruptionBudget"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
)
NAMED = ("kyb-scheduler-config", "kyb-scheduler-token")
LOOP = "for name in extender scheduler proxy registry controller"
DEPLOYMENTS = ("kyb-webhook", "kyb-scheduler", "kyb-proxy", "kyb-controller", "kyb-registry")
SERVICES = ("extender", "webhook", "proxy", "controller", "registry", "sidecar")
IMAGES = (*SERVICES, "sample", "kube-scheduler")
"""What the node must have beside what runs on it anyhow."""


@contextmanager
def deployed(cluster: Cluster, page: Page) -> Iterator[None]:
    """The control side runs as pods, all of them ready, with certificates as `page`, that of the
    installation, makes Secrets of them. Its reader's KEY is that of a client of the proxy."""
    relay = Relay(cluster.ports.apiserver, cluster.nodes[0].ip)
    try:
        (page.folder / "pki").symlink_to(cluster.layout.tls)
        page(LOOP)
        page("kybernate pki secret --agents")
        page("KEY=")
        # As who applied the cluster's own objects: what those say and these don't is taken away.
        manager = ("--server-side", "--field-manager=one-machine")
        text = yaml.safe_dump_all(control_side(cluster, relay))
        cluster.kubectl("apply", *manager, "-f", "-", text=text)
        for name in DEPLOYMENTS:
            wait = ("rollout", "status", f"deploy/{name}", "--timeout=120s")
            cluster.kubectl("-n", keys.NAMESPACE, *wait, limit=130)
        page("kubectl -n kyb-system exec deploy/kyb-registry")
        yield
    finally:
        relay.close()


def control_side(cluster: Cluster, relay: Relay) -> Iterator[Json]:
    """The objects of config/default that aren't the node side's nor there already."""
    folder = str(REPOSITORY / "config" / "default")
    for one in yaml.safe_load_all(cluster.kubectl("kustomize", folder)):
        if one["kind"] in WANTED or one["metadata"]["name"] in NAMED:
            if one["kind"] == "Deployment":
                fit(one["spec"]["template"]["spec"], cluster, relay)
            yield one


def fit(pod: Json, cluster: Cluster, relay: Relay) -> None:
    """Images that the node has, the way to the API server, and no disk but the node's."""
    for volume in pod["volumes"]:
        if volume.pop("persistentVolumeClaim", None):
            volume["emptyDir"] = {}
    way = {
        "KUBERNETES_SERVICE_HOST": cluster.nodes[0].ip,
        "KUBERNETES_SERVICE_PORT": str(relay.port),
    }
    for container in pod["containers"]:
        name = container["image"].partition(":")[0].rpartition("/")[2]
        container["image"] = SCHEDULER_IMAGE if name == "kube-scheduler" else full_name(name)
        variables = container.setdefault("env", [])
        for one in variables:
            if one["name"].endswith("_SIDECAR_IMAGE"):
                one["value"] = full_name("sidecar")
        variables += [{"name": key, "value": value} for key, value in way.items()]
