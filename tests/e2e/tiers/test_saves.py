"""Snapshots and debug clones of a pod that serves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from images import criu
from kybernate import keys
from kybernate.errors import KybernateError, RefusedError
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.fetched import prefix
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.conftest import emptied
from tests.kit.clients.direct import Direct
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.pods import IMAGE, SeatPod, ready
from tests.kit.servers.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

ENTER = REPOSITORY / "build" / "kyb-enter"
INTERFACES = "import socket; print([name for _, name in socket.if_nameindex()])"
REACH = (
    "import socket\n"
    "try: socket.create_connection(('{ip}', {port}), 2); print('reached')\n"
    "except OSError: print('cut off')"
)


class Site:
    """One node with a GPU, a spot instance; its agent has an NVMe and an object store. `place` is
    the latter."""

    def __init__(self, cluster: Cluster, folder: Path, metadata: Metadata) -> None:
        self.cluster, self._folder, self.metadata = cluster, folder, metadata
        self.place = folder / "objects"
        self.trust = folder / "keys" / f"trust-{cluster.spec.name}.pub"

    @property
    def socket(self) -> str:
        """Of the node's agent."""
        return f"/proc/{self.cluster.node('n1').pid}/root{keys.AGENT_SOCKET}"

    @property
    def keys(self) -> Path:
        """Folder of the cluster's keys of artifacts."""
        return self._folder / "keys"

    def agent(self, *words: str) -> dict[str, Any]:
        """What `kybernate agent ... --json` printed on the node."""
        found: dict[str, Any] = self._cli("agent", "--socket", self.socket, *words, "--json")
        return found

    def artifacts(self, *words: str) -> Any:
        """What `kybernate artifacts ... --json` printed."""
        return self._cli("artifacts", *words, "--keys", str(self._folder / "keys"), "--json")

    def named(self, image: str) -> None:
        """Gives the image of the tests another name on the node, as of another registry."""
        ctr, socket = prefix.ensure(print).ctr, self.cluster.layout.node("n1").cri_socket
        words = [str(ctr), "-a", str(socket), "-n", "k8s.io", "images", "tag", IMAGE, image]
        subprocess.run(words, check=True, timeout=60)

    def seat(self, pod: str) -> dict[str, Any]:
        """What the GPUNode says of its seat."""
        status = self.cluster.api().get(f"{keys.GPU_NODES_PATH}/n1").get("status") or {}
        found: dict[str, Any] = next((s for s in status.get("seats", ()) if s["pod"] == pod), {})
        return found

    def told(self, reason: str) -> str:
        """What an event with this reason says; empty if there is none."""
        events = json.loads(self.cluster.kubectl("get", "events", "-A", "-o", "json"))["items"]
        return next((str(one["message"]) for one in events if one["reason"] == reason), "")

    def execute(self, pod: str, text: str) -> str:
        """What a line of Python prints in the pod's container."""
        return self.cluster.kubectl("exec", pod, "-c", "server", "--", "python3", "-c", text)

    def _cli(self, *words: str) -> Any:
        command = [sys.executable, "-m", "kybernate.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@contextmanager
def sited(name: str, subnet: str, folder: Path) -> Iterator[Site]:
    """A cluster of its own keys and object store, in an empty folder."""
    if not ENTER.exists():
        pytest.skip("needs kyb-enter; run make native")
    try:
        engine = criu.for_this_machine(print)
    except KybernateError as error:
        pytest.skip(f"needs CRIU: {error}")
    (folder / "objects").mkdir()
    words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--name", name, "--dir"]
    subprocess.run([*words, str(folder / "keys")], check=True, cwd=REPOSITORY, timeout=60)
    metadata = Metadata()
    agent = {
        "KYB_AGENT_SPOT": "gce",
        "KYB_AGENT_SPOT_ADDRESS": metadata.address,
        "KYB_AGENT_CRIU": str(engine),
        "KYB_AGENT_KYB_ENTER": str(ENTER),
        "KYB_AGENT_ARTIFACT_KEYS": str(folder / "keys"),
        "KYB_AGENT_NVME_DIR": str(folder / "nvme"),
        "KYB_AGENT_OBJECT_STORE": str(folder / "objects"),
        "KYB_AGENT_TIER_RESIDENCY_S": "0",
    }
    spec = ClusterSpec(
        name=name,
        nodes=("n1",),
        subnet=subnet,
        gpus=GpuSpec(count=1),
        images=("toy", "sidecar"),
        service_env={"agent": agent},
    )
    with running(spec, print) as up:
        found = Site(up, folder, metadata)
        found.named(str(COUNTER["image"]))
        yield found
    metadata.stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with sited("saves", "10.107.0.0/16", tmp_path_factory.mktemp("saves")) as found:
        yield found


@pytest.fixture
def abroad(tmp_path: Path) -> Iterator[Site]:
    """Another cluster, which has nothing in common with the first one."""
    folder = tmp_path / "abroad"
    folder.mkdir()
    with sited("abroad", "10.111.0.0/16", folder) as found:
        yield found


@pytest.fixture
def seats(site: Site) -> Iterator[Pods]:
    with emptied(site.cluster) as found:
        yield found


@pytest.fixture
def reader(site: Site, tmp_path: Path) -> Kubectl:
    """kubectl of somebody who follows a page, on the node as root where the page says so."""
    found = Kubectl(site.cluster.kubectl_path, tmp_path, site.cluster.kubeconfig)
    found.environment["KYB_AGENT_SOCKET"] = site.socket
    return found


def test_a_pod_is_saved_and_goes_on_and_a_clone_of_it_is_cut_off(site: Site, seats: Pods) -> None:
    pod = SeatPod("a", bytes_="1GiB")
    seats.create(pod)
    original = seats.wait(["a"], ready, 60, "Ready")["a"]
    first = Direct.to(original).ask(limit=20)
    assert first.counter == 1
    saved = site.agent("save", "a", "--name", "before")
    assert saved["state"] == "succeeded", saved
    assert saved["saved"]["outlives_pod"] is True
    assert site.artifacts("verify", str(site.place), saved["artifact"]) == {saved["artifact"]: ""}
    again = Direct.to(original).ask(limit=20)
    assert (again.counter, again.intact) == (2, True)
    assert again.body["kyb"]["boot"] == first.body["kyb"]["boot"]

    notes = {keys.RESTORE_FROM: saved["artifact"], keys.RESTORE_AS: "clone"}
    same = {"args": pod.manifest()["spec"]["containers"][0]["args"]}
    seats.create(SeatPod("clone", annotations=notes, more=same))
    wait_until(lambda: site.seat("clone").get("state") == "active", 90, "the clone isn't there")
    assert "eth0" in site.execute("clone", INTERFACES)
    port = original["spec"]["containers"][0]["ports"][0]["containerPort"]
    inside = REACH.format(ip="127.0.0.1", port=port)
    outside = REACH.format(ip=original["status"]["podIP"], port=port)
    assert "reached" in site.execute("clone", inside)
    assert "cut off" in site.execute("clone", outside)
    assert "reached" in site.execute("a", inside)
    assert Direct.to(original).ask(limit=60).counter == 3

    assert site.artifacts("rm", str(site.place), saved["artifact"], "--yes")[0]["deleted"] is True
    assert site.artifacts("ls", str(site.place)) == []


def test_a_snapshot_is_requested_with_kubectl_alone(
    site: Site, seats: Pods, reader: Kubectl
) -> None:
    """As docs/how-to/workloads/request-a-checkpoint.md has it; the controller is killed
    meanwhile."""
    page, name = Page("request-a-checkpoint", reader), "before-the-change"
    apply = "kubectl -n shop apply -f config/samples/checkpointrequest.yaml"
    seats.create(SeatPod("a", bytes_="1GiB"))
    original = seats.wait(["a"], ready, 60, "Ready")["a"]
    assert Direct.to(original).ask(limit=20).counter == 1
    kubectl = site.cluster.kubectl
    try:
        page.changed("checkpointrequest", pod="a")
        page(apply)
        site.cluster.process("controller").kill9()
        page("kubectl -n shop wait")
        kept = json.loads(kubectl("get", "ckpt", name, "-o", "json"))["status"]
        assert kept["conditions"][0]["reason"] == "Sealed"
        assert kept["podUID"] == original["metadata"]["uid"]
        artifact = kept["artifact"]
        assert (artifact["tier"], artifact["bytes"] > 0) == ("object", True)
        assert page("kubectl -n shop get ckpt before-the-change") == artifact["name"]
        assert site.artifacts("verify", str(site.place), artifact["name"]) == {artifact["name"]: ""}
        again = Direct.to(original).ask(limit=20)
        assert (again.counter, again.intact) == (2, True)
        size = str(artifact["bytes"])
        assert [row.split()[1:7] for row in kubectl("get", "kyb").splitlines() if name in row] == [
            ["a", "Snapshot", "object", size, "True", "Sealed"]
        ]
        page("kubectl -n shop delete ckpt")
        assert name not in page("kubectl -n shop get ckpt\n")
        page.changed("checkpointrequest", mode="Park")
        page(apply)
        page("kubectl -n shop wait")
        # The GPUNode tells it a moment later.
        wait_until(lambda: site.seat("a")["state"] == "parked", 20, "it is not told as parked")
        assert Direct.to(original).ask(limit=60).counter == 3
        with page:
            assert "a@" in page("kubectl kyb snapshot")
        for one in site.artifacts("ls", str(site.place)):
            assert site.artifacts("rm", str(site.place), one["id"], "--yes")[0]["deleted"]
    finally:
        kubectl("delete", "ckpt", "--all")


COUNTER = {
    "image": "localhost:32000/kybernate-test-workload:latest",
    "args": ["-m", "tests.workloads.counter", "--bytes", "1GiB", "--interval", "0.2"],
    "ports": [],
}
TRAINS = {keys.TURN: "always"}
INTERVAL_S = 60.0


def steps(pods: Pods, name: str) -> list[int]:
    """None yet of a pod that the kubelet hasn't told to run: the agent may have before."""
    try:
        log = pods.log(name)
    except RefusedError:
        return []
    return [int(step) for step in re.findall(r"^counter=(\d+)", log, re.MULTILINE)]


def sealed(site: Site) -> list[dict[str, Any]]:
    """Requests whose snapshots are kept, the oldest first."""
    items = json.loads(site.cluster.kubectl("get", "ckpt", "-o", "json"))["items"]
    done = [one for one in items if one.get("status", {}).get("artifact")]
    return sorted(done, key=lambda one: str(one["status"]["completionTime"]))


def test_training_that_is_killed_hard_loses_an_interval_at_most(
    site: Site, seats: Pods, reader: Kubectl
) -> None:
    """As docs/how-to/workloads/keep-snapshots.md has it, with an interval of a minute."""
    kubectl = site.cluster.kubectl
    page = Page("keep-snapshots", reader)
    often = {"every": f"{INTERVAL_S:g}s", "keep": {"last": 1}}
    page.changed("checkpointpolicy-snapshots", snapshots=often)
    seats.create(SeatPod("training", annotations=TRAINS, more=COUNTER))
    try:
        page("kubectl -n shop label pod training")
        page("kubectl -n shop apply")
        wait_until(lambda: bool(sealed(site)), INTERVAL_S + 45, "no snapshot is made")
        (first,) = sealed(site)
        wait_until(
            lambda: sealed(site) and sealed(site)[-1]["metadata"] != first["metadata"],
            INTERVAL_S + 45,
            "no second one is made",
        )
        newest = sealed(site)[-1]["status"]["artifact"]["name"]
        wait_until(
            lambda: [one["id"] for one in site.artifacts("ls", str(site.place))] == [newest],
            30,
            "the first one stays",
        )
        told = json.loads(kubectl("get", "cpol", "save-training", "-o", "json"))["status"]
        assert (told["conditions"][0]["reason"], told["governed"]) == ("Governs", 1)
        with page:
            assert "Governs" in page("kubectl -n shop get cpol")
            assert "Sealed" in page("kubectl -n shop get ckpt\n")
            rows = page("kubectl -n shop get ckpt -o custom-columns").splitlines()[1:]
        assert ["training", newest] in [[row.split()[0], row.split()[-1]] for row in rows]
        at = len(steps(seats, "training"))
        time.sleep(3)
        before = steps(seats, "training")
        assert len(before) > at, "it trains on beside its snapshots"
        kubectl("delete", "pod", "training", "--grace-period=0", "--force")
        seats.gone(["training"], 60)

        notes = {
            **TRAINS,
            keys.RESTORE_FROM: newest,
            keys.RESTORE_AS: "template",
            keys.RESTORE_ELSE: "fail",
        }
        seats.create(SeatPod("again", annotations=notes, more=COUNTER))
        wait_until(lambda: site.seat("again").get("state") == "active", 90, "it isn't restored")
        wait_until(lambda: bool(steps(seats, "again")), 30, "it does not train on")
        lost = (before[-1] - steps(seats, "again")[0]) * 0.2
        assert 0 < lost <= INTERVAL_S
    finally:
        kubectl("delete", "cpol", "--all")
        kubectl("delete", "ckpt", "--all")


DELAY_S = 5.0
SLOW = (f"--start-delay={DELAY_S:g}",)
"""What a server that loads for long does."""


def test_replicas_of_a_template_start_warm(site: Site, seats: Pods, reader: Kubectl) -> None:
    """As docs/how-to/workloads/start-from-a-template.md has it; the controller is killed
    meanwhile."""
    kubectl = site.cluster.kubectl
    cold = SeatPod("toy", bytes_="1GiB", arguments=SLOW)
    page = Page("start-from-a-template", reader)

    def told_of(name: str, artifact: str) -> bool:
        lines = page("kubectl -n shop get events").splitlines()
        return any(f"pod/{name} " in line and artifact in line for line in lines)

    page.changed("snapshottemplate", template={"spec": cold.manifest()["spec"]})
    try:
        page("kubectl -n shop apply")
        wait_until(lambda: bool(seats.all()), 20, "no pod is made")
        site.cluster.process("controller").kill9()
        page("kubectl -n shop wait")
        told = json.loads(kubectl("get", "stpl", "toy", "-o", "json"))["status"]
        artifact = told["artifact"]["name"]
        assert told["conditions"][0]["reason"] == "Ready"
        assert told["artifact"]["madeOn"]["image"]
        assert site.artifacts("verify", str(site.place), artifact) == {artifact: ""}
        wait_until(lambda: not seats.all(), 60, "the template's pod stays")
        boots = set()
        for name in ("one", "two"):
            notes = {keys.RESTORE_FROM: "template/toy", keys.RESTORE_ELSE: "fail"}
            same = {"args": cold.manifest()["spec"]["containers"][0]["args"]}
            seats.create(SeatPod(name, annotations=notes, more=same))
            made = seats.wait([name], ready, 60, "Ready")[name]
            answer = Direct.to(made).ask(limit=60)
            # The first answer was the warm-up's.
            assert (answer.counter, answer.intact) == (2, True)
            boots.add(answer.body["kyb"]["boot"])
            wait_until(lambda name=name: told_of(name, artifact), 30, "no event tells of it")
            seats.delete([name])
            seats.gone([name], 30)
        assert len(boots) == 1, "both are the one that was warmed up"
        with page:
            assert " Ready " in page("kubectl -n shop get stpl")
        seats.create(replace(cold, annotations={keys.RESTORE_FROM: "template/none"}))
        made = seats.wait(["toy"], ready, 60, "Ready")["toy"]
        anew = Direct.to(made).ask(limit=60)
        assert (anew.counter, anew.body["kyb"]["boot"] in boots) == (1, False)
    finally:
        kubectl("delete", "stpl", "--all")
    wait_until(
        lambda: not json.loads(kubectl("get", "ckpt", "-o", "json"))["items"], 30, "they stay"
    )


def test_a_model_is_staged_in_ram_while_another_computes(
    site: Site, seats: Pods, reader: Kubectl
) -> None:
    """As docs/how-to/workloads/stage-a-model.md has it."""
    page = Page("stage-a-model", reader)
    seats.create(SeatPod("next", bytes_="1GiB"))
    found = seats.wait(["next"], ready, 60, "Ready")["next"]
    first = Direct.to(found).ask(limit=20)
    deep = reader("kyb", "park", "next", "--tier", "object")
    assert deep.returncode == 0, deep.stderr
    seats.create(SeatPod("training", annotations=TRAINS, more=COUNTER))
    wait_until(lambda: len(steps(seats, "training")) > 3, 60, "it does not train")
    wakes = site.seat("training")["wakes"]
    at = len(steps(seats, "training"))

    wait_until(lambda: site.seat("next")["tier"] == "object", 20, "it is not told as there")
    (rests,) = (one for one in page("kubectl kyb seats").splitlines() if " next " in f" {one}")
    assert "object" in rests
    assert "n1" in page("kubectl kyb top")
    page("kubectl kyb park next")
    wait_until(lambda: site.seat("next")["tier"] == "ram", 20, "it is not told as there")
    assert site.seat("next")["state"] == "parked"
    wait_until(lambda: len(steps(seats, "training")) > at + 3, 20, "it does not train on")
    seen = site.seat("training")
    assert (seen["state"], seen["wakes"]) == ("active", wakes), "it never left its GPU"
    before = site.seat("next")["wakes"]
    with page:
        page("kubectl kyb wake next")
    # Training may have its next turn before the GPUNode tells of this one.
    wait_until(lambda: site.seat("next")["wakes"] > before, 20, "it is not told as woken")
    answer = Direct.to(found).ask(limit=60)
    assert (answer.counter, answer.intact) == (2, True)
    assert answer.body["kyb"]["boot"] == first.body["kyb"]["boot"]


def test_an_artifact_continues_in_another_cluster(
    site: Site, seats: Pods, abroad: Site, reader: Kubectl
) -> None:
    """As docs/how-to/operate/restore-in-another-cluster.md has it."""
    values = {"place": str(site.place), "other": str(abroad.place)}
    page = Page("restore-in-another-cluster", reader, **values)
    pod = SeatPod("a", bytes_="1GiB")
    seats.create(pod)
    original = seats.wait(["a"], ready, 60, "Ready")["a"]
    first = Direct.to(original).ask(limit=20)
    folder, keys_ = reader.folder, reader.folder / "keys"
    keys_.symlink_to(site.keys)
    said = page("kubectl kyb snapshot")
    (saved,) = re.findall(r"^(default/a@\S+)", said, re.MULTILINE)
    wait_until(lambda: saved in page("kubectl kyb artifacts ls"), 20, "no node tells of it")
    page("kybernate artifacts export", artifact=saved)

    keys_.unlink()
    keys_.symlink_to(abroad.keys)
    shutil.copy(abroad.trust, folder / "trust-cluster.pub")
    with page.start("kybernate artifacts import") as refused:
        wrong = refused.communicate(timeout=90)[1]
    assert (refused.returncode, "sign" in wrong) == (1, True), wrong
    shutil.copy(site.trust, folder / "trust-cluster.pub")
    with page:
        name = page("kybernate artifacts import").strip()
    assert name.startswith("default/a@")
    assert name != saved
    assert abroad.artifacts("verify", str(abroad.place), name) == {name: ""}
    with emptied(abroad.cluster) as there:
        notes = yaml.safe_load(page.manifest("metadata:"))["metadata"]["annotations"]
        there.create(replace(pod, annotations={**notes, keys.RESTORE_FROM: name}))
        found = there.wait(["a"], ready, 90, "Ready")["a"]
        answer = Direct.to(found).ask(limit=60)
        assert (answer.counter, answer.intact) == (2, True)
        assert answer.body["kyb"]["boot"] == first.body["kyb"]["boot"]
    assert Direct.to(original).ask(limit=60).counter == 2, "the original counts by itself"


def notice(site: Site) -> dict[str, Any]:
    """The evacuation that a notice has begun; empty if there is none."""
    found = (one for one in site.agent("operations", "--all") if one["name"].startswith("spot-"))
    return next(found, {})


def test_a_spot_instance_is_evacuated_within_30_s_and_a_report_says_what_became_of_each(
    site: Site, seats: Pods, reader: Kubectl
) -> None:
    """As docs/how-to/operate/evacuate-a-node.md has it; Google's metadata server is stood in for.

    The last one here: an instance has one notice.
    """
    small = {"bytes_": "512MiB", "fill": "256KiB"}
    pod = SeatPod("a", **small)
    seats.create(pod)
    original = seats.wait(["a"], ready, 60, "Ready")["a"]
    uid = original["metadata"]["uid"]
    assert Direct.to(original).ask(limit=20).counter == 1
    page = Page("evacuate-a-node", reader)
    assert "default/a" in page("kybernate agent evacuate --within 30 --dry-run")
    page("kybernate agent park")
    page("kybernate agent evacuate --within 30\n")
    assert "evacuate" in page("kybernate agent operations")
    site.agent("undrain")
    site.agent("wake", "a")
    assert Direct.to(original).ask(limit=60).counter == 2
    began = time.monotonic()
    site.metadata.goes = "now"
    try:
        # The page's own evacuation has had such an event before.
        wait_until(lambda: notice(site).get("report"), 30, "it is not evacuated in time")
        assert time.monotonic() - began < 30
        saved = "default/a is saved: its state is in the object store."
        wait_until(lambda: saved in site.told("EvacuationSucceeded"), 30, "no event tells of it")
        with page:
            assert saved in page("kubectl get events")
        assert saved in notice(site)["report"]
    finally:
        site.agent("undrain")
    kubectl = site.cluster.kubectl
    kubectl("delete", "pod", "a", "--grace-period=0", "--force")
    seats.gone(["a"], 60)
    notes = {keys.RESTORE_FROM: f"pod/{uid}", keys.RESTORE_ELSE: "fail"}
    same = {"args": pod.manifest()["spec"]["containers"][0]["args"]}
    seats.create(SeatPod("next", **small, annotations=notes, more=same))
    found = seats.wait(["next"], ready, 90, "Ready")["next"]
    answer = Direct.to(found).ask(limit=60)
    assert (answer.counter, answer.intact) == (3, True)
