"""What a second snapshot costs: bytes in the place, time, memory and disk beside it.

Images to CRIU's layout, of random bytes in three regions, the first of which has grown by a few
pages in the second snapshot, so that all offsets move. Once 1 % of the memory has changed in one
region, once in pages all over. Bytes are those of all objects of the place: chunks, indexes,
manifests. Time is that of packing the second snapshot, against a plain `criu dump` of a process of
that size to tmpfs, and against a plain copy of its image, in the same run and in turn. Memory is
what the kernel charges to a process that packs the first snapshot onto a disk, its page cache
included, beyond an idle one's.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench import hostmemory
from bench.processes import memory_mib
from bench.report import emit, median, say
from bench.saved import plaindump
from bench.saved.packing import Keys, directory_bytes, pack_dump
from kybernate.checkpoint.places import open_place
from kybernate.core.chunks.pages import BLOCK, PAGE
from tests.kit.criuimages import write_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
STARTS = (0x55550000_3000, 0x7F000000_5000, 0x7FFF0000_1000)
"""Addresses of heap, one large mapping, and stacks; none begins with a block."""
GROWN = 3
"""Pages that the heap has more in the second snapshot."""
MEMORY = Path("/sys/fs/cgroup/memory")


@click.command()
@click.option("--mib", default=1024, show_default=True, help="Size of the snapshot.")
@click.option("--rounds", default=5, show_default=True, help="Second snapshots of each kind.")
@click.option("--disk", default="/var/tmp", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
@click.option("--pack-once", nargs=3, hidden=True)
def main(
    mib: int, rounds: int, disk: Path, pack_once: tuple[str, str, str] | None, *, as_json: bool
) -> None:
    """Measure second snapshots."""
    if pack_once:
        peak_of_one(*map(Path, pack_once))
        return
    with (
        hostmemory.kept(mib),
        tempfile.TemporaryDirectory(prefix="kyb-bench-", dir="/dev/shm") as shm,
    ):
        first = Path(shm) / "first"
        say(f"making {mib} MiB of random memory")
        memory = make_memory(mib)
        write_image(first, memory)
        metrics = memory_and_disk(first, disk)
        with plaindump.process(mib, Path(shm)) as dump:
            for kind in ("region", "scattered"):
                found = second_snapshots(Path(shm), memory, kind, rounds, dump)
                metrics |= {f"bytes_ratio_{kind}": (found["bytes"], "ratio")}
                metrics |= {f"time_ratio_{kind}": (found["time"], "ratio")}
                metrics |= {f"copy_ratio_{kind}": (found["to_copy"], "ratio")}
                metrics |= {f"second_{kind}_s": (found["seconds"], "s")}
                metrics |= {f"second_{kind}_cpu_s": (found["cpu"], "s")}
                metrics |= {"copy_s": (found["copy"], "s"), "copy_cpu_s": (found["copy_cpu"], "s")}
                metrics |= {"dump_s": (found["dump"], "s")}
        worst = max(metrics["time_ratio_region"][0], metrics["time_ratio_scattered"][0])
        metrics["time_ratio_dump"] = (worst, "ratio")
    limits = {"bytes_ratio": 1.2, "time_ratio_dump": 1.2, "extra_mib": 256}
    emit("incremental", metrics, {"name": "limits", **limits}, as_json=as_json)


def make_memory(mib: int) -> list[bytearray]:
    """Heap, mapping and stacks."""
    sizes = (mib // 8, mib - mib // 8 - 1, 1)
    return [bytearray(os.urandom(size * MIB)) for size in sizes]


def write_image(folder: Path, memory: list[bytearray], *, grown: bool = False) -> None:
    """The memory as CRIU would write it."""
    folder.mkdir(mode=0o700)
    runs = list(zip(STARTS, (bytes(region) for region in memory), strict=True))
    if grown:
        start, data = runs[0]
        runs[0] = (start - GROWN * PAGE, os.urandom(GROWN * PAGE) + data)
    write_pages(folder, 1, runs, entry_pages=500)
    (folder / "core-1.img").write_bytes(b"registers")


def change(memory: list[bytearray], kind: str, rng: random.Random) -> int:
    """Change 1 % of the pages; how many 64 KiB address blocks have a changed page."""
    total = sum(len(region) for region in memory) // PAGE
    wanted = total // 100
    large = memory[1]
    if kind == "region":
        first = rng.randrange(len(large) // PAGE - wanted)
        pages = list(range(first, first + wanted))
    else:
        pages = rng.sample(range(len(large) // PAGE), wanted)
    for page in pages:
        large[page * PAGE : page * PAGE + 64] = rng.randbytes(64)
    blocks = {(STARTS[1] + page * PAGE) // BLOCK for page in pages}
    heap = STARTS[0]
    return len(blocks | {(heap - n * PAGE) // BLOCK for n in range(1, GROWN + 1)})


def second_snapshots(
    shm: Path, memory: list[bytearray], kind: str, rounds: int, dump: Callable[[], float]
) -> dict[str, float]:
    """Pack the first, then `rounds` second ones, each over the first alone."""
    keys, first, rng = Keys(), shm / "first", random.Random(1)
    base = shm / f"place-{kind}"
    pack_dump(first, open_place(str(base)), keys, "first")
    base_bytes = directory_bytes(base)
    ratios, times, copies, dumps = [], [], [], []
    cpus, copy_cpus = [], []
    for number in range(rounds):
        changed = [bytearray(region) for region in memory]
        blocks = change(changed, kind, rng)
        image, work = shm / "second", shm / "work"
        write_image(image, changed, grown=True)
        del changed
        shutil.copytree(base, work, copy_function=os.link)
        dumps.append(dump())
        began = time.process_time()
        copies.append(copy_seconds(image, shm / "copy"))
        copy_cpus.append(time.process_time() - began)
        began, cpu = time.perf_counter(), time.process_time()
        pack_dump(image, open_place(str(work)), keys, "second")
        times.append(time.perf_counter() - began)
        cpus.append(time.process_time() - cpu)
        ratios.append((directory_bytes(work) - base_bytes) / (blocks * BLOCK))
        say(
            f"{kind} {number + 1}: {blocks} blocks, bytes {ratios[-1]:.3f}, "
            f"pack {times[-1]:.2f} s ({cpus[-1]:.2f} of CPU), "
            f"copy {copies[-1]:.2f} s ({copy_cpus[-1]:.2f}), dump {dumps[-1]:.2f} s"
        )
        for folder in (image, work, shm / "copy"):
            shutil.rmtree(folder)
    shutil.rmtree(base)
    return {
        "bytes": max(ratios),
        "time": median(times) / median(dumps),
        "to_copy": median(times) / median(copies),
        "dump": median(dumps),
        "seconds": median(times),
        "copy": median(copies),
        "cpu": median(cpus),
        "copy_cpu": median(copy_cpus),
    }


def copy_seconds(source: Path, target: Path) -> float:
    """How long a plain copy to tmpfs takes. `target` stays."""
    began = time.perf_counter()
    shutil.copytree(source, target)
    return time.perf_counter() - began


def memory_and_disk(image: Path, disk: Path) -> dict[str, tuple[float, str]]:
    """Peaks of packing onto a disk, in a process and a cgroup of its own."""
    with tempfile.TemporaryDirectory(prefix="kyb-bench-", dir=disk) as folder, cgroup() as group:
        place, told = Path(folder) / "place", Path(folder) / "told"
        with peak_bytes(place) as peak:
            subprocess.run(
                [
                    *(sys.executable, "-m", "bench.saved.incremental", "--pack-once"),
                    *map(str, (image, place, told)),
                ],
                env={**os.environ, "KYB_BENCH_CGROUP": str(group or "")},
                check=True,
                timeout=600,
            )
        found = json.loads(told.read_text())
        metrics = {
            "extra_rss_mib": (found["extra"] / MIB, "MiB"),
            "peak_rss_mib": (found["rss"] / MIB, "MiB"),
            "extra_disk_mib": ((peak[0] - directory_bytes(place)) / MIB, "MiB"),
        }
    say("page cache is counted" if group else "no memory cgroup here: page cache is NOT counted")
    return metrics


def peak_of_one(image: Path, place: Path, told: Path) -> None:
    """In the child: pack, and say what it took at most."""
    group = os.environ["KYB_BENCH_CGROUP"]
    keys = Keys()
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    pid = os.getpid()
    before = memory_mib(pid) * MIB
    pack_dump(image, open_place(str(place)), keys, "first")
    extra = memory_mib(pid, "VmHWM") * MIB - before
    if group:
        extra = max(extra, int((Path(group) / "memory.max_usage_in_bytes").read_text()))
    told.write_text(json.dumps({"extra": extra, "rss": memory_mib(pid, "VmHWM") * MIB}))


@contextmanager
def cgroup() -> Iterator[Path | None]:
    """A memory cgroup of our own, where that can be had."""
    group = MEMORY / f"kyb-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


@contextmanager
def peak_bytes(folder: Path) -> Iterator[list[int]]:
    """The most that the folder holds meanwhile, looked at every 20 ms."""
    peak, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], directory_bytes(folder))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main()
