"""A server in a pod, parked below RAM and woken by the agent, against the bare commands in turn.

One node of a real cluster: kubelet, containerd, and the agent as config/below-ram has it run. Two
pods of one image: one holds a seat; in the other the same server runs below a shell, and `criu
dump` and `criu restore` do with it what they do alone.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import hostmemory
from bench.node.seatverbs import SeatVerbs
from bench.report import median, say
from bench.saved.barecriu import Bare, number_inside
from bench.saved.packing import directory_bytes
from images import criu
from kybernate import keys
from kybernate.adapters.criu import Tools
from tests.cluster import ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.cluster.layout import REPOSITORY, work_root
from tests.cluster.processes.control import wait_until
from tests.kit import belowram
from tests.kit.clients.served import Served
from tests.kit.pods import PODS, Pods, SeatPod, ready
from tests.kit.servers import s3

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.node.parkload import Workload
    from bench.report import Metrics
    from tests.cluster import Cluster

SEAT, PLAIN, NEXT = "seat", "plain", "next"
START = 120.0
SHELL = ("/bin/busybox", "sh", "-c")
BELOW = '/bin/busybox setsid "$@" & while :; do /bin/busybox sleep 3600; done'
"""Process 1 of the plain pod: the server has a session of its own below it."""


@dataclass(frozen=True)
class Rig:
    """A cluster with both pods, and what it takes to park them."""

    cluster: Cluster
    verbs: SeatVerbs
    bare: Bare
    served: Served
    plain: Served
    stored: Path
    """Where the object store keeps what it is given."""

    store: s3.Server


@dataclass
class Samples:
    """Seconds, a value for each cycle."""

    park: list[float] = field(default_factory=list)
    dump: list[float] = field(default_factory=list)
    seal: list[float] = field(default_factory=list)
    wake: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    bare_dump: list[float] = field(default_factory=list)
    bare_sync: list[float] = field(default_factory=list)
    bare_restore: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)

    def note(self, step: str, phases: Mapping[str, float]) -> None:
        """The phases of one step, for people."""
        for name, seconds in phases.items():
            self.phases.setdefault(f"{step} {name}", []).append(seconds)


@contextlib.contextmanager
def rig(workload: Workload, mib: int, *, lazy: bool = False) -> Iterator[Rig]:
    """Both pods of the workload, serving, with so many MiB in it if it is Redis. `lazy`: the agent
    may bring memory in later."""
    work_root().mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hostmemory.kept(mib))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=work_root())))
        store = stack.enter_context(s3.server(folder / "s3", say))
        where = {"KYB_AGENT_OBJECT_STORE": store.url, **store.environment}
        below = belowram.made(folder / "below", where, say)
        cluster = stack.enter_context(running(_spec(below.overlay, workload, lazy=lazy), say))
        pods = Pods(cluster.api())
        pods.create(_seat(workload))
        cluster.api().post(PODS, _plain(workload))
        found = pods.wait([SEAT, PLAIN], ready, START, "Ready")
        served, plain = Served.by(found[SEAT]), Served.by(found[PLAIN])
        for one in (served, plain):
            _serving(workload, one)
            workload.fill(one, mib)
        verbs = stack.enter_context(SeatVerbs.of(cluster.node("n1"), found[SEAT]))
        bare = _bare(found[PLAIN], workload, folder / "bare")
        yield Rig(cluster, verbs, bare, served, plain, folder / "s3" / "data", store)


def cycle(rig: Rig, workload: Workload, samples: Samples) -> None:
    """One park to NVMe and wake by the agent, and one dump and restore by the commands."""
    seconds, phases = rig.verbs.park("nvme")
    samples.park.append(seconds)
    samples.dump.append(phases["all"] - phases["seal"])
    samples.seal.append(phases["seal"])
    samples.note("dump", phases)
    began = time.monotonic()
    seconds, phases = rig.verbs.wake()
    _until_answer(rig.served, workload)
    samples.first.append(time.monotonic() - began)
    samples.wake.append(seconds)
    samples.read.append(phases["read"])
    samples.note("restore", phases)
    samples.restore.append(phases["all"] - phases["read"])
    samples.bare_dump.append(rig.bare.dump())
    samples.bare_sync.append(rig.bare.sync())
    samples.bare_restore.append(rig.bare.restore())
    _until_answer(rig.plain, workload)


def cycle_lazily(rig: Rig, workload: Workload, samples: Samples) -> None:
    """One park to NVMe and one wake by the agent, of which only the first answer is waited for."""
    rig.verbs.park("nvme")
    began = time.monotonic()

    def answered() -> None:
        _until_answer(rig.served, workload)
        samples.first.append(time.monotonic() - began)

    seconds, phases = rig.verbs.wake_and(answered)
    samples.wake.append(seconds)
    samples.note("restore", phases)


def figures(samples: Samples) -> Metrics:
    """What was seen, and the ratios to the bare commands."""
    dump, restore = median(samples.dump), median(samples.restore)
    return {
        "dump_p50_s": (dump, "s"),
        "restore_p50_s": (restore, "s"),
        "dump_ratio_criu": (dump / median(samples.bare_dump), "x"),
        "restore_ratio_criu": (restore / median(samples.bare_restore), "x"),
        "dump_over_ms": (1000 * (dump - 1.3 * median(samples.bare_dump)), "ms"),
        "restore_over_ms": (1000 * (restore - 1.3 * median(samples.bare_restore)), "ms"),
        "seal_p50_s": (median(samples.seal), "s"),
        "read_p50_s": (median(samples.read), "s"),
        "park_p50_s": (median(samples.park), "s"),
        "wake_p50_s": (median(samples.wake), "s"),
        "first_answer_p50_s": (median(samples.first), "s"),
        "samples": (float(len(samples.park)), "cycles"),
    }


def baseline(samples: Samples) -> dict[str, object]:
    """The bare commands in the same run."""
    return {
        "name": "kyb-enter and criu alone on the same server in a pod beside it, in turn",
        "dump_p50_s": round(median(samples.bare_dump), 4),
        "sync_p50_s": round(median(samples.bare_sync), 4),
        "restore_p50_s": round(median(samples.bare_restore), 4),
    }


def by_object_store(rig: Rig, workload: Workload, samples: Samples) -> Metrics:
    """One park into the object store and one wake from it, and what they may take at most."""
    before = directory_bytes(rig.stored)
    parked, _ = rig.verbs.park("object")
    stored = directory_bytes(rig.stored) - before
    began = time.monotonic()
    rig.verbs.wake()
    _until_answer(rig.served, workload)
    woken = time.monotonic() - began
    put, get = workload.rates(rig.store, stored)
    down = median(samples.bare_dump) + stored / put
    up = median(samples.bare_restore) + stored / get
    return {
        "object_park_s": (parked, "s"),
        "object_wake_s": (woken, "s"),
        "object_mib": (stored / (1 << 20), "MiB"),
        "put_mib_s": (put / (1 << 20), "MiB/s"),
        "get_mib_s": (get / (1 << 20), "MiB/s"),
        "object_park_ratio": (parked / down, "x"),
        "object_wake_ratio": (woken / up, "x"),
    }


def by_move(rig: Rig, workload: Workload, samples: Samples) -> Metrics:
    """One move to the other node, and what it may take at most."""
    uid = rig.cluster.api().get(f"{PODS}/{SEAT}")["metadata"]["uid"]
    notes = {keys.RESTORE_FROM: f"pod/{uid}", keys.RESTORE_ELSE: "fail"}
    pods = Pods(rig.cluster.api())
    pods.create(replace(_seat(workload, NEXT, "n2"), annotations=notes))
    there = pods.wait([NEXT], _has_address, START, "given an address")[NEXT]
    before, size = workload.known(rig.served), directory_bytes(rig.bare.images)
    began = time.monotonic()
    seconds = rig.verbs.move(NEXT)
    successor = Served.by(there)
    _until_answer(successor, workload)
    first = time.monotonic() - began
    rate = workload.wire(rig.cluster.node("n1").ip, rig.cluster.node("n2").ip)
    bare = median(samples.bare_dump) + size / rate + median(samples.bare_restore)
    return {
        "move_s": (seconds, "s"),
        "move_first_answer_s": (first, "s"),
        "move_ratio": (seconds / bare, "x"),
        "wire_mib_s": (rate / (1 << 20), "MiB/s"),
        "moved_keys_equal": (float(workload.known(successor) == before), "yes"),
    }


def _has_address(pod: Mapping[str, Any]) -> bool:
    return bool(pod["status"].get("podIP"))


def _serving(workload: Workload, served: Served) -> None:
    wait_until(lambda: workload.answers(served), START, f"{workload.name} doesn't serve")


def _until_answer(served: Served, workload: Workload) -> None:
    while not workload.answers(served):
        time.sleep(0.001)


def _spec(overlay: Path, workload: Workload, *, lazy: bool) -> ClusterSpec:
    return ClusterSpec(
        name="parkp",
        nodes=("n1", "n2") if workload.moves else ("n1",),
        subnet="10.86.0.0/16",
        gpus=GpuSpec(count=1),
        host_memory=None,
        images=(workload.image, "sidecar"),
        node_pods=True,
        overlay=overlay,
        # `criu restore` beside it brings in all memory first.
        service_env={
            "agent": {
                "KYB_AGENT_TIER_RESIDENCY_S": "0",
                "KYB_AGENT_LAZY_RESTORES": str(lazy).lower(),
            }
        },
    )


def _seat(workload: Workload, name: str = SEAT, node: str = "n1") -> SeatPod:
    limits = {"memory": "3Gi", "kyb.ai/gpu-1x-seat": "1"}
    more = {
        "image": workload.image_name,
        "args": [] if workload.in_image else list(workload.command),
        "ports": [{"containerPort": workload.port}],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": limits},
    }
    return SeatPod(name, vram="1Gi", node=node, more=more)


def _plain(workload: Workload) -> dict[str, object]:
    container = {
        "name": "server",
        "image": workload.image_name,
        "imagePullPolicy": "Never",
        "command": [*SHELL, BELOW, "sh", *workload.command],
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": PLAIN}, "spec": spec}


def _bare(pod: Mapping[str, Any], workload: Workload, folder: Path) -> Bare:
    init = _process_1(str(pod["status"]["containerStatuses"][0]["containerID"]))
    tools = Tools(enter=REPOSITORY / "build" / "kyb-enter", criu=criu.for_this_machine(say))

    def tree() -> int:
        children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        names = {int(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in children}
        return next(pid for pid, name in names.items() if name.startswith(workload.process))

    return Bare(tools, init, tree, folder)


def _process_1(container: str) -> int:
    """The host's PID of a container's process 1, by its cgroup."""
    wanted = container.partition("://")[2]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "cgroup").read_text() and number_inside(int(folder.name)) == 1:
                return int(folder.name)
    raise SystemExit(f"no process runs in container {container}")
