"""Webhook, scheduler with extender, and proxy as the pods of config/, from their own images."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml

from kybernate import keys
from kybernate.errors import KybernateError, RefusedError
from tests.cluster import ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.e2e.conftest import emptied
from tests.e2e.rollout.control import IMAGES, deployed
from tests.kit.clients.kubectl import Kubectl
from tests.kit.clients.models import Models
from tests.kit.howto import Page
from tests.kit.pods import SeatPod, group_of, ready
from tests.simgpu import read_log, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster import Cluster
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(
    name="kybside",
    subnet="10.97.0.0/16",
    nodes=("n1",),
    gpus=GpuSpec(count=2),
    services=frozenset({"agent", "plugin"}),
    images=("toy", *IMAGES),
    node_pods=True,
)
CALL_S = 30.0
RESTARTS = "{.items[*].status.containerStatuses[0].restartCount}"
SAMPLES = REPOSITORY / "config" / "samples"
RUNS = {"Deployment": "Available", "Pod": "Ready"}
"""The condition of what runs; of all else somebody says how it stands."""
READ_ONLY = "ArtifactGrant"
"""A kind that is read, and has no status."""
PORTS = {"proxy_port": "18080", "extender_port": "19444"}
"""Of this machine, where port-forwards of pages lead from."""


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Page]]:
    """A cluster of which nothing of ours is a process of the machine, and who has installed it."""
    with running(SPEC, print) as up:
        reader = Kubectl(up.kubectl_path, tmp_path_factory.mktemp("reader"), up.kubeconfig)
        page = Page("install", reader, registry="localhost", **PORTS)
        with deployed(up, page):
            yield up, page


@pytest.fixture(scope="module")
def side(following: tuple[Cluster, Page]) -> Cluster:
    return following[0]


@pytest.fixture(scope="module")
def install(following: tuple[Cluster, Page]) -> Page:
    """docs/how-to/install/install.md, whose reader has the variables and the folder `pki`."""
    return following[1]


@pytest.fixture
def models(side: Cluster, install: Page) -> Iterator[Models]:
    """The proxy, asked with the client's key; without one it answers nobody."""
    found = Models(f"http://{proxy_of(side)}")
    stranger = found.ask("one")
    assert (stranger.status, stranger.body["error"]["code"]) == (401, "unknown_client")
    found._session.headers["Authorization"] = f"Bearer {install.variable('KEY')}"
    yield found
    found.close()


@pytest.fixture
def seats(side: Cluster) -> Iterator[Pods]:
    with emptied(side) as found:
        yield found


def pods_of(cluster: Cluster, name: str) -> dict[str, dict[str, Any]]:
    """The pods of a Deployment that aren't being deleted, by name."""
    query = {"labelSelector": f"app.kubernetes.io/name={name}"}
    found = cluster.api().get(f"/api/v1/namespaces/{keys.NAMESPACE}/pods", query)["items"]
    return {
        one["metadata"]["name"]: one for one in found if "deletionTimestamp" not in one["metadata"]
    }


def proxy_of(cluster: Cluster) -> str:
    """Where a proxy listens."""
    proxy = next(iter(pods_of(cluster, "kyb-proxy").values()))
    return f"{proxy['status']['podIP']}:8080"


def opened(port: str) -> None:
    """Once a port-forward of a page is there."""

    def there() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", int(port))) == 0

    wait_until(there, 30, "the port-forward does not begin")


def test_a_pod_goes_all_the_way_through_them(seats: Pods, models: Models) -> None:
    with pytest.raises(RefusedError, match="24 GB"):
        seats.create(SeatPod("wrong", vram="24 GB"))
    for name in ("one", "two"):
        seats.create(SeatPod(name, annotations={keys.REQUIRE_GROUP: "G0"}))
    made = seats.wait(("one", "two"), ready, 60, "Ready")
    assert {group_of(pod) for pod in made.values()} == {"G0"}
    commands = {pod["spec"]["containers"][0]["command"][0] for pod in made.values()}
    assert commands == {"/kyb/kyb-init"}
    answers = {name: models.ask(name) for name in made}
    assert {one.status for one in answers.values()} == {200}, [one.body for one in answers.values()]
    first = {name: one.counter for name, one in answers.items()}
    for name in made:
        answer = models.ask(name)
        assert (answer.intact, answer.counter) == (True, first[name] + 1)


@pytest.mark.parametrize(
    ("deployment", "container"),
    [
        ("kyb-webhook", "webhook"),
        ("kyb-scheduler", "extender"),
        ("kyb-proxy", "proxy"),
        ("kyb-controller", "controller"),
    ],
)
def test_they_are_nobody_and_can_write_nothing(
    side: Cluster, deployment: str, container: str
) -> None:
    run = ("-n", keys.NAMESPACE, "exec", f"deploy/{deployment}", "-c", container, "--", "python3")
    assert side.kubectl(*run, "-c", "import os; print(os.getuid())").strip() == "65532"
    with pytest.raises(KybernateError, match="Read-only file system"):
        side.kubectl(*run, "-c", "open('/usr/lib/kybernate/x', 'w')")


