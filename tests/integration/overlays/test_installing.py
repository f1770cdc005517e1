"""Installed, upgraded, set up and given other keys and authorities as the pages have it."""

from __future__ import annotations

import base64
import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from kybernate import keys
from kybernate.adapters.keys.artifactkeys import ArtifactKeys
from kybernate.adapters.registry.client import Registry
from kybernate.checkpoint.places import open_place
from kybernate.errors import KybernateError, NotFoundError
from kybernate.settings.agent import AgentSettings
from tests.integration.hooks import until
from tests.integration.overlays.installation import LOOP, NODE, SYSTEM, begun, keyed, laid
from tests.kit.howto import Page
from tests.kit.servers.registryserver import Server, signing
from tests.unit.checkpoint.kit import contents, fetched, make_dump, pack_dump
from tests.unit.registry.replica import name_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.cluster import Cluster
    from tests.kit.clients.kubectl import Kubectl

pytestmark = pytest.mark.integration

CLIENTS = "kyb-proxy-clients"


def images(bare: Cluster) -> set[str]:
    """Of the pods that our objects have made."""
    items = bare.api().get(f"{SYSTEM}/pods")["items"]
    return {one["image"] for pod in items for one in pod["spec"]["containers"]}


@pytest.mark.usefixtures("installed")
def test_the_overlay_names_every_image_of_the_readers(bare: Cluster, reader: Kubectl) -> None:
    made = [
        one["spec"]["template"]["spec"]
        for one in yaml.safe_load_all(bare.kubectl("kustomize", str(reader.folder / "OVERLAY")))
        if one and one["kind"] in ("Deployment", "DaemonSet")
    ]
    every = [one for pod in made for one in (*pod["containers"], *pod.get("initContainers", ()))]
    named = {one["image"] for one in every}
    named |= {e["value"] for one in every for e in one.get("env", ()) if "_IMAGE" in e["name"]}
    assert {one.partition("/")[0] for one in named} == {"registry.example", "upstream.example"}
    assert images(bare) <= named


@pytest.mark.usefixtures("installed")
def test_it_is_upgraded_part_after_part(bare: Cluster, reader: Kubectl) -> None:
    """As docs/how-to/install/upgrade.md has it; tests/upgrade does so with seats in use."""
    page, file = Page("upgrade", reader), reader.folder / "OVERLAY" / "kustomization.yaml"
    before = file.read_text()
    told = yaml.safe_load(before)
    for one in told["images"]:
        one |= {"newTag": "next"}
    file.write_text(yaml.safe_dump(told))
    api = bare.api()
    node = api.post(
        keys.GPU_NODES_PATH,
        {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND, "metadata": {"name": NODE}},
    )
    with page:
        page("kubectl apply --server-side -k config/crd")
        said = page("kubectl apply --server-side -k OVERLAY -l app.kubernetes.io/name=kyb-webhook")
        assert said.count("deployment.apps/") == 1
        page("kubectl -n kyb-system rollout status deployment/kyb-webhook")
        page("kubectl apply --server-side -k config/rbac")
        page("kubectl apply --server-side -k OVERLAY -l app.kubernetes.io/name=kyb-registry")
        page("kubectl -n kyb-system rollout status deployment/kyb-registry")
        page("kubectl apply --server-side -k OVERLAY  ")
        for kind, name in (("deployment", "kyb-proxy"), ("ds", "kyb-agent")):
            bare.kubectl("-n", keys.NAMESPACE, "rollout", "status", f"{kind}/{name}")
        page("kubectl get csr")
    assert api.get(f"{keys.GPU_NODES_PATH}/{NODE}")["metadata"]["uid"] == node["metadata"]["uid"]

    def next_alone() -> bool:
        return {one.rpartition(":")[2] for one in images(bare)} == {"next"}

    until(next_alone, "pods of before are there", 60)


@pytest.mark.usefixtures("installed")
def test_clients_are_let_in_and_shut_out_again(reader: Kubectl) -> None:
    """As docs/how-to/install/let-clients-in.md has it."""
    with Page("let-clients-in", reader) as page:
        keys_ = {page(f"kybernate clients add {name}") for name in ("shop-frontend", "prometheus")}
        assert len(keys_) == 2
        listed = page("kybernate clients list")
        assert "shop-frontend\tkey\tshop\t" in listed
        assert "prometheus\tkey\tall namespaces\t" in listed
        assert page("kybernate clients revoke shop-frontend --dry-run").startswith("would revoke")
        assert page("kybernate clients revoke shop-frontend\n") == "revoked shop-frontend\n"


@pytest.mark.usefixtures("installed")
def test_what_prometheus_and_grafana_read_is_made_known(bare: Cluster, reader: Kubectl) -> None:
    """As docs/how-to/operate/monitoring.md has it."""
    bare.kubectl("create", "namespace", "monitoring")
    bare.kubectl("-n", keys.NAMESPACE, "delete", "secret", "--ignore-not-found", CLIENTS)
    with Page("monitoring", reader) as page:
        page("kubectl label namespace monitoring")
        assert page("kybernate clients add prometheus").startswith("kyb-")
        made = page("kubectl apply -k config/monitoring")
    assert made.count("configmap/") == made.count("\n") == 2


