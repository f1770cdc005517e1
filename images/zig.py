"""A C compiler for what older systems run: zig's, which brings glibc 2.28's names along, and musl.

What this machine's own compiler links needs this machine's glibc, or a newer one, and is other
bytes on another machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from kybernate.errors import KybernateError

from .cache import cache_root, file_lock

if TYPE_CHECKING:
    from pathlib import Path

    from .cache import Progress

VERSION = "0.14.1"
_SHA256 = "6eb9d4d759b292c83810dbee2e9e8e3fbfbf01d864e6e9811bae711fd74e1c2f"
SHARED = "x86_64-linux-gnu.2.28"
"""For libraries that a system's own programs load."""
STATIC = "x86_64-linux-musl"
"""For programs that need no library: glibc is not made to be linked into them."""
_LIMIT = 600.0


def ensure(progress: Progress) -> Path:
    """The folder of the compiler, fetched if it isn't in the cache. Raises KybernateError."""
    target = cache_root() / f"zig-{VERSION}"
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            progress(f"fetching zig {VERSION} (80 MB)")
            part = target.with_suffix(".part")
            part.mkdir(exist_ok=True)
            listed = part / "requirements.txt"
            listed.write_text(f"ziglang=={VERSION} --hash=sha256:{_SHA256}\n")
            options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
            argv = [sys.executable, "-m", "pip", "install", *options, "--upgrade"]
            run([*argv, "--target", str(part), "-r", str(listed)])
            part.rename(target)
    return target


def make(folder: Path, out: Path, zig: Path, target: str) -> None:
    """Build a folder of `native/` for `target`, SHARED or STATIC. Raises KybernateError."""
    compiler = f"{sys.executable} -m ziglang cc -target {target}"
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(zig / "cache"), "ZIG_LOCAL_CACHE_DIR": str(zig / "cache")}
    argv = ["make", "--no-print-directory", "-C", str(folder), f"CC={compiler}", f"OUT={out}"]
    run(argv, {**os.environ, "PYTHONPATH": str(zig), **caches})


def run(argv: list[str], environ: dict[str, str] | None = None) -> None:
    """Run a command of the build. Raises KybernateError with the end of what it said."""
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=_LIMIT, check=False, env=environ
    )
    if done.returncode:
        said = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise KybernateError(f"{' '.join(argv[:4])} … failed: {said}")