def test_a_request_is_carried_out_also_when_the_leader_is_lost(side: Cluster, seats: Pods) -> None:
    seats.create(SeatPod("asked"))
    seats.wait(["asked"], ready, 90, "Ready")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}/leases/kyb-controller"
    holder = side.api().get(lease)["spec"]["holderIdentity"].partition("_")[0]
    assert holder in pods_of(side, "kyb-controller")
    gone = ("delete", "pod", holder, "--grace-period=0", "--force", "--wait=false")
    side.kubectl("-n", keys.NAMESPACE, *gone)
    spec = {"pod": "asked", "mode": "Evict"}
    body = {"apiVersion": keys.API_VERSION, "kind": keys.CHECKPOINT_REQUEST_KIND, "spec": spec}
    path = f"/apis/{keys.API_VERSION}/namespaces/default/checkpointrequests"
    side.api().post(path, {**body, "metadata": {"name": "asked"}})
    try:
        complete = ("wait", "--for=condition=Complete", "--timeout=90s")
        side.kubectl(*complete, "checkpointrequest/asked", limit=100)
        (condition,) = side.api().get(f"{path}/asked")["status"]["conditions"]
        assert condition["reason"] == "Evicted"
    finally:
        side.api().delete(f"{path}/asked")


def test_one_replica_of_each_is_enough(side: Cluster, seats: Pods) -> None:
    """The scheduler that leads is lost, and a webhook: the others do the work."""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}/leases/kybernate-scheduler"
    holder = side.api().get(lease)["spec"]["holderIdentity"].partition("_")[0]
    lost = [holder, min(pods_of(side, "kyb-webhook"))]
    assert holder in pods_of(side, "kyb-scheduler")
    gone = ("delete", "pod", *lost, "--grace-period=0", "--force", "--wait=false")
    side.kubectl("-n", keys.NAMESPACE, *gone)
    seats.create(SeatPod("after"))
    seats.wait(["after"], ready, 90, "Ready")
    assert side.api().get(lease)["spec"]["holderIdentity"].partition("_")[0] != holder


def test_what_the_documents_say_of_asking_the_extender_works(
    side: Cluster, install: Page, seats: Pods
) -> None:
    """docs/how-to/plan/replay-decisions.md and workloads/find-out-why-a-pod-waits.md."""
    seats.create(SeatPod("waits", annotations={keys.REQUIRE_GROUP: "G0", "kyb.ai/vram": "79Gi"}))
    why = install.another("find-out-why-a-pod-waits")
    forward = "kubectl -n kyb-system port-forward deploy/kyb-scheduler"
    with why:
        assert "default/waits: " in why("kubectl kyb explain pod")
        assert "Annotations:" in why("kubectl -n team-a describe pod")
        why.start(forward)
        opened(PORTS["extender_port"])
        assert why("kybernate explain pod").startswith("default/waits: ")
        with why.start("kybernate rebalance --dry-run") as planned:
            said = "".join(planned.communicate(timeout=CALL_S))
        assert ("waits" in said, "Traceback" in said) == (True, False), said
    replay = install.another("replay-decisions")
    with replay:
        replay.start(forward)
        opened(PORTS["extender_port"])
        replay("kybernate dump")
        dump = json.loads((install.folder / "ledger.json").read_text())
        assert dump["format"] == "kybernate.ledger/1"
        assert [node["name"] for node in dump["nodes"]] == ["n1"]
        replay("kybernate replay ledger.json   ")
        replay("kybernate replay ledger.json --policy spread")
        assert json.loads(replay("kybernate replay ledger.json --bound --json"))


def test_the_first_sample_of_the_installation_runs(
    side: Cluster, install: Page, seats: Pods, models: Models
) -> None:
    """docs/how-to/install/install.md, step 7, and what let-clients-in.md and watch-models.md have
    of the proxy."""
    sample = SAMPLES / "two-models.yaml"
    names = [one["metadata"]["name"] for one in yaml.safe_load_all(sample.read_text())]
    assert "n1" in install("kubectl -n kyb-system exec ds/kyb-agent")
    install("sed s,localhost/kybernate")
    try:
        for name in names:
            install(f"kubectl rollout status deploy/{name}")
        install.start("kubectl -n kyb-system port-forward deploy/kyb-proxy")
        opened(PORTS["proxy_port"])
        answers = install("for i in 1 2 3").splitlines()
        assert [len(re.findall('"counter": ?[123]', one)) for one in answers] == [1] * 6, answers
        clients = install.another("let-clients-in", proxy=proxy_of(side))
        assert [name in clients("curl -s") for name in names] == [True] * 2
        watch = install.another("watch-models")
        with watch.start("kubectl -n kyb-system port-forward service/kyb-proxy") as tunnel:
            try:
                opened(PORTS["extender_port"])
                shown = requests.get(
                    f"http://127.0.0.1:{PORTS['extender_port']}/ui", timeout=CALL_S
                )
            finally:
                tunnel.terminate()
        assert (shown.status_code, "<html" in shown.text) == (200, True)
    finally:
        install.end()
        side.kubectl("delete", "-f", str(sample), "--wait=true", limit=90)


