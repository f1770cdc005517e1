"""Installed, upgraded, given other authorities and removed as the pages have it, line by line, on a
real API server with Kubernetes' own controllers. A thread stands in for the kubelet: the pods
themselves run in tests/e2e/rollout."""

from __future__ import annotations

import base64
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import yaml

from kybernate import keys
from kybernate.adapters.keys.artifactkeys import ArtifactKeys
from kybernate.adapters.registry.client import Registry
from kybernate.checkpoint.places import open_place
from kybernate.errors import KybernateError, NotFoundError
from kybernate.settings.agent import AgentSettings
from tests.cluster.layout import REPOSITORY
from tests.integration.hooks import until
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.rollouts import Rollouts
from tests.kit.servers import s3
from tests.kit.servers.registryserver import Server, signing
from tests.unit.checkpoint.kit import contents, fetched, make_dump, pack_dump
from tests.unit.registry.replica import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kybernate.checkpoint.places import Place
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

NODE = "gpu-1"
OFFLOADING = REPOSITORY / "config" / "overlays" / "below-ram"
MADE = "DirectoryOrCreate"
SYSTEM = f"/api/v1/namespaces/{keys.NAMESPACE}"
AGENT, CLIENTS = "kyb-agent", "kyb-proxy-clients"
LOOP = "for name in extender scheduler proxy registry controller"


