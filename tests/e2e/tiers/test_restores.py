"""A pod's saved state goes on in another pod: on the other node, once, and only if it may."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from images import criu
from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.errors import ConflictError, KybernateError, NotFoundError, RefusedError
from kybernate.types import Tier
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import layout_of, running
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.conftest import emptied
from tests.kit.clients.direct import Direct
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.pods import PODS, SeatPod, ready
from tests.kit.servers.registryserver import Server
from tests.simgpu import read_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.kit.clients.models import Answer
    from tests.kit.pods import Pods

    Json = dict[str, Any]

pytestmark = pytest.mark.e2e

ENTER = REPOSITORY / "build" / "kyb-enter"
NAME = "restores"
CHANGED = ["/tmp/changed", "/dev/shm/changed", "/var/changed"]
EVENTS = "/api/v1/namespaces/default/events"
OTHERS = "neighbours"
GRANTS = keys.ARTIFACT_GRANTS_PATH.replace("artifactgrants", "namespaces/default/artifactgrants")


class Site:
    """Two nodes with two GPUs each, one object store, and a registry."""

    def __init__(self, cluster: Cluster, registry: Server, objects: Path) -> None:
        self.cluster = cluster
        self.registry = registry.client()
        self.registry_port, self.registry_probe = registry.port, registry.probe
        self.objects, self.keys = objects, objects.parent / "keys"

    def seat(self, node: str, pod: str) -> Json:
        """What the GPUNode says of a pod's seat."""
        status = self.cluster.api().get(f"{keys.GPU_NODES_PATH}/{node}").get("status") or {}
        found: Json = next((s for s in status.get("seats", ()) if s["pod"] == pod), {})
        return found

    def used(self, node: str, uid: str) -> set[int]:
        """The numbers of the node's GPUs on which processes that began in a pod had memory."""
        status = self.cluster.api().get(f"{keys.GPU_NODES_PATH}/{node}")["status"]
        index = {gpu["uuid"]: gpu["index"] for gpu in status["gpus"]}
        log = read_log(self.cluster.node(node).simgpu_root)
        return {index[record.gpu] for record in log if record.pod == uid}

    def sentence(self, pod: str, reason: str) -> str:
        """What people are told of a pod; empty if nothing of this kind yet."""
        for event in self.cluster.api().get(EVENTS)["items"]:
            if event["involvedObject"]["name"] == pod and event["reason"] == reason:
                return str(event["message"])
        return ""

    def execute(self, pod: str, text: str) -> str:
        """What a line of Python prints in the pod's container."""
        return self.cluster.kubectl("exec", pod, "-c", "server", "--", "python3", "-c", text)

    def park(self, node: str, pod: str, tier: str = "object") -> None:
        """To the object store, or another tier, by an operator."""
        socket = f"/proc/{self.cluster.node(node).pid}/root{keys.AGENT_SOCKET}"
        words = [sys.executable, "-m", "kybernate.cli", "agent", "--socket", socket]
        words += ["park", pod, "--tier", tier, "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
        assert json.loads(done.stdout)["state"] == "succeeded", (done.stdout, done.stderr)
        wait_until(lambda: self.seat(node, pod).get("tier") == tier, 20, "not shown there")

    def saved(self, uid: str) -> str:
        """The pod's artifact, once the registry knows that the object store has it verified."""
        found: list[str] = []

        def known() -> bool:
            wanted = wire.Filter(namespace="default", pod_uid=uid, place=Tier.OBJECT)
            page = self.registry.page(wanted)
            whole = [one for one in page.items if _verified(one)]
            found[:] = [one.id for one in whole]
            return bool(found)

        wait_until(known, 20, "the registry isn't told")
        return found[0]

    def stopped(self, uid: str) -> None:
        """Once the registry has the proof."""

        def told() -> bool:
            try:
                return self.registry.pod("default", uid).stopped is not None
            except NotFoundError:
                return False

        wait_until(told, 20, "the registry isn't told that it stopped")


def _verified(entry: wire.Entry) -> bool:
    state = wire.CopyState.VERIFIED
    return any(copy.place is Tier.OBJECT and copy.state is state for copy in entry.copies)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(tmp_path_factory, GpuSpec(count=2)) as found:
        yield found


@contextmanager
def standing(
    tmp_path_factory: pytest.TempPathFactory,
    gpus: GpuSpec,
    seats: Mapping[str, object] | None = None,
    **settings: str,
) -> Iterator[Site]:
    """A site with these GPUs and seats, and more settings of its agents."""
    if not ENTER.exists():
        pytest.skip("needs kyb-enter; run make native")
    try:
        engine = criu.for_this_machine(print)
    except KybernateError as error:
        pytest.skip(f"needs CRIU: {error}")
    folder = tmp_path_factory.mktemp(NAME)
    objects = folder / "objects"
    objects.mkdir()
    words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--dir"]
    subprocess.run([*words, str(folder / "keys")], check=True, cwd=REPOSITORY, timeout=60)
    agent = {
        "KYB_AGENT_CRIU": str(engine),
        "KYB_AGENT_KYB_ENTER": str(ENTER),
        "KYB_AGENT_ARTIFACT_KEYS": str(folder / "keys"),
        "KYB_AGENT_OBJECT_STORE": str(objects),
        "KYB_AGENT_TIER_RESIDENCY_S": "0",
        **settings,
    }
    bare = ClusterSpec(
        name=NAME,
        nodes=("n1", "n2"),
        subnet="10.104.0.0/16",
        gpus=gpus,
        seats=seats,
        images=("toy", "sidecar"),
    )
    layout, database = layout_of(bare), f"sqlite:///{folder}/registry.db"
    # What agents say is held against the cluster.
    access = {"CLUSTER": "kubernetes", "KUBECONFIG": str(layout.kubeconfig("registry"))}
    registry = Server(layout.tls, folder / "registry.log", database, **access)
    agent["KYB_AGENT_REGISTRY_URL"] = registry.url
    spec = ClusterSpec(
        name=bare.name,
        nodes=bare.nodes,
        subnet=bare.subnet,
        gpus=bare.gpus,
        seats=bare.seats,
        images=bare.images,
        service_env={
            "agent": agent,
            "controller": {"KYB_CONTROLLER_REGISTRY_URL": registry.url},
            "proxy": {"KYB_PROXY_REGISTRY_URL": registry.url},
        },
    )
    with running(spec, print) as up:
        registry.start()
        try:
            registry.client().settle("a new registry")
            yield Site(up, registry, objects)
        finally:
            registry.stop()


@pytest.fixture
def seats(site: Site) -> Iterator[Pods]:
    with emptied(site.cluster) as found:
        yield found


@pytest.fixture
def reader(site: Site, tmp_path: Path) -> Kubectl:
    """kubectl of somebody who follows a page, on n1 as root where the page says so."""
    found = Kubectl(site.cluster.kubectl_path, tmp_path, site.cluster.kubeconfig)
    socket = f"/proc/{site.cluster.node('n1').pid}/root{keys.AGENT_SOCKET}"
    found.environment["KYB_AGENT_SOCKET"] = socket
    return found


def pod(name: str, node: str, *, arguments: tuple[str, ...] = (), **notes: str) -> Json:
    """Alike but for its name, its node and what it restores."""
    made = SeatPod("toy", bytes_="1GiB", node=node, arguments=arguments)
    manifest = made.manifest()
    manifest["metadata"]["name"] = name
    named = {f"{keys.GROUP}/{note.replace('_', '-')}": text for note, text in notes.items()}
    manifest["metadata"]["annotations"] |= named
    return manifest


def ask(seats: Pods, name: str) -> Answer:
    """One answer of a pod that is Ready by then."""
    found = seats.wait([name], ready, 90, "Ready")[name]
    return Direct.to(found).ask(limit=60)


def gone(site: Site, seats: Pods, name: str) -> tuple[str, str, Answer]:
    """A pod that was parked in the object store and deleted: UID, artifact, its last answer."""
    created = site.cluster.api().post(PODS, pod(name, "n1", require_group="G0"))
    uid = created["metadata"]["uid"]
    assert ask(seats, name).counter == 1
    last = ask(seats, name)
    site.execute(name, f"[open(path, 'w').write('since') for path in {CHANGED}]")
    site.park("n1", name)
    artifact = site.saved(uid)
    seats.delete([name])
    seats.gone([name], 30)
    site.stopped(uid)
    return uid, artifact, last


def test_a_pod_goes_on_on_the_other_node_and_only_once(site: Site, seats: Pods) -> None:
    uid, artifact, last = gone(site, seats, "a")
    assert (last.counter, last.intact) == (2, True)
    api = site.cluster.api()
    successor = api.post(PODS, pod("b", "n2", require_group="G1", restore_from=f"pod/{uid}"))
    answer = ask(seats, "b")
    refused = site.sentence("b", "RestoreRefused") + site.sentence("b", "SeatFailed")
    assert (answer.status, answer.counter, answer.intact) == (200, 3, True), refused
    for what in ("boot", "pid"):
        assert answer.body["kyb"][what] == last.body["kyb"][what]
    wait_until(lambda: artifact in site.sentence("b", "Adopted"), 30, "no event tells of it")
    known = site.registry.pod("default", uid)
    assert (known.successor, known.successor_node) == (successor["metadata"]["uid"], "n2")
    assert ask(seats, "b").counter == 4
    assert site.used("n1", uid) == {0}
    assert site.used("n2", uid) == {1}
    assert site.execute("b", f"print(*[open(path).read() for path in {CHANGED}])").split() == [
        "since" for _ in CHANGED
    ]

    api.post(PODS, pod("late", "n1", require_group="G0", restore_from=artifact))
    anew = ask(seats, "late")
    assert (anew.counter, anew.intact) == (1, True)
    assert anew.body["kyb"]["boot"] != last.body["kyb"]["boot"]
    said = site.sentence("late", "RestoreRefused")
    assert "continues with the state of pod" in said
    assert "started again" in said

    wanted = pod("copy", "n1", require_group="G1", restore_from=artifact, restore_as="template")
    api.post(PODS, wanted)
    assert ask(seats, "copy").counter == 3, site.sentence("copy", "SeatFailed")
    assert site.used("n1", uid) == {0, 1}, "it is where it was, or nowhere"


def test_pods_are_restored_by_one_command(site: Site, seats: Pods, reader: Kubectl) -> None:
    """As docs/how-to/workloads/restore-a-pod.md has it."""
    page = Page("restore-a-pod", reader, place=str(site.objects))
    (reader.folder / "keys").symlink_to(site.keys)
    site.cluster.api().post(PODS, pod("a", "n1", require_group="G0"))
    first = ask(seats, "a")
    try:
        saved = page("kubectl kyb snapshot").splitlines()[-1].split()[0]
        page("kybernate agent save")
        copy = page("kubectl kyb restore llama").splitlines()[-1].removeprefix("pod/")
        answer = ask(seats, copy)
        assert (answer.counter, answer.intact) == (first.counter + 1, True)
        assert answer.body["kyb"]["boot"] == first.body["kyb"]["boot"]
        assert ask(seats, "a").counter == first.counter + 1, "the original counts by itself"
        assert saved in page("kybernate artifacts ls")

        _, _, last = gone(site, seats, "b")
        (reader.folder / "pod.yaml").write_text(yaml.safe_dump(pod("b", "n2")))
        successor = page("kubectl kyb restore training").splitlines()[-1].removeprefix("pod/")
        answer = ask(seats, successor)
        assert (answer.counter, answer.intact) == (last.counter + 1, True)
        assert answer.body["kyb"]["boot"] == last.body["kyb"]["boot"]
        assert seats.all()[successor]["spec"]["nodeName"] == "n2"
        with page:
            assert "object" in page("kubectl kyb artifacts ls")
    finally:
        site.cluster.kubectl("delete", "rst,ckpt", "--all")


def test_what_may_not_be_restored_is_told_and_started_anew(site: Site, seats: Pods) -> None:
    _, artifact, _ = gone(site, seats, "a")
    api = site.cluster.api()
    with pytest.raises(RefusedError, match="names no pod"):
        api.post(PODS, pod("bad", "n2", restore_from="pod/../.."))
    foreign = artifact.replace("default/", "other/")
    with pytest.raises(RefusedError, match="ArtifactGrant"):
        api.post(PODS, pod("bad", "n2", restore_from=foreign, restore_as="template"))
    other = pod("other", "n2", arguments=("--fill=512KiB",), restore_from=artifact)
    api.post(PODS, other)
    assert ask(seats, "other").counter == 1
    assert "specified otherwise" in site.sentence("other", "RestoreRefused")

    path = site.objects / "artifacts" / artifact.replace("@", "/") / "manifest"
    path.write_bytes(path.read_bytes().replace(b'"highest_pid":', b'"highest_pid":1'))
    api.post(PODS, pod("forged", "n1", restore_from=artifact))
    assert ask(seats, "forged").counter == 1
    assert "sign" in site.sentence("forged", "RestoreRefused")


@pytest.fixture
def neighbours(site: Site) -> Iterator[str]:
    """The path of the pods of another namespace, which has none before and after."""
    api = site.cluster.api()
    with suppress(ConflictError):
        api.post("/api/v1/namespaces", {"metadata": {"name": OTHERS}})
    path = PODS.replace("default", OTHERS)
    account = f"/api/v1/namespaces/{OTHERS}/serviceaccounts"
    wait_until(lambda: bool(api.get(account)["items"]), 30, "no account for its pods")
    yield path
    for one in api.get(path)["items"]:
        api.delete(f"{path}/{one['metadata']['name']}", {"gracePeriodSeconds": 0})
    wait_until(lambda: not api.get(path)["items"], 60, "its pods stay")


def test_an_artifact_grant_lets_another_namespace_start_a_copy(
    site: Site, seats: Pods, neighbours: str, reader: Kubectl
) -> None:
    """As docs/how-to/workloads/share-artifacts.md has it."""
    page = Page("share-artifacts", reader)
    _, artifact, last = gone(site, seats, "a")
    api, wanted = site.cluster.api(), pod("b", "n2", restore_from=artifact, restore_as="template")
    with pytest.raises(RefusedError, match=f"must let {OTHERS} restore a"):
        api.post(neighbours, wanted)
    grant = yaml.safe_load(page.manifest("apiVersion: kyb.ai/v1alpha1"))
    api.post(GRANTS, grant)
    with page:
        try:
            wait_until(lambda: _taken(site, neighbours, wanted), 20, "the grant isn't heard of")
            wait_until(lambda: ready(api.get(f"{neighbours}/b")), 90, "not Ready")
            answer = Direct.to(api.get(f"{neighbours}/b")).ask(limit=60)
            assert grant["metadata"]["name"] in page("kubectl -n team-a get artg")
        finally:
            page("kubectl -n team-a delete artg")
    assert (last.counter, answer.counter, answer.intact) == (2, 3, True)
    assert answer.body["kyb"]["boot"] == last.body["kyb"]["boot"]


def _taken(site: Site, path: str, wanted: Json) -> bool:
    try:
        site.cluster.api().post(path, wanted)
    except RefusedError:
        return False
    return True


COUNTED = (
    "import json, urllib.request as u\n"
    "a = u.Request('http://127.0.0.1:8000/v1/chat/completions', b'{\"max_tokens\": 1}')\n"
    "k = json.load(u.urlopen(a, timeout=30))['kyb']\n"
    "print(k['counter'], k['boot'], k['checksum'] == k['expected'])"
)
"""What a server tells that is asked from within its container."""


def test_a_clone_in_another_namespace_in_one_step_with_a_grant(
    site: Site, seats: Pods, neighbours: str, reader: Kubectl
) -> None:
    """As docs/how-to/workloads/debugging.md has it."""
    api, page = site.cluster.api(), Page("debugging", reader)
    api.post(PODS, pod("a", "n1", require_group="G0"))
    first = ask(seats, "a")
    page("kubectl kyb snapshot")
    clone = "kubectl kyb clone llama -n dev"
    with page.start(clone) as refused:
        wrong = refused.communicate(timeout=60)[1]
    assert (refused.returncode, "NotGranted" in wrong) == (1, True), wrong
    grant = page.sample("artifactgrant")
    grant["metadata"]["namespace"] = "default"
    grant["spec"] |= {"to": [OTHERS], "artifacts": ["a"]}
    (page.config / "samples" / "artifactgrant.yaml").write_text(yaml.safe_dump(grant))
    try:
        with page:
            page("kubectl apply -f config/samples/artifactgrant.yaml")
            made = page(clone).splitlines()[-1]
        name = made.removeprefix("pod/")
        inside = ("-n", OTHERS, "exec", name, "-c", "server", "--", "python3", "-c")
        counter, boot, intact = site.cluster.kubectl(*inside, COUNTED).split()
        assert (counter, boot, intact) == ("2", first.body["kyb"]["boot"], "True")
        assert ask(seats, "a").counter == 2, "the original counts by itself"
        (asked,) = (
            one["metadata"]["name"]
            for one in api.get(f"/apis/{keys.API_VERSION}/namespaces/{OTHERS}/restorerequests")[
                "items"
            ]
            if one["status"]["conditions"][0]["reason"] == "Restored"
        )
        site.cluster.kubectl("delete", "rst", "-n", OTHERS, asked)
        wait_until(lambda: not api.get(neighbours)["items"], 60, "the clone stays")
    finally:
        site.cluster.kubectl("delete", "artg", grant["metadata"]["name"])
        site.cluster.kubectl("delete", "rst", "-n", OTHERS, "--all")
    assert ask(seats, "a").counter == 3
