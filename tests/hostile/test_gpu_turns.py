"""A GPU's node is there for a seat's container from the start, and opens when its turn comes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
import yaml

from kybernate.adapters.cdi import CdiSpecs
from kybernate.adapters.devices import DeviceCgroups
from kybernate.errors import NotFoundError
from kybernate.ports import SeatSpec
from kybernate.types import Gpu, GpuUuid

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.hostile

CGROUPS = Path("/sys/fs/cgroup")
MAJOR = 60
"""For local use: no driver has it, so that an open that the cgroup lets through says ENXIO."""
GPU = Gpu(GpuUuid("GPU-0"), 0, "H100", 80 << 30, 0)
TRY = """
import os, sys
for line in sys.stdin:
    try:
        os.close(os.open(line.strip(), os.O_RDWR))
        print(0, flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Container:
    """A process in a device cgroup as runc makes one: all is denied but what the CDI file says."""

    def __init__(self, rules: list[str]) -> None:
        self.group = CGROUPS / "devices" / f"kyb-test-{uuid.uuid4().hex[:8]}"
        self.group.mkdir()
        for file, rule in [("devices.deny", "a"), *(("devices.allow", one) for one in rules)]:
            (self.group / file).write_text(rule)
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: (self.group / "cgroup.procs").write_text("0"),  # noqa: PLW1509
        )

    def tries(self, path: Path) -> int:
        """To open the device; the kernel's answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.group.rmdir()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """Where a GPU's nodes are, the second of them another GPU's."""
    if os.geteuid() != 0 or not (CGROUPS / "devices" / "devices.allow").exists():
        pytest.skip("needs root and the devices controller of cgroup version 1")
    for minor in (0, 1):
        os.mknod(tmp_path / f"nvidia{minor}", 0o20666, os.makedev(MAJOR, minor))
    nodes = [{"path": "/dev/nvidia0", "hostPath": str(tmp_path / "nvidia0")}]
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}
    devices = [{"name": GPU.uuid, "containerEdits": {"deviceNodes": nodes}}]
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "nvidia.yaml").write_text(yaml.safe_dump({**spec, "devices": devices}))
    yield tmp_path
    shutil.rmtree(tmp_path)


def specs_at(node: Path, door: DeviceCgroups | None) -> CdiSpecs:
    return CdiSpecs(node / "out", (node / "vendor",), node / "links", door)


def rules_of(node: Path) -> list[str]:
    """What a runtime makes of the seat's file."""
    (made,) = orjson.loads((node / "out" / "kyb-one.json").read_bytes())["devices"]
    return [
        f"c {one['major']}:{one['minor']} {one.get('permissions', 'rwm')}"
        for one in made["containerEdits"]["deviceNodes"]
    ]


def test_before_its_turn_a_container_can_not_open_its_gpu(node: Path) -> None:
    specs = specs_at(node, DeviceCgroups())
    specs.write("one", SeatSpec((GPU,)))
    container = Container(rules_of(node))
    try:
        assert container.tries(node / "nvidia0") == errno.EPERM
        specs.release("one", container.process.pid)
        assert container.tries(node / "nvidia0") == errno.ENXIO
        specs.release("one", container.process.pid)
        assert container.tries(node / "nvidia0") == errno.ENXIO
        assert container.tries(node / "nvidia1") == errno.EPERM, "it is another seat's"
    finally:
        container.close()


def test_what_a_container_lays_where_its_gpu_was_is_not_opened_to_it(node: Path) -> None:
    """With CAP_MKNOD it makes a node of the host's disk, and waits for its turn."""
    specs = specs_at(node, DeviceCgroups())
    specs.write("one", SeatSpec((GPU,)))
    container = Container(rules_of(node))
    try:
        (node / "nvidia0").unlink()
        os.mknod(node / "nvidia0", 0o20666, os.makedev(MAJOR + 1, 0))
        specs.release("one", container.process.pid)
        assert container.tries(node / "nvidia0") == errno.EPERM
    finally:
        container.close()


def test_a_container_that_is_gone_is_told(node: Path) -> None:
    specs = specs_at(node, DeviceCgroups())
    specs.write("one", SeatSpec((GPU,)))
    container = Container(rules_of(node))
    container.close()
    with pytest.raises(NotFoundError):
        specs.release("one", container.process.pid)


def test_where_nothing_can_be_opened_later_nothing_is_shut(node: Path) -> None:
    """Version 2 of cgroups: a container without its GPUs for ever would be worse."""
    specs = specs_at(node, DeviceCgroups(node))
    specs.write("one", SeatSpec((GPU,)))
    (made,) = orjson.loads((node / "out" / "kyb-one.json").read_bytes())["devices"]
    assert made["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0", "hostPath": str(node / "nvidia0")}
    ]
    specs.release("one", os.getpid())
