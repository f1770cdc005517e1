"""A real S3 server for tests and benches: versitygw, built through the Go module proxy.

The build is locked by versitygw/go.mod and go.sum, takes about half a minute once, and is kept in
the cache that all targets share.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from images.cache import REPOSITORY, cache_root, file_lock, silent
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from images.cache import Progress

MODULE = REPOSITORY / "tests" / "kit" / "versitygw"
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
BUCKET = "bucket"
_STARTS = 20.0
_ACCESS, _SECRET = "kyb-test", "kyb-test-secret"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs: the URL of its bucket, the environment that leads to it, its process."""

    url: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]


def why_not() -> str:
    """Why no server can be had here, as a sentence; empty if one can."""
    if _binary().exists() or shutil.which("go"):
        return ""
    return "Go is missing, so no S3 server can be built here"


def ensure(progress: Progress = silent) -> Path:
    """The server's command, built if it isn't yet. Raises KybernateError."""
    binary = _binary()
    if reason := why_not():
        raise KybernateError(reason)
    with file_lock(binary.parent / ".lock"):
        if not binary.exists():
            progress("building versitygw, an S3 server, from source: about half a minute")
            _build(binary)
    return binary


@contextmanager
def server(folder: Path, progress: Progress = silent) -> Iterator[Server]:
    """A server with one empty bucket, its objects below `folder`."""
    command = ensure(progress)
    for name in ("data", "meta"):
        (folder / name).mkdir(parents=True)
    (folder / "data" / BUCKET).mkdir()
    port = _free_port()
    argv = [str(command), "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive"]
    argv += ["--access", _ACCESS, "--secret", _SECRET]
    argv += ["posix", "--sidecar", str(folder / "meta"), str(folder / "data")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        _await(process, port, folder / "log")
        yield Server(f"s3://{BUCKET}/kyb", _environment(port), process)
    finally:
        process.kill()
        process.wait()


def _binary() -> Path:
    lock = (MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes()
    return cache_root() / "versitygw" / hashlib.sha256(lock).hexdigest()[:12] / "versitygw"


def _build(binary: Path) -> None:
    part = binary.with_name(".part")
    run = subprocess.run(
        ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", str(part), PACKAGE],
        cwd=MODULE,
        env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if run.returncode:
        tail = "\n".join(run.stderr.strip().splitlines()[-8:])
        raise KybernateError(f"building versitygw failed; Go said:\n{tail}")
    part.replace(binary)


def _environment(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": _ACCESS,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _STARTS
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise KybernateError(f"versitygw doesn't answer: {log.read_text()[-500:]}")
