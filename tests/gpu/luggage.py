"""What a GPU machine without a network is given along: `make gpu-luggage`, then carry build/gpu.

The packages that local mode and these tests need, for that machine's Python; the native programs;
the static CRIU. What travels, sources included, must stay below a limit: what is too big is said.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "build" / "gpu"
PROGRAMS = ("kyb-init", "kyb-enter")
PACKAGES = "packages.zip"
LIMIT = 64 << 20
"""Bytes that may travel: the sources, and this folder."""
_SHOWN = 8


def use() -> None:
    """Processes that are started from here find what was brought; it comes first. Without it they
    have what this Python has."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    if (FOLDER / PACKAGES).exists():
        paths.insert(1, str(_site()))
        sys.path.insert(1, str(_site()))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if (FOLDER / "criu").exists():
        os.environ.setdefault("KYB_CRIU", str(FOLDER / "criu"))
    for name in PROGRAMS:
        target = FOLDER.parent / name
        if (FOLDER / name).exists() and not target.exists():
            shutil.copy2(FOLDER / name, target)


def _site() -> Path:
    """The packages, unpacked: as they are they would be too much to travel."""
    site = FOLDER / "site"
    if not site.is_dir():
        part = FOLDER / "site.part"
        shutil.unpack_archive(FOLDER / PACKAGES, part)
        part.rename(site)
    return site


def sources() -> list[Path]:
    """What travels of the clone: files that git knows, or does not ignore."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, check=True)
    paths = {REPOSITORY / os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    return [path for path in sorted(paths) if path.is_file()]


def too_big(paths: list[Path], limit: int = LIMIT) -> str | None:
    """A sentence that names the biggest of these files, if they are more than `limit` bytes."""
    sizes = {path: path.stat().st_size for path in paths}
    whole = sum(sizes.values())
    if whole <= limit:
        return None
    biggest = sorted(sizes, key=lambda path: -sizes[path])[:_SHOWN]
    listed = ", ".join(f"{path} ({sizes[path] / (1 << 20):.1f} MiB)" for path in biggest)
    size = f"{whole / (1 << 20):.1f} MiB travel, and {limit >> 20} MiB may"
    return f"{size}: remove or ignore some of the biggest: {listed}"


def pack(python: str, *, criu: bool) -> None:
    """Fill the folder for a Python such as 3.12. Raises KybernateError."""
    from images import criu as criu_builder  # noqa: PLC0415 - not there on the GPU machine
    from images import wheels  # noqa: PLC0415 - ditto

    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="kyb-gpu-") as folder:
        site = Path(folder) / "site"
        wheels.install(wheels.alone("local"), site, python, ".")
        shutil.make_archive(str(FOLDER / PACKAGES.partition(".")[0]), "zip", site)
    for name in PROGRAMS:
        shutil.copy2(FOLDER.parent / name, FOLDER / name)
    if criu:
        program = criu_builder.for_this_machine(lambda line: print(line, file=sys.stderr))
        shutil.copy2(program, FOLDER / "criu")


def main() -> int:
    """The exit status is 1 if it would be too big to travel."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.luggage", description=__doc__)
    parser.add_argument("--python", default="3.12", help="the GPU machine's, such as 3.12")
    parser.add_argument("--without-criu", action="store_true", help="leave the disk out")
    options = parser.parse_args()
    pack(options.python, criu=not options.without_criu)
    paths = [*sources(), *(path for path in FOLDER.rglob("*") if path.is_file())]
    whole = sum(path.stat().st_size for path in paths)
    print(f"{FOLDER} is for Python {options.python}; with the sources {whole / (1 << 20):.1f} MiB")
    if (why := too_big(paths)) is not None:
        print(why, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
