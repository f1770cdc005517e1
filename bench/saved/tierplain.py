"""Bytes through the vault alone, which tells what the format costs: no seat, no CRIU.

An image on tmpfs stands for the memory that CRIU dumps and restores. There: the file written as
CRIU writes it, then sealed (ram, nvme) or packed (object). Back: what a wake does before CRIU
reads, the bytes verified on their way. `ram` is a place on tmpfs, which agents have not.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import hostmemory
from bench.report import emit, say
from bench.saved.packing import FACTS, LIMIT, Keys
from bench.saved.tierlimits import (
    BASELINE,
    SIGNED,
    UNSIGNED,
    Limits,
    Times,
    clear,
    copy_files,
    drop_cache,
    figures,
)
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts.into import Into
from kybernate.types import PodUid, Tier
from tests.kit.servers import s3

if TYPE_CHECKING:
    from bench.report import Metrics
    from kybernate.checkpoint.places import Place
    from kybernate.types import ArtifactId

UID = PodUid("bench")
INTO = Into(str(FACTS["namespace"]), PodUid(str(FACTS["pod_uid"])))


def measure(mib: int, rounds: int, disk: Path, *, as_json: bool) -> None:
    """Each tier and its limit in turn, `rounds` times."""
    metrics: Metrics = {}
    with (
        hostmemory.kept(mib),
        tempfile.TemporaryDirectory(prefix="kyb-bench-", dir="/dev/shm") as shm,
        tempfile.TemporaryDirectory(prefix="kyb-bench-", dir=disk) as on_disk,
    ):
        say(f"making {mib} MiB of random memory")
        bench = Plain(Limits(Path(shm), mib), rounds)
        metrics |= bench.local(Tier.RAM, Path(shm) / "place")
        metrics |= bench.local(Tier.NVME, Path(on_disk) / "place")
        if why := s3.why_not():
            say(f"no object tier: {why}")
        else:
            # The server's own disk is no part of the question.
            with s3.server(Path(shm) / "s3", say) as server:
                os.environ.update(server.environment)
                metrics |= bench.store(open_place(server.url))
    emit("tiers-plain", metrics, BASELINE, as_json=as_json)


class Plain:
    """The image of the limits, through a vault."""

    def __init__(self, limits: Limits, rounds: int) -> None:
        self.limits, self.rounds = limits, rounds
        self.image, self.shm = limits.image, limits.shm
        self.keys = Keys()

    def local(self, tier: Tier, root: Path) -> Metrics:
        """Sealed raw in a folder, and fetched from there."""
        cold = tier is Tier.NVME
        vault = Vault({tier: open_place(str(root))}, tier, self.keys)
        limit, ours = Times(), Times()
        for _ in range(self.rounds):
            self.limits.copied(root.parent / "plain", limit, cold=cold)
            asyncio.run(self._sealed(vault, tier, ours, cold=cold))
            say(f"{tier.value}: {ours}, limit {limit}")
        return figures(tier.value, self.limits.size, limit, ours)

    async def _sealed(self, vault: Vault, tier: Tier, ours: Times, *, cold: bool) -> None:
        """One dump, sealed, and brought back."""
        images = await vault.begin(UID)
        began = time.perf_counter()
        copy_files(self.image, images)
        artifact = await vault.seal(images, FACTS, LIMIT)
        ours.there.append(time.perf_counter() - began)
        if cold:
            drop_cache(await vault.images(artifact, LIMIT, INTO))
        await self._fetched(vault, artifact, ours)
        await vault.drop(artifact, tier, forget="the bench is done with it")

    def store(self, place: Place) -> Metrics:
        """Put and got signed and unsigned, and packed into a store and fetched from there."""
        limit, unsigned, ours = Times(), Times(), Times()
        for _ in range(self.rounds):
            self.limits.stored(place, SIGNED, limit)
            self.limits.stored(place, UNSIGNED, unsigned)
            asyncio.run(self._packed(place, ours))
            clear(place, "artifacts/", "packs/", "index/", "keys/", "leases/")
            say(f"object: {ours}, limit {limit}, unsigned {unsigned}")
        found = figures(Tier.OBJECT.value, self.limits.size, limit, ours)
        found["object_ratio_unsigned"] = (unsigned.both / ours.both, "ratio")
        return found

    async def _packed(self, place: Place, ours: Times) -> None:
        """One artifact that lies raw on tmpfs, packed and brought back."""
        ram = open_place(str(self.shm / "ram"))
        vault = Vault({Tier.RAM: ram, Tier.OBJECT: place}, Tier.RAM, self.keys)
        images = await vault.begin(UID)
        copy_files(self.image, images)
        artifact = await vault.seal(images, FACTS, LIMIT)
        began = time.perf_counter()
        await vault.pack(artifact, Tier.OBJECT, LIMIT)
        ours.there.append(time.perf_counter() - began)
        await vault.drop(artifact, Tier.RAM)
        await self._fetched(vault, artifact, ours)

    async def _fetched(self, vault: Vault, artifact: ArtifactId, ours: Times) -> None:
        """What came back is what was saved, to the byte; then it goes."""
        back = self.shm / "back"
        began = time.perf_counter()
        await vault.fetch(artifact, back, LIMIT, INTO)
        ours.back.append(time.perf_counter() - began)
        for path in self.image.iterdir():
            if (back / path.name).read_bytes() != path.read_bytes():
                raise SystemExit(f"{path.name} came back otherwise")
        shutil.rmtree(back)
