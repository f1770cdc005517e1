"""Which CRIU the node has, and whether it works here: by a trial, not by its word."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.core.doctor.nodefacts import CriuFacts, Unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEADLINE = 15.0
_PT_INTERP = 3
_VERSION = re.compile(r"Version:\s*([0-9.]+)")


def find_criu(given: Path | None = None) -> CriuFacts | None:
    """The CRIU at this path, or the first of PATH; None if there is none.

    As root it dumps a process of its own and recreates it; it is ended afterwards.
    """
    found = str(given) if given else shutil.which("criu")
    if found is None or not os.access(found, os.X_OK):
        return None
    path = Path(found)
    said = _run([found, "--version"])
    match = _VERSION.search(said[1])
    version = match[1] if match else ""
    return CriuFacts(found, version, is_static(path), _trial(found))


def lacking(criu: CriuFacts | None, features: Sequence[str]) -> tuple[str, ...] | Unseen:
    """Those features that the kernel hasn't got, by CRIU's own look."""
    if criu is None:
        return Unseen("there is no criu that could look what the kernel can do")
    if os.geteuid() != 0:
        return Unseen("only root may look what the kernel can do")
    return tuple(one for one in features if _run([criu.path, "check", "--feature", one])[0] != 0)


def is_static(path: Path) -> bool:
    """Whether this ELF file (64 bits, little endian) names no loader; a script isn't static."""
    with path.open("rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            return False
        offset, size = int.from_bytes(head[32:40], "little"), int.from_bytes(head[54:56], "little")
        file.seek(offset)
        headers = [file.read(size) for _ in range(int.from_bytes(head[56:58], "little"))]
    return all(int.from_bytes(header[:4], "little") != _PT_INTERP for header in headers)


def _trial(criu: str) -> str | Unseen:
    if os.geteuid() != 0:
        return Unseen("only root may dump a process")
    sleeper = subprocess.Popen(
        ["sleep", "600"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="kyb-criu-") as folder:
            return _there_and_back(criu, sleeper, folder)
    finally:
        sleeper.kill()
        sleeper.wait()


def _there_and_back(criu: str, sleeper: subprocess.Popen[bytes], folder: str) -> str:
    code, said = _run([criu, "dump", "-t", str(sleeper.pid), "-D", folder])
    if code == 0:
        try:
            sleeper.wait(_DEADLINE)
        except subprocess.TimeoutExpired:
            return "the process that it dumped lives on"
        code, said = _run([criu, "restore", "-d", "-D", folder])
        if code == 0:
            with suppress(ProcessLookupError):
                os.kill(sleeper.pid, signal.SIGKILL)
            return ""
    return said.strip().splitlines()[-1] if said.strip() else f"status {code}"


def _run(command: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_DEADLINE,
            check=False,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {_DEADLINE:g} s"
    except OSError as error:
        return -1, str(error)
    return done.returncode, done.stdout + done.stderr
