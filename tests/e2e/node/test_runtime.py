"""A node whose containerd runs kyb-runtime in place of runc: checkpoints by plain containerd and by
the kubelet find nothing of a seat in its GPUs, and everything else is as it was."""

from __future__ import annotations

import json
import shutil
import socket
import tarfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from images import criu, debs
from images.oci import ImageConfig, blob, write_archive
from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.fetched.images import toy
from tests.cluster.fetched.prefix import RUNC, RUNTIME
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.conftest import emptied
from tests.kit.clients.direct import Direct
from tests.kit.clients.models import Models
from tests.kit.pods import IMAGE, PODS, PORT, SeatPod, group_of, ready
from tests.kit.servers.imageserver import ImageServer
from tests.simgpu import Event, read_log, violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.kit.pods import Json, Pods
    from tests.simgpu import Record

pytestmark = pytest.mark.e2e

WRAPPER = REPOSITORY / "build" / "kyb-runtime"
PROBE = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1, "failureThreshold": 3}
CHECKPOINT = "localhost/checkpoint:1"
NAMED = "org.criu.checkpoint.container.name"
"""By which annotation containerd knows an image with a checkpoint in it."""
PROBED = {"livenessProbe": PROBE, "readinessProbe": PROBE, "imagePullPolicy": "IfNotPresent"}
HOLDS = (Event.ACQUIRE, Event.RELEASE)
TICK = 0.01
"""Seconds: /proc/uptime, by which the script around CRIU notes its times, has two digits."""

CONFIG = "tcp-close\nnetwork-lock skip\n"
"""/etc/criu/runc.conf, as docs/how-to/install/runtime-wrapper.md has it."""
COVER = """
mkdir -p {upper}/criu {work}
printf '{config}' >{upper}/criu/runc.conf
mount -t overlay -o lowerdir=/etc,upperdir={upper},workdir={work} kyb /etc
"""
SCRIPT = """#!/bin/sh
read began rest </proc/uptime
{criu} "$@"
code=$?
read ended rest </proc/uptime
echo "$began $ended $code" >>{log}
exit $code
"""


@dataclass(frozen=True, slots=True)
class Runtime:
    """kyb-runtime beside a link to runc, and a `criu` for runc as a node's PATH has one."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Runtime:
        """Raises KybernateError where CRIU can't be built."""
        folder.mkdir()
        shutil.copy(WRAPPER, folder / "kyb-runtime")
        runc = debs.unpack(RUNC, print).folder / "usr/sbin/runc"
        (folder / "kyb-runtime.real").symlink_to(runc)
        program, log = folder / "criu", folder / "criu.log"
        program.write_text(SCRIPT.format(criu=criu.for_this_machine(print), log=log))
        program.chmod(0o755)
        return cls(folder)

    @property
    def program(self) -> Path:
        """What containerd runs."""
        return self.folder / "kyb-runtime"

    def runs(self) -> list[tuple[float, float, int]]:
        """CRIU's runs under runc: when each began and ended (s since boot), and its status."""
        log = self.folder / "criu.log"
        lines = log.read_text().splitlines() if log.exists() else []
        words = [line.split() for line in lines]
        return [(float(began), float(ended), int(code)) for began, ended, code in words]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    if not WRAPPER.exists():
        pytest.skip("needs kyb-runtime; run make native")
    try:
        return Runtime.made(tmp_path_factory.mktemp("runtime") / "bin")
    except KybernateError as error:
        pytest.skip(f"needs CRIU: {error}")


@pytest.fixture(scope="module")
def wrapped(runtime: Runtime) -> Iterator[Cluster]:
    """A cluster of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(runtime.folder), prepend=":")
        spec = ClusterSpec(
            name="runtime",
            nodes=("n1",),
            subnet="10.94.0.0/16",
            gpus=GpuSpec(count=2),
            images=("toy", "sidecar"),
            service_env={"agent": {"KYB_AGENT_DRAIN_LIMIT_S": "2"}},
            runtime=runtime.program,
        )
        with running(spec, print) as up:
            upper, work = up.layout.node("n1").cover(Path("/etc"))
            script = COVER.format(config=CONFIG, upper=upper, work=work)
            done = up.node("n1").run("sh", "-ec", script)
            assert done.returncode == 0, done.stderr
            yield up


@pytest.fixture
def seats(wrapped: Cluster) -> Iterator[Pods]:
    with emptied(wrapped) as found:
        yield found


@pytest.fixture
def models(wrapped: Cluster) -> Iterator[Models]:
    """A client of the cluster's proxy."""
    with closing(Models(wrapped.proxy_url)) as client:
        yield client


