"""A model's process on the disk: dumped and recreated by the agent's dumper, and started from that.

A *cold start* begins with an interpreter and ends with the first answer: imports, CUDA's
initialisation, weights from a file of the same disk. A *template start* begins with the image of a
model that has answered once: an empty container, CRIU's restore, the driver's restore, the first
answer. Neither finds its file in the page cache.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.gpu.box import Box, tools, workplace
from tests.gpu.held import path
from tests.gpu.machine import has_torch, used_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kybernate.adapters.criu import Tools
    from tests.gpu.driver import Parker

TORCH = """
import torch
layers = torch.load(sys.argv[3], mmap=True, weights_only=True)
layers = [layer.to("cuda") for layer in layers]
asked = torch.ones(1, layers[0].shape[0], device="cuda", dtype=torch.bfloat16)
def answer():
    found = asked
    for layer in layers:
        found = torch.nn.functional.normalize(found @ layer)
    return found.cpu().view(torch.int16).numpy().tobytes().hex()[:64]
serve(sys.argv[1], answer)
"""

WEIGHTS = """
import torch
torch.manual_seed(1)
width = 8192
count = max(1, int(sys.argv[2]) // (2 * width * width))
made = [torch.randn(width, width, dtype=torch.bfloat16) for _ in range(count)]
torch.save(made, sys.argv[3])
serve(sys.argv[1], lambda: "made")
"""

TOY = """
import zlib
from tests.workloads.device import Memory
weights = open(sys.argv[3], "rb").read()
memory = Memory(int(sys.argv[2]), fill=min(int(sys.argv[2]), 256 << 20), seed=zlib.crc32(weights))
def answer():
    return str(memory.count()[2])
serve(sys.argv[1], answer)
"""


@dataclass
class Disk:
    """Seconds of each round, and bytes of the image."""

    dump: list[float] = field(default_factory=list)
    sync: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    template: list[float] = field(default_factory=list)
    size: int = 0

    def figures(self) -> dict[str, tuple[float, str]]:
        """Medians by name, with their units; not of what has had no round."""
        seconds = {"dump": self.dump, "sync": self.sync, "restore": self.restore}
        seconds |= {"cold_start": self.cold, "template_start": self.template}
        middle = {name: statistics.median(all_) for name, all_ in seconds.items() if all_}
        found = {f"{name}_s": (value, "s") for name, value in middle.items()}
        found["bytes"] = (float(self.size), "bytes")
        if "restore" in middle:
            whole = middle["dump"] + middle["sync"]
            found["dump_gb_s"] = (self.size / whole / 1e9, "GB/s")
            found["restore_gb_s"] = (self.size / middle["restore"] / 1e9, "GB/s")
        if "template_start" in middle:
            ratio = middle["template_start"] / middle["cold_start"]
            found["template_ratio_cold"] = (ratio, "ratio")
        return found


class Model:
    """The model's program, its weights, and where its containers are made."""

    def __init__(self, criu: Tools, disk: Path, uuid: str, amount: int, *, toy: bool) -> None:
        self._criu, self._disk = criu, disk
        self._weights = disk / "weights"
        self._code = TOY if toy or not has_torch() else TORCH
        self._arguments = (str(amount), str(self._weights))
        self._env = os.environ | {"CUDA_VISIBLE_DEVICES": uuid, "PYTHONPATH": path()}
        self._number = 0
        if self._code is TOY:
            self._weights.write_bytes(os.urandom(min(amount, 256 << 20)))
        else:
            with self.box(WEIGHTS) as box:
                box.ask()

    def box(self, code: str = "", parked: int | None = None) -> Box:
        """A new container: started, or waiting for the tree of this number."""
        self._number += 1
        folder = self._disk / f"box-{self._number}"
        folder.mkdir()
        more: Mapping[str, object] = {"env": self._env, "parked": parked}
        return Box(self._criu, folder, code or self._code, self._arguments, **more)

    def forget_cache(self) -> None:
        """Weights and images have to be read from the disk."""
        for found in self._disk.rglob("*"):
            if found.is_file() and not found.is_symlink():
                file = os.open(found, os.O_RDONLY)
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)


def measure(
    driver: Parker,
    uuid: str,
    amount: int,
    another: Callable[[str, int], bool],
    disk: Path | None,
    *,
    toy: bool,
) -> Disk:
    """Dumps and restores as long as `another("dump", number)` says so, then starts of both kinds in
    turns as long as `another("start", number)` does. Raises MissingError where something isn't
    here, AssertionError if what came back answers otherwise than before."""
    found = Disk()
    with workplace(disk) as folder:
        model = Model(tools(), folder, uuid, amount, toy=toy)
        with model.box() as source:
            expected = source.ask()
            _park(driver, uuid, source.pid, amount)
            while another("dump", len(found.dump)):
                took = source.dump()
                found.dump.append(took["dump"])
                found.sync.append(took["sync"])
                model.forget_cache()
                found.restore.append(source.restore())
            driver.wake(source.pid)
            _see(source.ask(), expected)
            _park(driver, uuid, source.pid, amount)
            source.dump()
            found.size = source.size()
            while another("start", len(found.cold)):
                _starts(driver, model, source, found, expected)
    return found


def _park(driver: Parker, uuid: str, pid: int, amount: int) -> None:
    before = used_bytes(uuid)
    driver.park(pid)
    freed = before - used_bytes(uuid)
    assert freed >= amount, f"parking freed {freed} bytes of the {amount} that the process holds"


def _starts(driver: Parker, model: Model, source: Box, found: Disk, expected: str) -> None:
    model.forget_cache()
    began = time.monotonic()
    with model.box() as cold:
        answer = cold.ask()
        took = time.monotonic() - began
    _see(answer, expected)
    model.forget_cache()
    began = time.monotonic()
    with model.box(parked=source.tree_number()) as copy:
        copy.restore(source)
        driver.wake(copy.pid)
        answer = copy.ask()
        found.template.append(time.monotonic() - began)
    found.cold.append(took)
    _see(answer, expected)


def _see(answer: str, expected: str) -> None:
    assert answer == expected, f"it answered {answer} instead of {expected}"
