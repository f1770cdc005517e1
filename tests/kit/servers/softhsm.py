"""A PKCS#11 token in software: Debian's SoftHSM2, unpacked into the project's cache.

Nothing is installed on the host; tokens lie in a folder of the test's.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from images import debs
from images.cache import silent
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = debs.DebSet(
    "softhsm",
    "bookworm",
    (
        ("libsofthsm2", "2.6.1-2.1"),
        ("softhsm2", "2.6.1-2.1"),
        ("libssl3", "3.0.20-1~deb12u2"),
        ("libsqlite3-0", "3.40.1-2+deb12u2"),
    ),
)
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LIMIT_S = 30.0
LABEL = "kybernate"
PIN = "123456"


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its module, what the module reads (`environ`), and its files."""

    module: Path
    environ: dict[str, str]
    folder: Path


def make_token(folder: Path) -> Token:
    """A new token, LABEL with PIN, without keys. Raises KybernateError if it can't be had here."""
    root = debs.unpack(PACKAGES, silent).folder
    tokens = folder / "tokens"
    tokens.mkdir(parents=True)
    settings = folder / "softhsm2.conf"
    settings.write_text(f"directories.tokendir = {tokens}\nobjectstore.backend = file\n")
    module = root / _LIBRARIES / "softhsm" / "libsofthsm2.so"
    environ = {"SOFTHSM2_CONF": str(settings)}
    words = ("--init-token", "--free", "--label", LABEL, "--pin", PIN, "--so-pin", "654321")
    run = subprocess.run(
        [root / "usr/bin/softhsm2-util", "--module", module, *words],
        env={**os.environ, **environ, "LD_LIBRARY_PATH": str(root / _LIBRARIES)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if run.returncode:
        raise KybernateError(f"no token can be made: {run.stderr.strip() or run.stdout.strip()}")
    return Token(module, environ, tokens)