@pytest.mark.usefixtures("installed")
def test_seats_are_let_leave_ram(bare: Cluster, reader: Kubectl) -> None:
    """As docs/how-to/install/offload.md has it, up to the agents that may do so."""
    page, file = Page("offload", reader), reader.folder / "OVERLAY" / "kustomization.yaml"
    told = yaml.safe_load(page.manifest("components:"))
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **told}))
    keyed(reader)
    page("kubectl -n kyb-system create secret generic kyb-registry-object-store")
    page("kubectl -n kyb-system create configmap kyb-object-store")
    page("kubectl apply --server-side -k OVERLAY")
    page("kubectl -n kyb-system rollout status ds/kyb-agent")
    agent = bare.api().get(f"/apis/apps/v1/namespaces/{keys.NAMESPACE}/daemonsets/kyb-agent")
    pod = agent["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    wanted = {
        one["secretRef" if "secretRef" in one else "configMapRef"]["name"]
        for one in container["envFrom"]
    }
    wanted |= {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    core = f"{SYSTEM}/secrets", f"{SYSTEM}/configmaps"
    made = {one["metadata"]["name"] for path in core for one in bare.api().get(path)["items"]}
    assert {"kyb-artifact-keys", "kyb-object-store"} <= wanted & made


def variables(bare: Cluster, kind: str, name: str) -> dict[str, str | None]:
    """The environment of its container, as far as it is written there."""
    found = bare.api().get(f"/apis/apps/v1/namespaces/{keys.NAMESPACE}/{kind}/{name}")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value") for one in container["env"]}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("evacuate-a-node", "kubectl -n kyb-system set env"),
        ("give-back-cpu-and-memory", "kubectl set env daemonset/kyb-agent"),
    ],
)
def test_agents_are_told_a_setting_by_a_variable(
    bare: Cluster, reader: Kubectl, name: str, begin: str
) -> None:
    """As these pages of docs/how-to have it; what the setting does is shown by the page's test."""
    agents = "daemonsets", "kyb-agent"
    before = variables(bare, *agents)
    Page(name, reader)(begin)
    ((variable, value),) = variables(bare, *agents).items() - before.items()
    assert variable.removeprefix("KYB_AGENT_").lower() in AgentSettings.model_fields
    assert value


@pytest.mark.usefixtures("installed")
def test_spans_are_turned_on(bare: Cluster, reader: Kubectl) -> None:
    """As docs/how-to/operate/traces.md has it."""
    page = Page("traces", reader)
    with page:
        page("kubectl -n kyb-system set env deployment/kyb-proxy")
        page("kubectl -n kyb-system set env ds/kyb-agent")
    for kind, name in (("deployments", "kyb-proxy"), ("daemonsets", "kyb-agent")):
        env = variables(bare, kind, name)
        assert env["OTEL_EXPORTER_OTLP_ENDPOINT"].endswith(":4318")
        assert {one for one in env if one.endswith("_TRACES")}