@pytest.fixture(scope="module")
def reader(bare: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """Somebody with a clone's config/ and a folder of the own overlay."""
    return Kubectl(bare.kubectl_path, tmp_path_factory.mktemp("reader"), bare.kubeconfig)


@contextmanager
def rolled(bare: Cluster) -> Iterator[None]:
    """On one node, whose kubelet is stood in for."""
    api = bare.api()
    nvidia = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    api.post("/apis/node.k8s.io/v1/runtimeclasses", nvidia)
    api.post("/api/v1/nodes", {"metadata": {"name": NODE}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    api.patch(f"/api/v1/nodes/{NODE}/status", {"status": {"conditions": [ready]}})
    with Rollouts(api, keys.NAMESPACE, NODE):
        yield
    api.delete(f"/api/v1/nodes/{NODE}")
    api.delete("/apis/node.k8s.io/v1/runtimeclasses/nvidia")


@pytest.fixture(scope="module")
def installed(bare: Cluster, reader: Kubectl) -> Iterator[None]:
    """As docs/how-to/install/install.md has it, and removed as remove.md has."""
    names = {"registry": "registry.example", "upstream": "upstream.example"}
    page = Page("install", reader, **names)
    (reader.folder / "OVERLAY").mkdir()
    overlay = page.manifest("apiVersion: kustomize")
    (reader.folder / "OVERLAY" / "kustomization.yaml").write_text(overlay)
    with rolled(bare), page:
        page("kubectl apply -f config/rbac/namespace.yaml")
        page("kybernate pki init")
        page("kubectl -n kyb-system create secret generic kyb-agent-tls")
        page(LOOP)
        page("kybernate pki secret --agents")
        page("kubectl apply --server-side -k OVERLAY")
        page("kubectl label node gpu-1")
        for name in ("scheduler", "webhook", "proxy"):
            page(f"kubectl -n kyb-system rollout status deploy/kyb-{name}")
        page("kubectl -n kyb-system rollout status ds/kyb-agent")
        page("kubectl -n kyb-system rollout status ds/kyb-device-plugin")
        page("kubectl get gpunodes")
        page("kubectl get node gpu-1")
        yield
        if left(bare):
            remove(bare, Page("remove", reader))


def remove(bare: Cluster, page: Page) -> None:
    """What the page has for the cluster; nothing may be there for that any more."""
    page("kubectl delete pods")
    page("kubectl label node --all")
    page("kubectl -n kyb-system wait --for=delete pod")
    assert agents(bare) == [], "they would see the objects go that say what is pinned"
    page("kubectl delete -k OVERLAY")
    assert left(bare) == []


def agents(bare: Cluster) -> list[str]:
    """Their pods, ended or not."""
    label = f"app.kubernetes.io/name={AGENT}"
    found = bare.kubectl("-n", keys.NAMESPACE, "get", "pods", "-l", label, "-o", "name")
    return found.split()


def left(bare: Cluster) -> list[str]:
    """What is still there of ours."""
    kinds = "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,priorityclass,namespace"
    hooks = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
    said = bare.kubectl("get", f"{kinds},{hooks}", "-o", "name")
    return [one for one in said.split() if "kyb" in one]


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


def keyed(reader: Kubectl) -> None:
    """There are keys of artifacts, as docs/how-to/install/offload.md makes them."""
    page = Page("offload", reader)
    page("mkdir -p -m 700 keys")
    page("cp pki/ca.crt pki/agents-ca.crt")
    page("kybernate artifacts keys")


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


def laid(bare: Cluster, name: str, into: Path) -> None:
    """What a Secret has, as the kubelet lays it: each file whole."""
    secret = bare.api().get(f"{SYSTEM}/secrets/kyb-{name}")["data"]
    into.mkdir(exist_ok=True)
    for file, text in secret.items():
        beside = into / f".{file}"
        beside.write_bytes(base64.b64decode(text))
        beside.replace(into / file)


def asked(url: str, tls: Path) -> None:
    """Call with what the folder holds. Raises KybernateError if one doesn't believe the other."""
    client = Registry(url, tls, "controller")
    with pytest.raises(NotFoundError):
        client.get(f"ns/{name_of(99)}")


@contextmanager
def begun(bare: Cluster, folder: Path, **more: str) -> Iterator[Server]:
    """A registry by what the Secrets hold, which `folder` gets, the controller's too; its database
    lies beside that folder."""
    for name in ("registry-tls", "controller-tls"):
        laid(bare, name, folder)
    with suppress(NotFoundError):
        laid(bare, "wrap-keys", folder / "wrap-keys")
    wraps = str(folder / "wrap-keys")
    url = f"sqlite:///{folder.parent}/registry.db"
    server = Server(folder, folder / "log", url, WRAP_KEYS=wraps, **more)
    server.start()
    try:
        yield server
    finally:
        server.kill()


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


@pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-")
@pytest.mark.usefixtures("installed")
def test_artifacts_stay_in_the_store_until_somebody_asks(
    bare: Cluster, reader: Kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/how-to/install/remove.md has it. A new installation opens them by the folders that
    the first one's administrator has kept, and by nothing else."""
    keyed(reader)
    nodes = signing(NODE, reader.folder / "pki", tmp_path / NODE)
    dump = make_dump(tmp_path / "dump")
    with s3.server(tmp_path / "s3") as store, monkeypatch.context() as patched:
        for name, value in store.environment.items():
            patched.setenv(name, value)
        reader.environment |= store.environment
        bucket = open_place(store.url)
        with begun(bare, tmp_path / "first", OBJECT_STORE=store.url) as server:
            own = ArtifactKeys(None, {}, server.kms(), nodes)
            saved = pack_dump(dump, bucket, keys=own)
        before = stored(bucket)
        page = Page("remove", reader, store=store.url)
        remove(bare, page)
        assert stored(bucket) == before
        (tmp_path / "registry.db").unlink()

        # The database went with its volume, the Secrets with the namespace.
        again(reader)
        reader.environment |= {
            "KYB_REGISTRY_DATABASE": f"sqlite:///{tmp_path}/registry.db",
            "KYB_REGISTRY_WRAP_KEYS": str(reader.folder / "keys"),
            "KYB_REGISTRY_CLUSTER": "none",
        }
        places = {"objects": store.url, "nvme": str(tmp_path / "nvme")}
        recover = Page("recover-the-registry", reader, **places)
        assert "1 artifacts taken in" in recover("kyb-registry rebuild")
        rm = "kybernate artifacts rm s3://BUCKET/kybernate --all"
        with begun(bare, tmp_path / "second", OBJECT_STORE=store.url) as server:
            with page.start(f"{rm} --yes --keys keys --registry", registry=server.url) as refused:
                _, why = refused.communicate(timeout=60)
            assert (refused.returncode, "nothing was deleted" in why) == (1, True), why
            assert f"pod {saved.facts.namespace}/{saved.facts.pod_uid}: who continues" in why
            recover("kyb-registry settle")
            assert server.client().get(saved.id).id == saved.id
            own = ArtifactKeys(None, {}, server.kms(), nodes)
            assert fetched(bucket, saved.id, tmp_path / "opened", own) == contents(dump)

        (line,) = [one for one in page(f"{rm} --keys").splitlines() if "team-a" in one]
        assert line.split()[:2] == ["team-a", "1"]
        assert stored(bucket) == before
        page(f"{rm} --yes --keys keys\n")
        assert stored(bucket) == {}
    bare.kubectl("delete", "namespace", keys.NAMESPACE)


def stored(bucket: Place) -> dict[str, bytes]:
    """All that is in the store."""
    return {one.key: bytes(bucket.objects.get(one.key)) for one in bucket.objects.scan("")}


def again(reader: Kubectl) -> None:
    """Another installation by who has kept the folders: up to its Secrets."""
    page = Page("install", reader)
    page("kubectl apply -f config/rbac/namespace.yaml")
    page("kybernate pki init")
    page(LOOP)
    page("kybernate pki secret --agents")
    keyed(reader)


def written_on_nodes(bare: Cluster) -> set[str]:
    """Folders that our pods have on a node because they make them there."""
    found = set()
    for one in yaml.safe_load_all(bare.kubectl("kustomize", str(OFFLOADING))):
        if one["kind"] == "DaemonSet":
            pod = one["spec"]["template"]["spec"]
            mounts = [mount for each in pod["containers"] for mount in each["volumeMounts"]]
            written = {mount["name"] for mount in mounts if not mount.get("readOnly")}
            paths = [one.get("hostPath", {}) for one in pod["volumes"] if one["name"] in written]
            found |= {path["path"] for path in paths if path.get("type") == MADE}
    return found


def only_below(folder: Path, program: Path) -> None:
    """An rm that takes nothing away of the machine that runs this, whatever a line has."""
    program.write_text(
        "#!/bin/sh\n"
        f"for one; do case $one in -rf | {folder}/*) ;; *) exit 9 ;; esac; done\n"
        f'exec {shutil.which("rm")} "$@"\n'
    )
    program.chmod(0o755)


def test_nodes_keep_nothing(bare: Cluster, reader: Kubectl, tmp_path: Path) -> None:
    """As docs/how-to/install/remove.md has it."""
    page = Page("remove", reader, node=str(tmp_path))
    for path in written_on_nodes(bare):
        folder = tmp_path / path.removeprefix("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("kyb-1.json", "others.json"):
            (folder / name).write_text("{}")
    only_below(tmp_path, reader.folder / "rm")
    page("rm -rf /run/kyb")
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["others.json"]