def checkpoint(cluster: Cluster, pod: str) -> Path:
    """Have the kubelet checkpoint a pod's container; the archive. Raises KybernateError."""
    path = f"/api/v1/nodes/n1/proxy/checkpoint/default/{pod}/server"
    said = cluster.kubectl("create", "--raw", path, "-f", "/dev/null")
    found: list[str] = json.loads(said)["items"]
    folder = cluster.layout.node("n1").root / "kubelet"
    return folder / found[0].removeprefix("/var/lib/kubelet/")


def holds(cluster: Cluster, pod: Mapping[str, object]) -> list[Record]:
    """When the pod took and gave back GPU memory, by the driver's own log."""
    uid = pod["metadata"]["uid"]  # type: ignore[index]
    log = read_log(cluster.node("n1").simgpu_root)
    return [one for one in log if one.pod == uid and one.event in HOLDS]


def see_order(records: list[Record], run: tuple[float, float, int]) -> None:
    """Out of GPU memory, then CRIU from end to end, then back."""
    _, release, acquire = records[-3:]
    began, ended, code = run
    assert code == 0
    assert (release.event, release.why, release.held) == (Event.RELEASE, "checkpoint", 0)
    assert (acquire.event, acquire.why) == (Event.ACQUIRE, "restore")
    assert release.at_ns / 1e9 <= began + TICK
    assert ended - TICK <= acquire.at_ns / 1e9


def test_the_kubelets_checkpoint_has_a_seat_out_of_its_gpus(
    wrapped: Cluster, seats: Pods, runtime: Runtime
) -> None:
    """Its sidecar, which answers its probes, has a connection to kyb-init until then."""
    seats.create(
        SeatPod("a", bytes_="1GiB", more={"livenessProbe": PROBE, "readinessProbe": PROBE})
    )
    pod = seats.wait(["a"], ready, 60, "Ready")["a"]
    assert pod["spec"]["initContainers"]
    assert Direct.to(pod).ask(limit=20).counter == 1
    before = len(runtime.runs())
    with tarfile.open(checkpoint(wrapped, "a")) as archive:
        assert any("inventory.img" in name for name in archive.getnames())
    answer = Direct.to(pod).ask(limit=60)
    assert (answer.status, answer.counter, answer.intact) == (200, 2, True)
    run = runtime.runs()[before:][-1]  # after those that ask for its version
    see_order(holds(wrapped, pod), run)
    again = seats.get("a")["status"]["containerStatuses"][0]
    assert again["restartCount"] == 0


def test_containerds_own_checkpoint_has_too(
    wrapped: Cluster, seats: Pods, runtime: Runtime
) -> None:
    seats.create(SeatPod("b", bytes_="1GiB"))
    pod = seats.wait(["b"], ready, 60, "Ready")["b"]
    assert Direct.to(pod).ask(limit=20).counter == 1
    status = seats.get("b")["status"]["containerStatuses"][0]
    container = status["containerID"].removeprefix("containerd://")
    before = len(runtime.runs())
    ctr = debs.unpack(RUNTIME, print).folder / "usr/bin/ctr"
    node = wrapped.node("n1")
    words = ("-n", "k8s.io", "containers", "checkpoint", "--task", container, "local/b:1")
    done = node.run(str(ctr), *words)
    assert done.returncode == 0, done.stderr
    answer = Direct.to(pod).ask(limit=60)
    assert (answer.status, answer.counter, answer.intact) == (200, 2, True)
    run = runtime.runs()[before:][-1]  # after those that ask for its version
    see_order(holds(wrapped, pod), run)


@pytest.fixture(scope="module")
def registry() -> Iterator[ImageServer]:
    """Containerd restores only what was made of an image that it can ask a registry for."""
    with ImageServer(toy(print).archive) as server:
        yield server


def import_checkpoint(cluster: Cluster, archive: Path, folder: Path) -> None:
    """Make an image of the kubelet's archive, as people do who want to restore it."""
    image = folder / "checkpoint.oci.tar"
    write_archive(image, CHECKPOINT, [blob(archive)], ImageConfig(), {NAMED: "server"})
    ctr = debs.unpack(RUNTIME, print).folder / "usr/bin/ctr"
    done = cluster.node("n1").run(str(ctr), "-n", "k8s.io", "images", "import", str(image))
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True, slots=True)
class Former:
    """A pod that is gone, of whose container the image CHECKPOINT is; it had answered once.
    `reply` is what came over the connection that was open meanwhile."""

    pod: Json
    reply: bytes

    def successor(self, name: str, group: str) -> SeatPod:
        """A pod whose container is that image."""
        more = {**PROBED, "image": CHECKPOINT}
        said = {keys.MODEL: "former", keys.REQUIRE_GROUP: group}
        return SeatPod(name, bytes_="1GiB", annotations=said, more=more)


