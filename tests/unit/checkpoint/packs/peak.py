"""A process that packs a state and fetches it again, and says how much memory it took at most.

`python -m tests.unit.checkpoint.packs.peak FOLDER MIB`: of so many MiB that nothing makes smaller.
"""

# ruff: noqa: E402 - cores are counted by what is imported
from __future__ import annotations

import os

os.cpu_count = lambda: 2  # What is under way at once grows with them, and with it the memory.

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from kybernate.checkpoint.packs.fetch import fetch
from kybernate.lib.deadline import Deadline
from tests.kit.criuimages import write_pages
from tests.unit.checkpoint.kit import KEYS, make_dump, pack_dump, place


def main(folder: Path, mib: int) -> None:
    """Prints the peak of either (MiB) above what the process had before."""
    there_and_back(make_dump(folder / "small"), folder / "warm")
    (folder / "big").mkdir()
    write_pages(folder / "big", 1, ((n << 20, os.urandom(1 << 20)) for n in range(16, 16 + mib)))
    before = _mib("VmRSS")
    there_and_back(folder / "big", folder / "measured")
    print(_mib("VmHWM") - before)


def there_and_back(dump: Path, folder: Path) -> None:
    where = place(folder / "place")
    fetch(where, pack_dump(dump, where), folder / "back", KEYS, Deadline(60))


def _mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


if __name__ == "__main__":
    with TemporaryDirectory(dir=sys.argv[1]) as work:
        main(Path(work), int(sys.argv[2]))
