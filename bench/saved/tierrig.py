"""A cluster of one node with one simulated GPU, and a toy model on it that fills it.

Kubelet, containerd, and the agent as config/below-ram has it run, with a real S3 server. The GPU
has as many bytes as it says, and bytes of which none repeat fill those that the model takes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import hostmemory
from bench.node.seatverbs import SeatVerbs
from bench.report import say
from bench.saved.tierlimits import MIB, Limits
from kybernate.checkpoint.places import open_place
from tests.cluster import ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.cluster.layout import work_root
from tests.kit import belowram
from tests.kit.clients.direct import Direct
from tests.kit.pods import Pods, SeatPod, ready
from tests.kit.servers import s3

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.checkpoint.places import Place
    from tests.cluster import Cluster

START, ANSWER, GONE = 180.0, 60.0, 60.0
RESERVE = 16 * MIB
BESIDE = 32 * MIB
"""What the seat declares besides the model's bytes."""


class Model:
    """The toy model in its pod, which must go on as it was."""

    def __init__(self, verbs: SeatVerbs, pod: Mapping[str, Any]) -> None:
        self.verbs, self._direct = verbs, Direct.to(pod)
        self._answers, self._boot = 0, ""
        self.see_intact()

    def see_intact(self) -> None:
        """It answers with the next count, all that is on its GPU is as it was, it wasn't started
        anew. Raises SystemExit."""
        answer = self._direct.ask(limit=ANSWER)
        if answer.status != 200:
            raise SystemExit(f"the model answered {answer.status}: {answer.body}")
        boot, self._answers = answer.body["kyb"]["boot"], self._answers + 1
        lost = (answer.counter, boot) != (self._answers, self._boot or boot)
        if lost or not answer.intact or answer.body["kyb"]["device"] != [self._answers]:
            raise SystemExit(f"the model is not what it was: {answer.body['kyb']}")
        self._boot = boot


@dataclass(frozen=True)
class Rig:
    """A cluster, and what parks go to."""

    cluster: Cluster
    limits: Limits
    mib: int
    nvme: Path
    stored: Path
    place: Place
    """Of the limits' own in the object store."""

    @contextlib.contextmanager
    def model(self, number: int) -> Iterator[Model]:
        """A model with other bytes than those of other numbers."""
        pods, name = Pods(self.cluster.api()), f"toy{number}"
        pods.create(_seat(name, number, self.mib))
        pod = pods.wait([name], ready, START, "Ready")[name]
        with SeatVerbs.of(self.cluster.node("n1"), pod) as verbs:
            yield Model(verbs, pod)
        pods.delete([name], grace=0)
        pods.gone([name], GONE)


@contextlib.contextmanager
def rig(mib: int) -> Iterator[Rig]:
    """A cluster of one node, with an S3 server, and the limits' image."""
    work_root().mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hostmemory.kept(mib))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=work_root())))
        shm = Path(stack.enter_context(tempfile.TemporaryDirectory("-tiers", dir="/dev/shm")))
        # The server's own disk is no part of the question.
        store = stack.enter_context(s3.server(shm / "s3", say))
        where = {"KYB_AGENT_OBJECT_STORE": store.url, **store.environment}
        below = belowram.made(folder / "below", where, say)
        cluster = stack.enter_context(running(_spec(below.overlay, mib), say))
        os.environ.update(store.environment)
        place = open_place(f"{store.url}-limits")
        limits = Limits(shm, mib)
        yield Rig(cluster, limits, mib, below.nvme, shm / "s3" / "data", place)


def _spec(overlay: Path, mib: int) -> ClusterSpec:
    return ClusterSpec(
        name="tierp",
        nodes=("n1",),
        subnet="10.85.0.0/16",
        gpus=GpuSpec(count=1, memory=mib * MIB + 3 * BESIDE, scale=1),
        host_memory=None,
        images=("toy", "sidecar"),
        node_pods=True,
        overlay=overlay,
        service_env={
            "agent": {
                "KYB_AGENT_RESERVE_BYTES": str(RESERVE),
                "KYB_AGENT_TIER_RESIDENCY_S": "0",
                # Awake is it when all of it is back.
                "KYB_AGENT_LAZY_RESTORES": "false",
            },
            "extender": {"KYB_EXTENDER_RESERVE_BYTES": str(RESERVE)},
        },
    )


def _seat(name: str, seed: int, mib: int) -> SeatPod:
    size = str(mib * MIB)
    vram = str(mib * MIB + BESIDE)
    more = ("--unlike", f"--seed={seed}")
    return SeatPod(name, vram=vram, bytes_=size, fill=size, node="n1", arguments=more)
