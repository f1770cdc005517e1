"""What the machine itself does at best with so many bytes, and the figures against it.

One image to CRIU's layout of random bytes, on tmpfs, is

- copied from tmpfs to tmpfs, there and back;
- written to a file and synced, and read with a cold cache;
- put to and got from an S3 server, in objects of a pack's size, as many at once, by the agent's own
  client; each object that is put is read back, as packs are. S3 clients sign the bytes; those of
  packs aren't, since they are sealed, so that the same is done besides without (`unsigned`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import median
from kybernate.checkpoint.places import PACK
from tests.kit.criuimages import write_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.report import Metrics
    from kybernate.checkpoint.places import Place

MIB = 1 << 20
START = 0x7F00_0000_5000
TARGETS = {"ram": 0.8, "nvme": 0.7, "object": 0.7}
BASELINE = {"name": "limits", **{f"{one}_ratio_limit": wanted for one, wanted in TARGETS.items()}}
SIGNED, UNSIGNED = "limit/", "packs/limit/"


@dataclass(slots=True)
class Times:
    """Seconds of each round, there and back."""

    there: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.there[-1]:.2f} s there, {self.back[-1]:.2f} s back"

    @property
    def both(self) -> float:
        """Of the medians."""
        return median(self.there) + median(self.back)


def figures(tier: str, size: int, limit: Times, ours: Times) -> Metrics:
    """Ratio of the speeds there and back together, and each of them in GB/s."""
    found = {f"{tier}_ratio_limit": (limit.both / ours.both, "ratio")}
    for name, times in (("", ours), ("_limit", limit)):
        for way in ("there", "back"):
            seconds = median(getattr(times, way))
            found[f"{tier}_{way}{name}_gbps"] = (size / seconds / 1e9, "GB/s")
    return found


class Limits:
    """One image of `mib` MiB below `shm`, a folder on tmpfs, carried about."""

    def __init__(self, shm: Path, mib: int) -> None:
        self.shm, self.image = shm, shm / "image"
        self.image.mkdir()
        write_pages(self.image, 1, [(START, os.urandom(mib * MIB))], entry_pages=500)
        self.pages = self.image / "pages-1.img"
        self.size = self.pages.stat().st_size

    def copied(self, plain: Path, times: Times, *, cold: bool) -> None:
        """To the folder `plain` and back to tmpfs; `cold`: synced, and read from the disk."""
        times.there.append(seconds(lambda: self._copy(plain, synced=cold)))
        if cold:
            drop_cache(plain)
        back = self.shm / "plain-back"
        back.mkdir()
        times.back.append(seconds(lambda: copy_files(plain, back)))
        shutil.rmtree(back)
        shutil.rmtree(plain)

    def _copy(self, target: Path, *, synced: bool) -> None:
        """As any program would copy it."""
        target.mkdir()
        copy_files(self.image, target)
        if synced:
            for path in target.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def stored(self, place: Place, kind: str, times: Times) -> None:
        """Into objects below the key `kind`, and back to tmpfs; they are gone then."""
        times.there.append(seconds(lambda: self._put(place, kind)))
        times.back.append(seconds(lambda: self._get(place, kind)))
        clear(place, kind)

    def _put(self, place: Place, kind: str) -> None:
        """All bytes, each object read back."""
        with self.pages.open("rb") as file, ThreadPoolExecutor(place.transfers) as pool:

            def put(offset: int) -> None:
                data = os.pread(file.fileno(), PACK, offset)
                place.objects.put(f"{kind}{offset}", data)
                if len(place.objects.get(f"{kind}{offset}")) != len(data):
                    raise SystemExit("the store lost bytes")

            list(pool.map(put, range(0, self.size, PACK)))

    def _get(self, place: Place, kind: str) -> None:
        """All bytes into one file."""
        path = self.shm / "limit"
        with path.open("wb") as file, ThreadPoolExecutor(place.transfers) as pool:

            def get(offset: int) -> None:
                os.pwrite(file.fileno(), place.objects.get(f"{kind}{offset}"), offset)

            list(pool.map(get, range(0, self.size, PACK)))
        path.unlink()


def clear(place: Place, *kinds: str) -> None:
    """Nothing is left below these keys."""
    for kind in kinds:
        place.objects.delete([info.key for info in place.objects.scan(kind)])


def copy_files(source: Path, target: Path) -> None:
    """Each file by one plain copy."""
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)


def drop_cache(folder: Path) -> None:
    """The files below it have to be read from the disk; files and folders that go meanwhile are
    fine: an agent cleans up when it likes."""
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if not path.is_file():
                    continue
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
