"""A real S3 server for tests and benches: versitygw."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.processes import free_port
from images.cache import silent
from kybernate.errors import KybernateError
from tests.kit.gobuild import Program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from images.cache import Progress

PROGRAM = Program(
    "versitygw",
    "github.com/versity/versitygw/cmd/versitygw",
    "an S3 server, from source: about half a minute",
)
why_not, ensure = PROGRAM.why_not, PROGRAM.ensure
BUCKET = "bucket"
_STARTS = 20.0
_ACCESS, _SECRET = "kyb-test", "kyb-test-secret"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs: the URL of its bucket, the environment that leads to it, its process."""

    url: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]


@contextmanager
def server(folder: Path, progress: Progress = silent) -> Iterator[Server]:
    """A server with one empty bucket, its objects below `folder`."""
    command = ensure(progress)
    for name in ("data", "meta"):
        (folder / name).mkdir(parents=True)
    (folder / "data" / BUCKET).mkdir()
    port = free_port()
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


def _environment(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": _ACCESS,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


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
