"""CRIU as the agent runs it: static, built here from Debian's pinned source.

A distribution's CRIU that enters a container loads libraries, plugins and configuration from it,
and so runs the container's code with the node's rights: see docs/concepts/criu.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError, KybernateError

from . import debs
from .cache import REPOSITORY, cache_root, digest_of, file_lock

if TYPE_CHECKING:
    from .cache import Progress

HERE = REPOSITORY / "native" / "criu"
SOURCE = debs.DebSource(
    "criu",
    "4.2.1-1",
    ("forky", "sid"),
    "29ec0ee09e296479fe7048c80980e8ef1d0684d0b0204c2b101dfea19f6725b9",
)
NEEDS = debs.DebSet(
    "criu-needs",
    "bookworm",
    (
        ("libbsd-dev", "0.11.7-2"),
        ("libcap-dev", "1:2.66-4+deb12u3+b1"),
        ("libmd-dev", "1.0.4-2"),
        ("libnet1-dev", "1.1.6+dfsg-3.2"),
        ("libnl-3-dev", "3.7.0-0.2+b1"),
        ("libprotobuf-c-dev", "1.4.1-1+b1"),
        ("libprotobuf-dev", "3.21.12-3+deb12u1"),
        ("libprotobuf32", "3.21.12-3+deb12u1"),
        ("libprotoc32", "3.21.12-3+deb12u1"),
        ("protobuf-c-compiler", "1.4.1-1+b1"),
        ("protobuf-compiler", "3.21.12-3+deb12u1"),
        ("uuid-dev", "2.38.1-5+deb12u3"),
    ),
)
BUILD_LIMIT = 900.0
"""Seconds that the build may take; 40 on two idle cores."""

VARIABLE = "KYB_CRIU"

_CAP_SYS_RESOURCE = 24


@dataclass(frozen=True, slots=True)
class Criu:
    """The two programs: the product, and the one for machines without CAP_SYS_RESOURCE."""

    product: Path
    test: Path


def ensure(progress: Progress) -> Criu:
    """CRIU from $KYB_CRIU if set, else built and kept in the cache.

    Raises ConfigError if what is given is no program, KybernateError if the build fails.
    """
    given = os.environ.get(VARIABLE)
    if given:
        path = Path(given).resolve()
        if not os.access(path, os.X_OK):
            raise ConfigError(VARIABLE, f"{path} is no program; name a static CRIU of 4.2 or newer")
        return Criu(path, path)
    recipe = [*sorted(HERE.glob("*.*")), *sorted((HERE / "tools").iterdir())]
    key = digest_of(SOURCE.sha256, NEEDS.key, files=recipe)
    target = cache_root() / "criu" / key
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            _build(target, progress)
    return Criu(target / "criu", target / "criu-test")


def for_this_machine(progress: Progress) -> Path:
    """The program that works here: the product wherever its capabilities are allowed."""
    built = ensure(progress)
    return built.product if _may_read_limits() else built.test


def _build(target: Path, progress: Progress) -> None:
    source = debs.fetch_source(SOURCE, progress)
    needs = debs.unpack(NEEDS, progress)
    progress("building CRIU from source: about 40 s on two idle cores; the result is kept")
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    argv = [str(HERE / "build.sh"), str(source), str(needs.folder), str(part)]
    try:
        run = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_LIMIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise KybernateError(f"building CRIU took more than {BUILD_LIMIT:g} s") from error
    if run.returncode:
        log = part / "make.log"
        said = (run.stderr + (log.read_text() if log.exists() else "")).strip().splitlines()[-4:]
        raise KybernateError(f"building CRIU failed: {' / '.join(said)}")
    part.rename(target)


def _may_read_limits() -> bool:
    found = re.search(r"CapBnd:\s*([0-9a-f]+)", Path("/proc/self/status").read_text())
    return found is not None and bool(int(found[1], 16) >> _CAP_SYS_RESOURCE & 1)
