"""Seats parked below RAM: a real pod's processes written to NVMe, ended, and woken by a request."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from images import criu
from kybernate import keys
from kybernate.adapters.criu.record import Record
from kybernate.errors import KybernateError
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.conftest import emptied
from tests.kit.clients.direct import Direct
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.pods import PODS, SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.clients.models import Answer
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

ENTER = REPOSITORY / "build" / "kyb-enter"


def spec(folder: Path) -> ClusterSpec:
    """One node whose agent has CRIU, a folder for NVMe, and another for an object store."""
    agent = {
        "KYB_AGENT_CRIU": str(criu.for_this_machine(print)),
        "KYB_AGENT_KYB_ENTER": str(ENTER),
        "KYB_AGENT_ARTIFACT_KEYS": str(folder / "keys"),
        "KYB_AGENT_NVME_DIR": str(folder / "nvme"),
        "KYB_AGENT_OBJECT_STORE": str(folder / "objects"),
        "KYB_AGENT_TIER_RESIDENCY_S": "0",
        "KYB_AGENT_RESIZE_WAIT_S": "8",
    }
    return ClusterSpec(
        name="tiers",
        nodes=("n1",),
        subnet="10.92.0.0/16",
        gpus=GpuSpec(count=1),
        images=("toy", "sidecar"),
        service_env={"agent": agent},
    )


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own."""
    if not ENTER.exists():
        pytest.skip("needs kyb-enter; run make native")
    try:
        criu.for_this_machine(print)
    except KybernateError as error:
        pytest.skip(f"needs CRIU: {error}")
    folder = tmp_path_factory.mktemp("tiers")
    (folder / "objects").mkdir()
    words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--dir"]
    subprocess.run([*words, str(folder / "keys")], check=True, cwd=REPOSITORY, timeout=60)
    with running(spec(folder), print) as up:
        yield up


@pytest.fixture
def seats(tiered: Cluster) -> Iterator[Pods]:
    with emptied(tiered) as found:
        yield found


