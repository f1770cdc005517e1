"""Simulated nodes in a folder, and processes that use their GPUs."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.simgpu import Faults, NodeSpec, Record, build, install, make_device_nodes, parse
from tests.simgpu.log import read_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).resolve().parents[3]
GIB = 1 << 30
MIB = 1 << 20
DEADLINE = 20.0

DESCRIPTION: dict[str, Any] = {
    "name": "n1",
    "scale": 1024,
    "gpus": [
        {"product": "NVIDIA H100 80GB HBM3", "memory": "16GiB", "numa": 0, "count": 2},
        {"product": "NVIDIA H100 80GB HBM3", "memory": "16GiB", "numa": 1, "count": 2},
    ],
    "links": [
        {"a": 0, "b": 1, "kind": "NV4"},
        {"a": 2, "b": 3, "kind": "PIX"},
        {"a": 0, "b": 2, "kind": "SYS"},
    ],
}


class DriverRefusedError(Exception):
    """A call in a worker failed; the message is the driver's name of the error."""


class Worker:
    """A process that uses the driver; see worker.py. `pid` is its PID as the test sees it."""

    def __init__(self, environment: dict[str, str], prefix: tuple[str, ...] = ()) -> None:
        script = Path(__file__).with_name("worker.py")
        self._process = subprocess.Popen(
            [*prefix, sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.inner_pid: int = self.read()
        self.pid = self._process.pid
        if prefix:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            self.pid = int(children[0])

    def ask(self, *request: Any) -> Any:
        """Send a request and return its value. Raises DriverRefusedError."""
        self.send(*request)
        value = self.read()
        if isinstance(value, dict) and "error" in value:
            raise DriverRefusedError(value["error"])
        return value

    def refused(self, *request: Any) -> str:
        """The error that a request must bring."""
        with pytest.raises(DriverRefusedError) as raised:
            self.ask(*request)
        return str(raised.value)

    def send(self, *request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def read(self, deadline: float = DEADLINE) -> Any:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], deadline)
        assert ready, "the worker does not answer"
        line = self._process.stdout.readline()
        assert line, f"the worker died with status {self._process.wait()}"
        return json.loads(line)

    def quiet(self, seconds: float) -> bool:
        """Whether no answer came for so long."""
        return not select.select([self._process.stdout], [], [], seconds)[0]

    def alloc(self, amount: int) -> int:
        return int(self.ask("cuMemAlloc", amount))

    def end(self) -> int:
        """Let it exit in order; returns its status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        status = self._process.wait(DEADLINE)
        self._process.stdout.close()
        return status

    def kill(self) -> int:
        """Kill it, also from inside a namespace; returns its status."""
        if self._process.poll() is None and self.pid != self._process.pid:
            os.kill(self.pid, 9)
        self._process.kill()
        status = self._process.wait(DEADLINE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        return status

    def wait(self) -> int:
        return self._process.wait(DEADLINE)

    def device_files(self, root: Path) -> list[str]:
        """What it has mapped or open of a node folder, the library itself excepted."""
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        found = [line for line in maps if f"{root}/" in line and f"{root}/lib/" not in line]
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            target = str(link.readlink())
            if target.startswith((f"{root}/", "/dev/nvidia")):
                found.append(target)
        return found


class Node:
    """A node folder and the workers on it."""

    def __init__(self, root: Path, spec: NodeSpec, library: Path) -> None:
        self.root = root
        self.spec = spec
        self.faults = Faults(root)
        self._workers: list[Worker] = []
        install(spec, root, library)
        make_device_nodes(spec, root / "dev")

    def environment(self, gpus: list[int] | None = None) -> dict[str, str]:
        """The environment of a process that was given these GPUs (None: all)."""
        folder = self.root / "dev"
        if gpus is not None:
            folder = self.root / f"dev-{'-'.join(map(str, gpus))}"
            make_device_nodes(self.spec, folder)
            for gpu in self.spec.gpus:
                if gpu.index not in gpus:
                    (folder / f"nvidia{gpu.minor}").unlink()
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != "CUDA_VISIBLE_DEVICES" and not name.startswith("KYB_")
        }
        return kept | {
            "SIMGPU_DIR": str(self.root),
            "SIMGPU_DEV": f"{folder}/nvidia",
            "LD_LIBRARY_PATH": str(self.root / "lib"),
            "PYTHONPATH": str(REPOSITORY),
        }

    def bare(
        self,
        gpus: list[int] | None = None,
        prefix: tuple[str, ...] = (),
        **environment: str,
    ) -> Worker:
        """A worker that has called nothing yet."""
        worker = Worker(self.environment(gpus) | environment, prefix)
        self._workers.append(worker)
        return worker

    def worker(self, gpu: int | None = 0, **options: Any) -> Worker:
        """A worker with a context on its GPU of this number (None: initialised, no context)."""
        worker = self.bare(**options)
        worker.ask("cuInit", 0)
        if gpu is not None:
            worker.ask("context", gpu)
        return worker

    def watcher(self) -> Worker:
        """A worker with NVML and CUDA but no context, as an agent is."""
        worker = self.worker(None)
        worker.ask("nvml", "nvmlInit")
        return worker

    def log(self) -> list[Record]:
        return read_log(self.root)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()


@pytest.fixture(scope="session")
def library() -> Path:
    return build(REPOSITORY / "build" / "simgpu")


@pytest.fixture
def make_node(library: Path) -> Iterator[Callable[..., Node]]:
    """Makes nodes; keywords replace fields of DESCRIPTION."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make device nodes")
    folder = Path(tempfile.mkdtemp(prefix="simgpu-", dir="/dev/shm"))
    nodes: list[Node] = []

    def make(**fields: Any) -> Node:
        spec = parse(DESCRIPTION | fields)
        nodes.append(Node(folder / str(len(nodes)), spec, library))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()
    shutil.rmtree(folder)


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()
