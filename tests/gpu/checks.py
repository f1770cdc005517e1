"""What must hold on a real driver.

Each check raises AssertionError, or returns what it measured.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.driver import Parker, parker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
BYTES = int(os.environ.get("KYB_TEST_GPU_BYTES", str(2 << 30)))
"""How much GPU memory the processes of these tests allocate."""

ROUNDS = 3
START_LIMIT = 300.0

TORCH = """
import sys, torch
torch.manual_seed(1)
weights = torch.randn(2048, 2048, device="cuda")
held = torch.empty(int(sys.argv[1]) // 4, device="cuda").fill_(1.0)
print("ready", flush=True)
for count, _ in enumerate(sys.stdin, 1):
    held[0] += 1
    print(count, float((weights @ weights).sum().cpu()), float(held[0].cpu()), flush=True)
"""


class SkippedError(Exception):
    """A check can't run here; the message says why."""


def require_gpu() -> str:
    """The first GPU's UUID. Raises SkippedError when there is none that these tests can use."""
    missing = [name for name in ("pynvml", "cuda.bindings") if not _is_there(name)]
    if missing:
        raise SkippedError(f"{sys.executable} has no {' and no '.join(missing)}")
    import pynvml  # noqa: PLC0415 - may be missing

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return str(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError as error:
        raise SkippedError(f"there is no usable NVIDIA GPU: {error}") from error


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def has_torch() -> bool:
    """Whether this Python has PyTorch."""
    return _is_there("torch")


def used_bytes(uuid: str) -> int:
    """GPU memory in use by all processes."""
    import pynvml  # noqa: PLC0415 - may be missing

    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


class Toy:
    """A running toy model server on one GPU."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.pid = process.pid
        self._port = port

    def count(self) -> int:
        """One request; its device memory must be intact. Returns the counter."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_LIMIT)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", json.dumps({"max_tokens": 1}))
            state: dict[str, Any] = json.loads(connection.getresponse().read())["kyb"]
        assert state["checksum"] == state["expected"], f"device memory has changed: {state}"
        assert state["device"] == [state["counter"]], f"the counter was lost: {state}"
        return int(state["counter"])


@contextlib.contextmanager
def process(uuid: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that sees one GPU; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


@contextlib.contextmanager
def toy(uuid: str, seed: int) -> Iterator[Toy]:
    """A toy model server that has filled its memory."""
    options = ("--host=127.0.0.1", "--port=0", f"--bytes={BYTES}", f"--seed={seed}")
    with process(uuid, "-m", "tests.workloads.toy_server", *options) as running:
        assert running.stdout is not None
        told = running.stdout.readline()
        assert told, "the toy model server did not start; it said why above"
        yield Toy(running, json.loads(told)["port"])


def parked(driver: Parker, uuid: str, pid: int, amount: int = BYTES) -> float:
    """Park a process; its memory must be free again. Returns the seconds it took."""
    before = used_bytes(uuid)
    begin = time.monotonic()
    driver.park(pid)
    took = time.monotonic() - begin
    freed = before - used_bytes(uuid)
    assert freed >= amount, f"parking freed {freed} bytes of the {amount} that the process holds"
    return took


def woken(driver: Parker, pid: int) -> float:
    """Wake a process. Returns the seconds it took."""
    begin = time.monotonic()
    driver.wake(pid)
    return time.monotonic() - begin


def toy_model(uuid: str) -> str:
    """A toy model keeps its counter and its memory over parking."""
    with parker() as driver, toy(uuid, seed=1) as model:
        parks, wakes = [], []
        for expected in range(1, ROUNDS + 1):
            assert model.count() == expected
            parks.append(parked(driver, uuid, model.pid))
            wakes.append(woken(driver, model.pid))
        assert model.count() == ROUNDS + 1
        return _figures(driver, parks, wakes)


def two_models_alternate(uuid: str) -> str:
    """Two models take turns on one GPU, each with its own state."""
    with parker() as driver, toy(uuid, seed=1) as first:
        assert first.count() == 1
        parks, wakes = [parked(driver, uuid, first.pid)], []
        with toy(uuid, seed=2) as second:
            for expected in range(1, ROUNDS + 1):
                assert second.count() == expected
                parks.append(parked(driver, uuid, second.pid))
                wakes.append(woken(driver, first.pid))
                assert first.count() == expected + 1
                parks.append(parked(driver, uuid, first.pid))
                wakes.append(woken(driver, second.pid))
        return _figures(driver, parks, wakes)


def pytorch(uuid: str) -> str:
    """A PyTorch process computes the same before and after."""
    if not has_torch():
        raise SkippedError(f"{sys.executable} has no PyTorch")
    with parker() as driver, process(uuid, "-c", TORCH, str(BYTES)) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n", "the PyTorch process did not start"
        answers, parks, wakes = [], [], []
        for _ in range(ROUNDS):
            running.stdin.write("go\n")
            running.stdin.flush()
            answers.append(running.stdout.readline().split())
            parks.append(parked(driver, uuid, running.pid))
            wakes.append(woken(driver, running.pid))
    sums = {answer[1] for answer in answers}
    assert len(sums) == 1, f"the same product had different sums: {sums}"
    assert [float(answer[2]) for answer in answers] == [2.0 + step for step in range(ROUNDS)]
    return _figures(driver, parks, wakes)


BOXED = """
from tests.workloads.device import Memory
memory = Memory(int(sys.argv[2]), fill=min(int(sys.argv[2]), 256 << 20), seed=1)
def answer():
    counter, device, checksum = memory.count()
    return f"{counter} {checksum} {device == [counter]}"
serve(sys.argv[1], answer)
"""


def cuda_process_on_disk(uuid: str) -> str:
    """A CUDA process goes to the disk by the agent's own dumper, is ended, and comes back."""
    try:
        from tests.gpu.box import Box, MissingError, tools, workplace  # noqa: PLC0415 - ditto
    except ImportError as error:
        raise SkippedError(f"{sys.executable} lacks what the agent needs: {error}") from error
    try:
        criu = tools()
    except MissingError as error:
        raise SkippedError(str(error)) from error
    env = os.environ | {"CUDA_VISIBLE_DEVICES": uuid, "PYTHONPATH": str(REPOSITORY)}
    with parker() as driver, workplace() as disk:
        (disk / "box").mkdir()
        with Box(criu, disk / "box", BOXED, (str(BYTES),), env=env) as box:
            answers, steps = [box.ask()], []
            for _ in range(ROUNDS):
                took = {"park": parked(driver, uuid, box.pid), **box.dump()}
                took["restore"] = box.restore()
                took["wake"] = woken(driver, box.pid)
                steps.append(took)
                answers.append(box.ask())
            size = box.size()
    sums = {answer.split()[1:] == [answers[0].split()[1], "True"] for answer in answers}
    assert sums == {True}, f"device memory has changed: {answers}"
    counters = [int(answer.split()[0]) for answer in answers]
    assert counters == list(range(1, ROUNDS + 2)), f"the counter was lost: {counters}"
    last = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in steps[-1].items())
    return f"{last}; {size} bytes on the disk, by {driver.name}"


CHECKS: tuple[Callable[[str], str], ...] = (
    toy_model,
    two_models_alternate,
    cuda_process_on_disk,
    pytorch,
)


def _figures(driver: Parker, parks: list[float], wakes: list[float]) -> str:
    def median(values: list[float]) -> str:
        middle = sorted(values)[len(values) // 2]
        return f"{middle * 1000:.1f} ms ({BYTES / middle / 1e9:.1f} GB/s)"

    return f"park {median(parks)}, wake {median(wakes)}, {BYTES} bytes, by {driver.name}"
