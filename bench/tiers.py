"""How fast states go into each tier and back, against what the machine does at best in the run.

One image to CRIU's layout of random bytes, on tmpfs, which stands for the memory that CRIU dumps
and restores. There: what a park does, the file written as CRIU writes it, then sealed (ram, nvme)
or packed (object). Back: what a wake does before CRIU reads, the bytes verified on their way.

- ram: against a plain copy from tmpfs to tmpfs, there and back.
- nvme: against a plain file written and synced, and read with a cold cache.
- object: against the same bytes put to and got from a real S3 server, in objects of the same
  size, as many at once, by the same client; each object that is put is read back, as packs are.
  The client signs the bytes, as S3 clients do; those of packs it doesn't, since they are sealed.
  So the same is measured besides against a put that doesn't either (`object_ratio_unsigned`).

Each of both is done in turn, `--rounds` times; figures are of the medians.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench import hostmemory
from bench.report import emit, median, say
from bench.saved import FACTS, LIMIT, Keys
from kybernate.checkpoint.places import PACK, open_place
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts.into import Into
from kybernate.testing.criuimages import write_pages
from kybernate.types import PodUid, Tier
from tests.kit import s3

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.checkpoint.places import Place

MIB = 1 << 20
START = 0x7F00_0000_5000
UID = PodUid("bench")
INTO = Into(str(FACTS["namespace"]), PodUid(str(FACTS["pod_uid"])))


@dataclass(slots=True)
class Times:
    """Seconds of each round, there and back."""

    there: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)

    @property
    def both(self) -> float:
        """Of the medians."""
        return median(self.there) + median(self.back)


@click.command()
@click.option("--mib", default=1024, show_default=True, help="Size of the state.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--disk", default="/var/tmp", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(mib: int, rounds: int, disk: Path, *, as_json: bool) -> None:
    """Measure the tiers."""
    metrics: dict[str, tuple[float, str]] = {}
    with (
        hostmemory.kept(),
        tempfile.TemporaryDirectory(prefix="kyb-bench-", dir="/dev/shm") as shm,
        tempfile.TemporaryDirectory(prefix="kyb-bench-", dir=disk) as on_disk,
    ):
        image = Path(shm) / "image"
        image.mkdir()
        say(f"making {mib} MiB of random memory")
        write_pages(image, 1, [(START, os.urandom(mib * MIB))], entry_pages=500)
        bench = Bench(image, Path(shm), rounds)
        metrics |= bench.figures("ram", *bench.local(Path(shm) / "place", cold=False))
        metrics |= bench.figures("nvme", *bench.local(Path(on_disk) / "place", cold=True))
        if why := s3.why_not():
            say(f"no object tier: {why}")
        else:
            # The server's own disk is no part of the question.
            with s3.server(Path(shm) / "s3", say) as server:
                os.environ.update(server.environment)
                limit, unsigned, ours = bench.store(open_place(server.url))
                metrics |= bench.figures("object", limit, ours)
                metrics["object_ratio_unsigned"] = (unsigned.both / ours.both, "ratio")
    limits = {"ram_ratio_limit": 0.8, "nvme_ratio_limit": 0.7, "object_ratio_limit": 0.7}
    emit("tiers", metrics, {"name": "limits", **limits}, as_json=as_json)


class Bench:
    """One image, carried about."""

    def __init__(self, image: Path, shm: Path, rounds: int) -> None:
        self.image = image
        self.pages = image / "pages-1.img"
        self.size = self.pages.stat().st_size
        self.shm = shm
        self.rounds = rounds
        self.keys = Keys()

    def figures(self, tier: str, limit: Times, ours: Times) -> dict[str, tuple[float, str]]:
        """Ratio of the speeds there and back together, and each of them in GB/s."""
        found = {f"{tier}_ratio_limit": (limit.both / ours.both, "ratio")}
        for name, times in (("", ours), ("_limit", limit)):
            for way in ("there", "back"):
                seconds = median(getattr(times, way))
                found[f"{tier}_{way}{name}_gbps"] = (self.size / seconds / 1e9, "GB/s")
        return found

    def local(self, root: Path, *, cold: bool) -> tuple[Times, Times]:
        """Sealed raw in a folder, and fetched from there."""
        tier = Tier.NVME if cold else Tier.RAM
        vault = Vault({tier: open_place(str(root))}, tier, self.keys)
        limit, ours = Times(), Times()
        for _ in range(self.rounds):
            plain = root.parent / "plain"
            limit.there.append(seconds(lambda: self.plain_copy(plain, synced=cold)))  # noqa: B023
            if cold:
                drop_cache(plain)
            limit.back.append(seconds(lambda: self.plain_back(plain)))  # noqa: B023
            shutil.rmtree(self.shm / "plain-back")
            shutil.rmtree(plain)
            asyncio.run(self.sealed_round(vault, tier, ours, cold=cold))
            say(f"{tier}: {times_of(ours)}, limit {times_of(limit)}")
        return limit, ours

    async def sealed_round(self, vault: Vault, tier: Tier, ours: Times, *, cold: bool) -> None:
        """One dump, sealed, and brought back."""
        images = await vault.begin(UID)
        began = time.perf_counter()
        copy_files(self.image, images)
        artifact = await vault.seal(images, FACTS, LIMIT)
        ours.there.append(time.perf_counter() - began)
        if cold:
            drop_cache(await vault.images(artifact, LIMIT, INTO))
        back = self.shm / "back"
        began = time.perf_counter()
        await vault.fetch(artifact, back, LIMIT, INTO)
        ours.back.append(time.perf_counter() - began)
        self.check(back)
        await vault.drop(artifact, tier, forget="the bench is done with it")

    def store(self, place: Place) -> tuple[Times, Times, Times]:
        """Put and got signed and unsigned, and packed into a store and fetched from there."""
        limit, unsigned, ours = Times(), Times(), Times()
        for _ in range(self.rounds):
            for kind, times in (("limit/", limit), ("packs/limit/", unsigned)):
                times.there.append(seconds(lambda: self.put_all(place, kind)))  # noqa: B023
                times.back.append(seconds(lambda: self.get_all(place, kind)))  # noqa: B023
                self.clear(place)
            asyncio.run(self.packed_round(place, ours))
            self.clear(place)
            say(f"object: {times_of(ours)}, limit {times_of(limit)}, unsigned {times_of(unsigned)}")
        return limit, unsigned, ours

    async def packed_round(self, place: Place, ours: Times) -> None:
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
        began = time.perf_counter()
        await vault.fetch(artifact, self.shm / "back", LIMIT, INTO)
        ours.back.append(time.perf_counter() - began)
        self.check(self.shm / "back")

    def put_all(self, place: Place, kind: str) -> None:
        """All bytes, in objects of a pack's size below the key `kind`, each read back."""
        file = self.pages.open("rb")
        with file, ThreadPoolExecutor(place.transfers) as pool:
            offsets = range(0, self.size, PACK)

            def put(offset: int) -> None:
                data = os.pread(file.fileno(), PACK, offset)
                place.objects.put(f"{kind}{offset}", data)
                if len(place.objects.get(f"{kind}{offset}")) != len(data):
                    raise SystemExit("the store lost bytes")

            list(pool.map(put, offsets))

    def get_all(self, place: Place, kind: str) -> None:
        """All bytes back into one file on tmpfs."""
        target = os.open(self.shm / "limit", os.O_RDWR | os.O_CREAT)
        with ThreadPoolExecutor(place.transfers) as pool:
            offsets = range(0, self.size, PACK)

            def get(offset: int) -> None:
                os.pwrite(target, place.objects.get(f"{kind}{offset}"), offset)

            list(pool.map(get, offsets))
        os.close(target)
        (self.shm / "limit").unlink()

    def clear(self, place: Place) -> None:
        """Nothing is left there."""
        for kind in ("limit/", "artifacts/", "packs/", "index/", "keys/", "leases/"):
            place.objects.delete([info.key for info in place.objects.scan(kind)])

    def plain_copy(self, target: Path, *, synced: bool) -> None:
        """As any program would copy it."""
        target.mkdir()
        copy_files(self.image, target)
        if synced:
            for path in target.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def plain_back(self, source: Path) -> None:
        """And back to tmpfs."""
        back = self.shm / "plain-back"
        back.mkdir()
        copy_files(source, back)

    def check(self, back: Path) -> None:
        """What came back is what was saved, to the byte; then it goes."""
        for path in self.image.iterdir():
            if (back / path.name).read_bytes() != path.read_bytes():
                raise SystemExit(f"{path.name} came back otherwise")
        shutil.rmtree(back)


def copy_files(source: Path, target: Path) -> None:
    """Each file by one plain copy."""
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)


def drop_cache(folder: Path) -> None:
    """Its files have to be read from the disk."""
    for path in folder.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def seconds(work: Callable[[], None]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def times_of(times: Times) -> str:
    """The last round, for people."""
    return f"{times.there[-1]:.2f} s there, {times.back[-1]:.2f} s back"


if __name__ == "__main__":
    main()
