"""What it costs to bring a seat's memory somewhere: one table of tiers. Pure.

Adding a tier is adding a row: waking, parking and moving are computed from the rows only.
"""

from __future__ import annotations

from math import ceil, log
from types import MappingProxyType
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.types import ArtifactId, NodeName, PodUid


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a tier is: bytes per second to `write` and `read`, and seconds before the first.

    `per_gpu`: each GPU has a path of its own, so that several are that much faster.
    `outlives_pod`: the state is there after the pod, so that another pod can continue with it.
    """

    write: float
    read: float
    latency: float = 0.0
    per_gpu: bool = False
    outlives_pod: bool = False


SPEEDS: Mapping[Tier, Speed] = MappingProxyType(
    {
        Tier.RAM: Speed(write=6e9, read=6e9, latency=0.05, per_gpu=True),
        Tier.NVME: Speed(write=1.2e9, read=1.2e9, latency=0.2, outlives_pod=True),
        Tier.OBJECT: Speed(write=0.3e9, read=0.3e9, latency=1.0, outlives_pod=True),
    }
)
"""RAM: the driver's restores of 16 to 145 GB took 5.9 to 8.1 GB/s in the rows that name their CUDA
share (docs/concepts/scheduling/colocation.md); the latency is what our own steps take around it.
NVMe: CRIU copied pages at 1.5 to 1.7 GB/s here; with the way through RAM, which this row and the
next include, that is 1.2. The object store is a cautious guess, as nobody knows the network. What
is in either outlives its pod (docs/concepts/restores.md, docs/concepts/moves.md); what is in RAM
does not."""

RESTART = Speed(write=float("inf"), read=0.5e9, latency=30.0)
"""A pod that is moved without its state: it ends at once and starts again, reading its weights."""

NETWORK = 1.25e9
"""Bytes per second between two nodes, if the artifact is on another one: 10 Gbit/s."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact: its tier, its bytes, and the node that holds it; None: all reach it alike."""

    tier: Tier
    size: int
    node: NodeName | None = None


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An artifact of the pod `uid`, as a node tells of it; `size` in bytes."""

    artifact: ArtifactId
    uid: PodUid
    tier: Tier
    size: int


def about(size: int) -> int:
    """So many bytes, rounded up to steps of a fifth: what is told of a size that changes all the
    time changes seldom, and nodes that differ by less look the same. 0 stays 0."""
    return ceil(1.2 ** ceil(log(size, 1.2))) if size > 0 else 0


def wake_seconds(
    artifact: Artifact, node: NodeName, gpus: int, speeds: Mapping[Tier, Speed] = SPEEDS
) -> float:
    """How long the artifact takes into `gpus` GPUs of the node, wherever it is."""
    speed = speeds[artifact.tier]
    seconds = speed.latency + artifact.size / _times(speed.read, speed, gpus)
    away = artifact.node is not None and artifact.node != node
    return seconds + artifact.size / NETWORK if away else seconds


def park_seconds(size: int, gpus: int) -> float:
    """How long so many bytes take from so many GPUs into RAM."""
    ram = SPEEDS[Tier.RAM]
    return ram.latency + size / _times(ram.write, ram, gpus)


def switch_seconds(size: int, gpus: int, rests: Artifact | None = None) -> float:
    """How long a seat of `size` bytes takes out of GPU memory, which is into RAM, and in again.

    `rests` is the state in which it waits for that, if it is offloaded. `size` may be what the seat
    could fill: it is never in sooner than from RAM.
    """
    ram = SPEEDS[Tier.RAM]
    out = park_seconds(size, gpus)
    by_ram = out + ram.latency + size / _times(ram.read, ram, gpus)
    if rests is None:
        return by_ram
    speed = SPEEDS[rests.tier]
    way_in = speed.latency + rests.size / _times(speed.read, speed, gpus)
    return max(by_ram, out + way_in)


def move_seconds(size: int, speeds: Mapping[Tier, Speed] = SPEEDS) -> float:
    """How long a pod of `size` bytes takes to another node: by the fastest tier whose state
    outlives the pod, each piece sent as it is written; without any, ended and started again."""
    ways = [speed for speed in speeds.values() if speed.outlives_pod]
    if not ways:
        return RESTART.latency + size / RESTART.read
    return min(w.latency + size / min(w.write, NETWORK) + size / w.read for w in ways)


def rebalance_seconds(size: int) -> float:
    """How long a pod of `size` bytes takes to any other group of the cluster, by the object store:
    so its state goes where its successor may be bound anywhere."""
    return move_seconds(size, {Tier.OBJECT: SPEEDS[Tier.OBJECT]})


def _times(rate: float, speed: Speed, gpus: int) -> float:
    return rate * gpus if speed.per_gpu else rate