def agent(cluster: Cluster, *words: str, limit: float = 90.0) -> dict[str, Any]:
    """What `kybernate agent ... --json` printed on the node."""
    socket = f"/proc/{cluster.node('n1').pid}/root{keys.AGENT_SOCKET}"
    command = [sys.executable, "-m", "kybernate.cli", "agent", "--socket", socket, *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def seat_of(cluster: Cluster, pod: str) -> dict[str, Any]:
    """What the GPUNode says of its seat."""
    status = cluster.api().get(f"{keys.GPU_NODES_PATH}/n1")["status"]
    found: dict[str, Any] = next((s for s in status["seats"] if s["pod"] == pod), {})
    return found


def parked(cluster: Cluster, pods: Pods, name: str, tier: str) -> tuple[dict[str, Any], Answer]:
    """A seat in the tier: its pod as it was before, and the one answer that it gave."""
    pods.create(SeatPod(name, bytes_="1GiB"))
    found = pods.wait([name], ready, 60, "Ready")[name]
    answer = Direct.to(found).ask(limit=20)
    assert answer.counter == 1
    done = agent(cluster, "park", name, "--tier", tier)
    assert done["state"] == "succeeded", done
    wait_until(lambda: seat_of(cluster, name).get("tier") == tier, 60, f"not shown in {tier}")
    assert seat_of(cluster, name)["state"] == "parked"
    return found, answer


@pytest.mark.parametrize("tier", ["nvme", "object"])
def test_a_request_wakes_a_seat_below_ram_as_if_nothing_had_been(
    tiered: Cluster, seats: Pods, tier: str, tmp_path: Path
) -> None:
    """docs/how-to/install/offload.md has it so in its last step, of NVMe."""
    reader = Kubectl(tiered.kubectl_path, tmp_path, tiered.kubeconfig)
    reader.environment["KYB_AGENT_SOCKET"] = (
        f"/proc/{tiered.node('n1').pid}/root{keys.AGENT_SOCKET}"
    )
    page = Page("offload", reader)
    before, first = parked(tiered, seats, "a", "ram")
    page("kubectl -n kyb-system exec", tier=tier)
    wait_until(lambda: seat_of(tiered, "a").get("tier") == tier, 60, f"not shown in {tier}")
    said = seats.log("a")
    assert "parked" in page("kubectl exec POD")
    began = time.monotonic()
    assert '"data"' in page("kubectl get --raw")
    print(f"woken from {tier} in {time.monotonic() - began:.2f} s")
    answer = Direct.to(before).ask(limit=60)
    assert (answer.status, answer.counter, answer.intact) == (200, 2, True)
    after = seats.all()["a"]
    assert after["status"]["podIP"] == before["status"]["podIP"]

    def same() -> bool:
        """Its kubelet tells of what was given back and taken again a moment later."""
        told = seats.get("a")["status"]["containerStatuses"]
        return bool(told == before["status"]["containerStatuses"])

    wait_until(same, 20, "its kubelet tells of another container")
    again = Direct.to(before).ask(limit=20)
    assert again.counter == 3
    for what in ("boot", "pid"):
        assert answer.body["kyb"][what] == again.body["kyb"][what] == first.body["kyb"][what]
    assert seats.log("a") == said


def test_the_images_of_a_seat_have_what_was_on_its_gpu_first_in_line(
    tiered: Cluster, seats: Pods
) -> None:
    before, first = parked(tiered, seats, "first", "nvme")
    folder = Path(tiered.spec.service_env["agent"]["KYB_AGENT_NVME_DIR"])
    (told,) = (folder / "artifacts" / "default" / "first").glob("*/images/kybernate.json")
    assert Record.read(told.parent).first >= 1 << 20, "the simulated GPU had 1 MiB of it"
    answer = Direct.to(before).ask(limit=60)
    assert (answer.status, answer.counter, answer.intact) == (200, 2, True)
    assert answer.body["kyb"]["boot"] == first.body["kyb"]["boot"]


def test_a_deleted_pod_that_is_parked_on_nvme_goes_at_once(tiered: Cluster, seats: Pods) -> None:
    parked(tiered, seats, "a", "nvme")
    began = time.monotonic()
    seats.delete(["a"], grace=60)
    seats.gone(["a"], 90)
    assert time.monotonic() - began < 30, "it took the whole grace period"


def requested(pod: dict[str, Any]) -> dict[str, str]:
    """What its seat's container requests."""
    (one,) = (c for c in pod["spec"]["containers"] if c["name"] == "server")
    found: dict[str, str] = one["resources"]["requests"]
    return {name: found[name] for name in ("cpu", "memory")}


def reserved(pod: dict[str, Any]) -> dict[str, str]:
    """What its kubelet has reserved for it."""
    (one,) = (c for c in pod["status"]["containerStatuses"] if c["name"] == "server")
    return {name: one["allocatedResources"][name] for name in ("cpu", "memory")}


def test_a_seat_below_ram_gives_its_cpu_and_memory_back_and_waits_where_others_have_them(
    tiered: Cluster, seats: Pods, tmp_path: Path
) -> None:
    """Its kubelet resizes it in place, as docs/how-to/install/give-back-cpu-and-memory.md has
    it."""
    reader = Kubectl(tiered.kubectl_path, tmp_path, tiered.kubeconfig)
    cores = int(tiered.api().get("/api/v1/nodes/n1")["status"]["allocatable"]["cpu"])
    asked = {"cpu": f"{cores * 1000 - 500}m", "memory": "200Mi"}
    limits = {"memory": "256Mi", keys.seat_resource(1): "1"}
    pod = SeatPod("a", bytes_="1GiB", more={"resources": {"requests": asked, "limits": limits}})
    tiered.api().post(PODS, pod.manifest())
    before = seats.wait(["a"], ready, 60, "Ready")["a"]
    # And the room in RAM for what is on its GPU, which the webhook adds.
    much = requested(before)
    first = Direct.to(before).ask(limit=20)
    least = {"cpu": "10m", "memory": "64Mi"}
    with Page("give-back-cpu-and-memory", reader) as page:
        page("kubectl kyb park llama")
        wait_until(lambda: reserved(seats.get("a")) == least, 30, "it keeps what it has")
        shown = json.loads(page("kubectl get pod llama"))
    low = seats.get("a")
    assert {name: shown[name] for name in least} == requested(low) == least
    assert json.loads(low["metadata"]["annotations"][keys.REQUESTS]) == much

    other = pod.manifest()
    other["metadata"] = {"name": "other"}
    sleeps = ["-c", "import time; time.sleep(999)"]
    resources = {"requests": {"cpu": f"{cores * 500}m"}}
    other["spec"]["containers"][0] |= {"resources": resources, "args": sleeps}
    tiered.api().post(PODS, other)
    seats.wait(["other"], ready, 30, "Ready where the seat has given back")
    with pytest.raises(requests.Timeout):
        Direct.to(before).ask(limit=15)
    told = tiered.kubectl("get", "events", "-o", "jsonpath={.items[*].message}")
    assert "does not get them again" in told, told

    seats.delete(["other"])
    answer = Direct.to(before).ask(limit=60)
    assert (answer.status, answer.intact) == (200, True)
    assert answer.counter > first.counter, "it continues"
    after = seats.get("a")
    assert (requested(after), reserved(after)) == (much, much)
    assert keys.REQUESTS not in after["metadata"]["annotations"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