@pytest.mark.usefixtures("installed")
def test_parts_that_fail_are_looked_at_and_restarted(bare: Cluster, reader: Kubectl) -> None:
    """As docs/how-to/failures/when-a-part-fails.md has it. No webhook answers: none really runs."""
    spec = {"containers": [{"name": "main", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": spec}
    seat = {**pod, "metadata": {"name": "seat", "labels": {keys.MANAGED_LABEL: "true"}}}
    api, pods = bare.api(), "/api/v1/namespaces/default/pods"
    with pytest.raises(KybernateError, match=r"failed calling webhook .mutate\.pods\.kyb\.ai"):
        api.post(pods, seat)
    api.post(pods, pod)
    try:
        with Page("when-a-part-fails", reader) as page:
            assert "Running" in page("kubectl -n kyb-system get pods")
            page("kubectl get events -A")
            for part in ("registry", "webhook", "scheduler"):
                path = f"/apis/apps/v1/namespaces/{keys.NAMESPACE}/deployments/kyb-{part}"
                before = api.get(path)["metadata"]["generation"]
                page(f"kubectl -n kyb-system rollout restart deploy/kyb-{part}")
                page(f"kubectl -n kyb-system rollout status deploy/kyb-{part}")
                assert api.get(path)["metadata"]["generation"] > before
            page("kubectl kyb top")
            page("kubectl kyb artifacts ls")
            page("kubectl kyb seats")
            page("kubectl cordon gpu-7")
            assert api.get(f"/api/v1/nodes/{NODE}")["spec"]["unschedulable"]
            assert "plain" in page("kubectl get pods -A --field-selector status.phase=Pending")
    finally:
        bare.kubectl("uncordon", NODE)
        api.delete(f"{pods}/plain")


def asked(url: str, tls: Path) -> None:
    """Call with what the folder holds. Raises KybernateError if one doesn't believe the other."""
    client = Registry(url, tls, "controller")
    with pytest.raises(NotFoundError):
        client.get(f"ns/{name_of(99)}")


@pytest.mark.usefixtures("installed")
def test_a_services_key_that_is_lost_is_replaced(
    bare: Cluster, reader: Kubectl, tmp_path: Path
) -> None:
    """As docs/how-to/operate/change-keys.md has it."""
    page, key = Page("change-keys", reader), reader.folder / "pki" / "controller.key"
    before = key.read_bytes()
    key.unlink()
    bare.kubectl("-n", keys.NAMESPACE, "delete", "secret", "kyb-controller-tls")
    page("kybernate pki init --dir pki ")
    page("kubectl -n kyb-system create secret generic kyb-controller-tls")
    page("kubectl -n kyb-system rollout restart deploy/kyb-controller")
    with begun(bare, tmp_path / "registry") as server:
        assert (server.tls / "controller.key").read_bytes() not in {before, b""}
        asked(server.url, server.tls)


@pytest.mark.usefixtures("installed")
def test_a_wrapping_key_that_is_lost_is_put_back(
    bare: Cluster, reader: Kubectl, tmp_path: Path
) -> None:
    """As docs/how-to/operate/change-keys.md has it."""
    keyed(reader)
    shutil.copytree(reader.folder / "keys", reader.folder / "backup")
    store, dump = open_place(str(tmp_path / "store")), make_dump(tmp_path / "dump")
    nodes = signing(NODE, reader.folder / "pki", tmp_path / NODE)

    def own(server: Server) -> ArtifactKeys:
        return ArtifactKeys(None, {}, server.kms(), nodes)

    with begun(bare, tmp_path / "first") as server:
        saved = pack_dump(dump, store, keys=own(server))
    (reader.folder / "keys" / "wrap-1.key").unlink()
    bare.kubectl("-n", keys.NAMESPACE, "delete", "secret", "kyb-wrap-keys")
    with begun(bare, tmp_path / "second") as server, pytest.raises(KybernateError):
        fetched(store, saved.id, tmp_path / "locked", own(server))
    page = Page("change-keys", reader)
    page("cp backup/wrap-1.key")
    page("kybernate artifacts keys")
    page("kubectl -n kyb-system rollout restart deploy/kyb-registry")
    with begun(bare, tmp_path / "third") as server:
        assert fetched(store, saved.id, tmp_path / "opened", own(server)) == contents(dump)


@pytest.mark.usefixtures("installed")
def test_authorities_are_changed_and_nobody_is_cut_off(
    bare: Cluster, reader: Kubectl, tmp_path: Path
) -> None:
    """As docs/how-to/operate/change-keys.md has it: a registry and a caller of it have what the
    Secrets hold after each step, one of them a step behind for a while."""
    serving, calling = tmp_path / "registry", tmp_path / "controller"
    for into in (serving, calling):
        laid(bare, f"{into.name}-tls", into)
    server = Server(serving, tmp_path / "log", f"sqlite:///{tmp_path}/registry.db")
    server.start()

    def follow(*order: Path) -> None:
        for into in order:
            laid(bare, f"{into.name}-tls", into)
            asked(server.url, calling)

    page, both = Page("change-keys", reader), {"trusted": "pki-both"}
    agents = "kubectl -n kyb-system create secret generic kyb-agent-tls"
    try:
        page("kybernate pki init --dir pki-new")
        page("mkdir pki-both")
        page("cat pki/ca.crt")
        page("cat pki/agents-ca.crt")
        page(LOOP, pair="pki", **both)
        page(agents, **both)
        page("kubectl -n kyb-system rollout restart deploy\n")
        page("kubectl -n kyb-system rollout restart ds/kyb-agent")
        page("kubectl -n kyb-system rollout status ds/kyb-agent")
        follow(serving, calling)
        page(LOOP, pair="pki-new", **both)
        page("kybernate pki secret --agents --dir pki-new")
        page("kubectl -n kyb-system rollout restart deploy\n")
        follow(calling, serving)
        old = tmp_path / "old"
        laid(bare, "controller-tls", old)
        page(LOOP, pair="pki-new", trusted="pki-new")
        follow(serving, calling)
        signs = bare.api().get(f"{SYSTEM}/secrets/kyb-agents-ca")["data"]["agents-ca.crt"]
        new = (reader.folder / "pki-new" / "agents-ca.crt").read_bytes()
        assert base64.b64decode(signs) == new
        # Why each step waits for the end of the one before: who is two behind is refused.
        for file in ("controller.crt", "controller.key"):
            (old / file).write_bytes((reader.folder / "pki" / file).read_bytes())
        with pytest.raises(KybernateError):
            asked(server.url, old)
        with page:
            page("kybernate clients add shop --of shop --replace")
    finally:
        server.kill()
