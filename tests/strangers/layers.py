"""What a program's root is made of, from the registries: Debian's packages, and PyPI's wheels."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from images import debs, wheels
from images.cache import cache_root, digest_of, file_lock

if TYPE_CHECKING:
    from images.cache import Progress
    from tests.strangers.programs import Stranger

LOCKS = Path(__file__).with_name("locks")
"""Lines for pip, with hashes: `uv pip compile --generate-hashes`, less those of other platforms."""


def fetch(stranger: Stranger, progress: Progress) -> list[Path]:
    """Its folders, the topmost first, from the cache if they are there. Raises KybernateError."""
    found = []
    if stranger.wheels:
        found.append(_wheels(stranger.wheels, progress))
    if stranger.packages is not None:
        found.append(debs.unpack(stranger.packages, progress).folder)
    return found


def version(stranger: Stranger, progress: Progress) -> str:
    """Of what was fetched, as its project counts. Raises KybernateError."""
    if stranger.wheels:
        lock = (LOCKS / f"{stranger.wheels}.txt").read_text()
        found = re.search(rf"^{stranger.wheels}==(\S+)", lock, re.MULTILINE)
        assert found is not None, f"{stranger.wheels} is not in its own lock"
        return found[1]
    if stranger.packages is None:
        run = subprocess.run(["go", "version"], check=True, capture_output=True, timeout=30)
        return run.stdout.decode().split()[2].removeprefix("go")
    manifest = debs.unpack(stranger.packages, progress).manifest
    debian = manifest[stranger.packages.packages[0][0]]["version"]
    return re.split(r"[-+~]", debian.partition(":")[2] or debian)[0]


def _wheels(name: str, progress: Progress) -> Path:
    lines = (LOCKS / f"{name}.txt").read_text()
    target = cache_root() / "images" / f"stranger-wheels-{name}-{digest_of(lines)}"
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            progress(f"fetching the wheels of {name}")
            part = target.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            wheels.install(lines, part)
            part.rename(target)
    return target
