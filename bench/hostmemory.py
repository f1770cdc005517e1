"""Memory that the machine has under it before a bench counts seconds.

A virtual machine may give free memory back to its host ("free page reporting" of the kernel's). A
page that was given back costs its next user a fault in the host: where this was written 16 µs for
each 4 KiB, so that whatever is written first goes at 0.25 GB/s, to tmpfs, to the page cache or to a
process's heap, while a page that was just freed takes 1 µs. Which of two ways gets which pages is
chance, or the order in which they free theirs.

Only whole huge pages are given back. So another process takes the memory as huge pages and frees
all of each but one small page: what is free then stays, in pieces of up to 1 MiB, for as long as
that process lives. Where nothing is given back, nothing is done.
"""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import say

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
HUGE, SMALL = 2 << 20, 4 << 10
REPORTING = Path("/sys/module/page_reporting")
SPARE = 6
"""GiB that are left alone."""


@contextlib.contextmanager
def kept(mib: int = 1024) -> Iterator[None]:
    """Eight times the `mib` MiB that a bench works on stay the machine's own meanwhile, in whole
    GiB, or what there is but `SPARE` GiB."""
    size = min(8 * mib // 1024, _available() - SPARE)
    if size < 1 or not REPORTING.exists():
        yield
        return
    say(f"touching {size} GiB of free memory, so that the host doesn't take it back")
    command = [sys.executable, "-m", __spec__.name, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if not process.stdout or not process.stdout.readline():
            raise SystemExit("the memory can't be touched")
        try:
            yield
        finally:
            process.communicate()


def main(size: int) -> None:
    """The other process: until its input ends."""
    began = time.monotonic()
    memory = mmap.mmap(-1, size * GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for start in range(0, len(memory), HUGE):
        memory[start] = 1
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # or the kernel makes whole ones of the small pages again
    for start in range(0, len(memory), HUGE):
        # The first splits the huge page, the second frees the parts.
        memory.madvise(mmap.MADV_FREE, start + SMALL, HUGE - SMALL)
        memory.madvise(mmap.MADV_DONTNEED, start + SMALL, HUGE - SMALL)
    print(time.monotonic() - began, flush=True)
    sys.stdin.read()


def _available() -> int:
    """GiB that could be had without taking anything from anybody."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith("MemAvailable:")]
    return int(line.split()[1]) >> 20


if __name__ == "__main__":
    main(int(sys.argv[1]))
