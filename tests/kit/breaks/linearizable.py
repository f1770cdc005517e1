"""Histories of the registry's calls judged by Porcupine, built through the Go module proxy.

The model is porcupine/model.go; the build is locked by go.mod and go.sum beside it, takes seconds
once, and is kept in the cache that all targets share.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from images.cache import REPOSITORY, cache_root, file_lock, silent
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from images.cache import Progress

    Calls = Sequence[dict[str, Any]]

MODULE = REPOSITORY / "tests" / "kit" / "porcupine"
OK, ILLEGAL, UNKNOWN = "ok", "illegal", "unknown"
_BUILD_S = 600
_SEARCH_S = 10
_ALL_S = 600


def why_not() -> str:
    """Why no checker can be had here, as a sentence; empty if one can."""
    if _binary().exists() or shutil.which("go"):
        return ""
    return "Go is missing, so the checker of histories can't be built here"


def ensure(progress: Progress = silent) -> Path:
    """The checker's command, built if it isn't yet. Raises KybernateError."""
    binary = _binary()
    if reason := why_not():
        raise KybernateError(reason)
    with file_lock(binary.parent / ".lock"):
        if not binary.exists():
            progress("building Porcupine, a checker of histories, from source: some seconds")
            _build(binary)
    return binary


def judge(histories: Sequence[Calls]) -> list[str]:
    """OK, ILLEGAL or UNKNOWN (not decided in 10 s) for each history; its calls are as model.go
    has them. Raises KybernateError."""
    lines = [json.dumps({"id": number, "calls": one}) for number, one in enumerate(histories)]
    run = subprocess.run(
        [str(ensure()), "-limit", f"{_SEARCH_S}s"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=_ALL_S,
        check=False,
    )
    found = [json.loads(line)["verdict"] for line in run.stdout.splitlines()]
    if run.returncode or len(found) != len(lines):
        raise KybernateError(f"the checker of histories ended: {run.stderr.strip()[-500:]}")
    return found


def _binary() -> Path:
    sources = hashlib.sha256()
    for path in sorted(MODULE.iterdir()):
        sources.update(path.name.encode() + b"\0" + path.read_bytes())
    return cache_root() / "porcupine" / sources.hexdigest()[:12] / "porcupine"


def _build(binary: Path) -> None:
    part = binary.with_name(".part")
    run = subprocess.run(
        ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", str(part), "."],
        cwd=MODULE,
        env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if run.returncode:
        tail = "\n".join(run.stderr.strip().splitlines()[-8:])
        raise KybernateError(f"building the checker of histories failed; Go said:\n{tail}")
    part.replace(binary)
