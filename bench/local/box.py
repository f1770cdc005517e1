"""`kybernate serve` of toy servers on simulated GPUs, and how it is asked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml

from bench.processes import REPOSITORY, free_port
from kybernate.local.folders import native
from kybernate.local.simgpu.folder import install
from kybernate.local.simgpu.spec import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S = 120.0


class Side(Protocol):
    """Who answers for the models."""

    def ask(self, model: str) -> dict[str, Any]:
        """What the model says of itself."""


class Door:
    """Asks one server by HTTP."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, model: str) -> dict[str, Any]:
        """See `Side.ask`."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
        kind = {"Content-Type": "application/json"}
        url = f"{self.url}/v1/chat/completions"
        request = urllib.request.Request(url, body.encode(), kind)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:  # noqa: S310
                told: dict[str, Any] = json.load(answer)["kyb"]
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip()
            raise SystemExit(f"{self.url} answers for {model} by {error.code}: {said}") from None
        if told["checksum"] != told["expected"]:
            raise SystemExit(f"{model} answers with other memory than it was filled with: {told}")
        return told

    def wait(self) -> None:
        """Until it listens. Raises SystemExit if it never does."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health"):  # noqa: S310
                return
            time.sleep(0.01)
        raise SystemExit(f"{self.url} does not answer")


def command(name: str, mib: int) -> list[str]:
    """A toy server's words."""
    toy = (sys.executable, "-m", "tests.workloads.toy_server", "--host", "127.0.0.1")
    return [*toy, "--port", "${PORT}", "--model", name, "--bytes", f"{mib}MiB"]


def environment(stack: ExitStack, folder: Path, mib: int, count: int = 1) -> dict[str, str]:
    """The variables with which processes see GPUs of their own side."""
    gpus = Path(tempfile.mkdtemp(prefix="kyb-bench-gpus-", dir="/dev/shm"))
    stack.callback(shutil.rmtree, gpus, ignore_errors=True)
    row = {"product": "toy", "memory": f"{mib + mib // 4}MiB", "count": count}
    libraries = native("simgpu")
    install(parse({"name": "box", "gpus": [row], "open": True}), gpus, libraries)
    homes = dict.fromkeys(("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"), str(folder))
    return {**os.environ, **homes, "SIMGPU_DIR": str(gpus), "LD_LIBRARY_PATH": str(libraries)}


@contextmanager
def box(
    folder: Path, commands: dict[str, list[str]], mib: int, given: dict[str, str], **keys: Any
) -> Iterator[Door]:
    """`kybernate serve` of these commands. `keys`: what else each model's entry says."""
    port, file = free_port(), folder / "models.yaml"
    models = {
        name: {"cmd": " ".join(words), "vram": f"{mib}MiB", "gpus": 1, **keys}
        for name, words in commands.items()
    }
    ports = {"listen": f"127.0.0.1:{port}", "startPort": free_port(16)}
    file.write_text(yaml.safe_dump({**ports, "models": models}))
    words = [sys.executable, "-m", "kybernate.cli", "serve", str(file)]
    with serving(words, folder / "box.log", given, port) as door:
        yield door


@contextmanager
def serving(words: list[str], log: Path, environment: dict[str, str], port: int) -> Iterator[Door]:
    """A server that listens on this port once it is given."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, cwd=REPOSITORY, env=environment, stdout=output, stderr=output
        )
    door = Door(port)
    try:
        door.wait()
        yield door
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
