"""Local mode itself: `kybernate serve` with three models, each of which takes the GPU for itself.

Each request asks the model that was active longest ago, so that each takes a swap.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu import machine
from tests.gpu.held import REPOSITORY
from tests.gpu.machine import SkippedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.here import Answer, Here

NAMES = ("one", "two", "three")
_MOST = 16 << 30
_START_LIMIT = 180.0
_SWAP_LIMIT = 60.0
_END = 6.0
"""Seconds that the end takes."""


@dataclass
class Seen:
    """Seconds of answers, and what the models have answered."""

    first: list[float] = field(default_factory=list)
    swaps: list[float] = field(default_factory=list)
    active: list[float] = field(default_factory=list)
    texts: dict[str, set[str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def answers(here: Here) -> Iterator[Answer]:
    """Swaps until the time is over."""
    amount = machine.room(here.uuid, _MOST, 0.8, len(NAMES))
    torch = machine.has_torch()
    engine = "PyTorch, random weights" if torch else "toy models"
    why = "PyTorch" if torch else "the simulated driver" if machine.simulated() else "no PyTorch"
    yield "local.engine", engine, f"since there is {why}"
    yield "local.model_bytes", amount, f"{amount >> 20} MiB each, three of them, one GPU"
    before = machine.used_bytes(here.uuid)
    with tempfile.TemporaryDirectory(prefix="kyb-gpu-local-") as folder:
        with _box(Path(folder), amount, torch=torch) as port:
            seen = _swaps(here, port)
            residual = machine.used_bytes(here.uuid) - before - amount
        left = machine.used_bytes(here.uuid) - before
    yield from _figures(seen, amount)
    parked = residual / (len(NAMES) - 1) / (1 << 20)
    yield "local.residual_mib", parked, "used, less one model's bytes, by the parked models"
    yield "local.nothing_left", left < 64 << 20, f"{left >> 20} MiB are in use after its end"


def _figures(seen: Seen, amount: int) -> Iterator[Answer]:
    many = {name for name, texts in seen.texts.items() if len(texts) > 1}
    said = f"{len(seen.swaps)} swaps; other answers: {', '.join(many) or 'none'}"
    said = f"{said}; failed: {seen.failed[0] if seen.failed else 'none'}"
    yield "local.answers_equal", not many and not seen.failed, said
    yield "local.swaps", len(seen.swaps), "each request asks a parked model"
    yield "local.first_s", max(seen.first, default=None), "with its start"
    if not seen.swaps:
        return
    ordered = sorted(seen.swaps)
    middle, said = statistics.median(ordered), f"of {len(ordered)}"
    yield "local.swap_p50_s", middle, said
    yield "local.swap_p99_s", ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], said
    yield "local.active_p50_s", statistics.median(seen.active), said
    yield "local.swap_gb_s", 2 * amount / middle / 1e9, "a park and a wake of the model's bytes"


def _swaps(here: Here, port: int) -> Seen:
    seen = Seen()
    for name in NAMES:
        seen.first.append(_asked(seen, port, name, _START_LIMIT))
    another, number = here.another(here.until - _END, len(NAMES)), 0
    while not seen.failed and another(number):
        name = NAMES[number % len(NAMES)]
        seen.swaps.append(_asked(seen, port, name, _SWAP_LIMIT))
        seen.active.append(_asked(seen, port, name, _SWAP_LIMIT))
        number += 1
    return seen


def _asked(seen: Seen, port: int, name: str, limit: float) -> float:
    """Seconds of a request; what it answers is noted, and what fails."""
    began = time.monotonic()
    try:
        told = _ask(port, name, limit)
        seen.texts.setdefault(name, set()).add(told)
    except (OSError, ValueError, KeyError) as error:
        more = error.read().decode()[:300] if isinstance(error, urllib.error.HTTPError) else ""
        seen.failed.append(f"{name}: {error} {more}".strip())
    return time.monotonic() - began


def _ask(port: int, name: str, limit: float) -> str:
    """The answer's text; a toy's is what its memory holds, less what counts."""
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "hello"}]})
    url, kind = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body.encode(), kind)
    with urllib.request.urlopen(request, timeout=limit) as answer:  # noqa: S310 - our own
        told: dict[str, Any] = json.load(answer)
    if "kyb" in told:
        state = told["kyb"]
        if state["device"] != [state["counter"]]:
            raise ValueError(f"its counter was lost: {state}")
        return str(state["checksum"])
    return str(told["choices"][0]["message"]["content"])


@contextlib.contextmanager
def _box(folder: Path, amount: int, *, torch: bool) -> Iterator[int]:
    """It serves meanwhile; yields its port."""
    port, log = _free_port(), folder / "log"
    file = folder / "models.json"
    file.write_text(json.dumps(_file(port, amount, torch=torch)))
    home = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
    words = [sys.executable, "-m", "kybernate.cli", "serve", str(file)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, cwd=REPOSITORY, env=os.environ | home, stdout=output, stderr=output
        )
    try:
        _until_it_listens(port, process, log)
        yield port
        print(log.read_text()[-2000:], file=sys.stderr) if process.poll() is not None else None
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _file(port: int, amount: int, *, torch: bool) -> dict[str, Any]:
    """models.yaml, written as JSON: which is YAML, and needs no library."""
    module = "tests.gpu.programs.model_server" if torch else "tests.workloads.toy_server"
    models = {
        name: {
            "cmd": f"{sys.executable} -m {module} --port ${{PORT}} --bytes {amount} --seed {number}"
            + ("" if torch else f" --host 127.0.0.1 --model {name} --fill {min(amount, 64 << 20)}"),
            "gpus": [0],
        }
        for number, name in enumerate(NAMES)
    }
    limit, first = int(_START_LIMIT), _free_port() % 20000 + 10000
    listen = {"listen": f"127.0.0.1:{port}", "startPort": first, "healthCheckTimeout": limit}
    return {**listen, "tiers": {"ram": len(NAMES) * amount}, "models": models}


def _until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _SWAP_LIMIT
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    said = log.read_text().strip().splitlines()
    if process.poll() is not None:
        raise SkippedError(f"kybernate serve does not start: {said[-1] if said else 'no word'}")
    raise AssertionError(f"kybernate serve does not listen: {said[-1:]}")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