@pytest.fixture(scope="module")
def former(
    wrapped: Cluster, registry: ImageServer, tmp_path_factory: pytest.TempPathFactory
) -> Former:
    with emptied(wrapped) as seats:
        more = {**PROBED, "image": f"{registry.host}/toy:1"}
        seats.create(SeatPod("former", bytes_="1GiB", more=more))
        pod = seats.wait(["former"], ready, 60, "Ready")["former"]
        assert Direct.to(pod).ask(limit=20).counter == 1
        with socket.create_connection((pod["status"]["podIP"], PORT), timeout=60) as link:
            link.sendall(b"GET /health HTTP/1.1\r\n")
            archive = checkpoint(wrapped, "former")
            link.sendall(b"Host: former\r\n\r\n")
            reply = link.recv(4096)
        import_checkpoint(wrapped, archive, tmp_path_factory.mktemp("checkpoint"))
    return Former(pod, reply)


def test_a_checkpoint_goes_on_as_the_container_of_another_pod(
    wrapped: Cluster, seats: Pods, former: Former, models: Models
) -> None:
    """By the kubelet and plain containerd: the pod's image is the checkpoint. Another model is in
    GPU memory by then; the restored one has its turn after that."""
    assert former.reply.startswith(b"HTTP/1.1 200 ")
    group = group_of(former.pod) or ""
    seats.create(SeatPod("other", bytes_="1GiB", annotations={keys.REQUIRE_GROUP: group}))
    other = seats.wait(["other"], ready, 60, "Ready")["other"]
    log = wrapped.node("n1").simgpu_root
    before = len(read_log(log))
    seats.create(former.successor("e", group))
    # In the order of the lines: what CRIU restores has a clock that stood still meanwhile. And it
    # is the same process still, which named its pod when it began.
    turn = [
        (other["metadata"]["uid"], Event.RELEASE, "checkpoint"),
        (former.pod["metadata"]["uid"], Event.ACQUIRE, "restore"),
    ]

    def moved() -> list[tuple[str, Event, str]]:
        new = [one for one in read_log(log)[before:] if one.event in HOLDS]
        return [(one.pod, one.event, one.why) for one in new]

    wait_until(lambda: moved() == turn, 60, lambda: f"{moved()}\n{seats.story('e')}")
    seats.wait(["e"], ready, 60, "Ready")
    answer = models.ask("former", limit=60)
    assert (answer.status, answer.counter, answer.intact) == (200, 2, True)
    assert not violations(read_log(log))
    assert seats.get("e")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert checkpoint(wrapped, "e").exists()
    assert models.ask("former", limit=60).counter == 3


def test_a_checkpoint_is_not_left_on_gpus_of_another_group(
    wrapped: Cluster, seats: Pods, former: Former
) -> None:
    """The simulated driver lets it have them; NVIDIA's finds no device that it may open."""
    (group,) = {"G0", "G1"} - {group_of(former.pod)}
    seats.create(former.successor("f", group))
    where = {"fieldSelector": "involvedObject.name=f,reason=SeatFailed"}

    def told() -> str:
        found = wrapped.api().get("/api/v1/namespaces/default/events", where)["items"]
        return found[0]["message"] if found else ""

    wait_until(lambda: bool(told()), 60, lambda: seats.story("f"))
    assert f"which group {group} hasn't got" in told()


def plain(name: str) -> Json:
    """A pod without a seat."""
    container = {
        "name": "server",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", "import time; time.sleep(10000)"],
    }
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_without_the_agent_only_seats_are_refused(wrapped: Cluster, seats: Pods) -> None:
    seats.create(SeatPod("c", bytes_="1GiB"))
    wrapped.api().post(PODS, plain("bystander"))
    pod = seats.wait(["c", "bystander"], ready, 60, "Ready")["c"]
    agent = wrapped.node("n1").agent
    agent.stop()
    try:
        with pytest.raises(KybernateError, match="the node agent is away"):
            checkpoint(wrapped, "c")
        assert checkpoint(wrapped, "bystander").exists()
    finally:
        agent.start()
    assert holds(wrapped, pod)[-1].event is Event.ACQUIRE

    def served() -> bool:
        try:
            return Direct.to(pod).ask(limit=5).status == 200
        except OSError:
            return False

    wait_until(served, 60, "it continues as if nothing had been")