def test_five_models_of_40_gb_share_a_gpu_of_80(
    side: Cluster, install: Page, seats: Pods, models: Models
) -> None:
    """docs/how-to/workloads/share-one-gpu.md, on one of the node's two GPUs."""
    page = install.another("share-one-gpu", proxy=proxy_of(side))
    sample = page.config / "samples" / "five-models.yaml"
    objects = list(yaml.safe_load_all(sample.read_text()))
    for one in objects:
        one["spec"]["template"]["metadata"]["annotations"][keys.REQUIRE_GROUP] = "G0"
    names = [one["metadata"]["name"] for one in objects]
    began = time.monotonic_ns()
    sample.write_text(yaml.safe_dump_all(objects))
    page("kubectl apply -f config/samples/five-models.yaml")
    try:
        for name in names:
            side.kubectl("rollout", "status", f"deploy/{name}", "--timeout=90s", limit=100)
        ready_ones = page("kubectl get pods -l part-of=five-models").splitlines()[1:]
        assert [" 1/1 " in one for one in ready_ones] == [True] * 5
        shown = page("kubectl kyb top")
        assert [name in shown for name in names] == [True] * 5, shown
        assert len({group_of(pod) for pod in seats.all().values()}) == 1
        # Back and forth, so that the next one always is one that another has made room for.
        for count, order in enumerate((names, names[::-1]), 1):
            answers = [models.ask(name) for name in order]
            assert [(one.counter, one.intact) for one in answers] == [(count, True)] * 5
        # Pods of the test before this one may end meanwhile.
        mine = {pod["metadata"]["uid"] for pod in seats.all().values()}
        records = read_log(side.node("n1").simgpu_root)
        log = [one for one in records if one.at_ns >= began and one.pod in mine]
        assert len({one.gpu for one in log if one.gpu}) == 1
        assert violations(log) == []
        restarts = side.kubectl("get", "pods", "-o", f"jsonpath={RESTARTS}").split()
        assert restarts == ["0"] * 5
        with page:
            assert '"choices"' in page('curl -s -H "Authorization')
    finally:
        side.kubectl("delete", "-f", str(sample), "--wait=true", limit=90)


@pytest.fixture
def samples(side: Cluster, seats: Pods) -> Iterator[list[dict[str, Any]]]:
    """All of config/samples by one command; they and their pods are gone afterwards."""
    texts = [file.read_text() for file in sorted(SAMPLES.glob("*.yaml"))]
    found = [one for text in texts for one in yaml.safe_load_all(text)]
    spaces = {one["metadata"].get("namespace", "default") for one in found} - {"default"}
    for space in spaces:
        side.kubectl("create", "namespace", space)
    try:
        said = side.kubectl("apply", "-f", str(SAMPLES))
        assert said.count(" created\n") == len(found), said
        yield found
    finally:
        side.kubectl("delete", "--wait=false", "--ignore-not-found", "-f", str(SAMPLES))
        for space in spaces:
            side.kubectl("delete", "namespace", space, "--wait=false")
        wait_until(lambda: not seats.all(), 90, "pods of the samples stay")


def test_pods_of_all_samples_run_and_what_they_ask_for_is_answered(
    side: Cluster, samples: list[dict[str, Any]]
) -> None:
    waiting = [named(one) for one in samples]

    def settled() -> bool:
        found = json.loads(side.kubectl("get", "-f", str(SAMPLES), "-o", "json"))["items"]
        waiting[:] = [named(one) for one in found if not answered(one)]
        return not waiting

    def late() -> str:
        return f"nothing came of {', '.join(waiting)}\n{side.kubectl('get', 'pods')}"

    wait_until(settled, 150, late, every=1.0)


def named(sample: dict[str, Any]) -> str:
    return f"{sample['kind']} {sample['metadata']['name']}"


def answered(sample: dict[str, Any]) -> bool:
    """Whether its pods run, or its status says how it stands."""
    kind, conditions = sample["kind"], sample.get("status", {}).get("conditions", [])
    if kind in RUNS:
        return any((one["type"], one["status"]) == (RUNS[kind], "True") for one in conditions)
    return kind == READ_ONLY or any(one.get("message") for one in conditions)
