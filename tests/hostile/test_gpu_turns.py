"""A GPU's node is there for a seat's container from the start, and opens when its turn comes."""

from __future__ import annotations

import asyncio
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

from kybernate.adapters.container.cdi import CdiSpecs
from kybernate.adapters.devices import DeviceLists, DevicePrograms, bpf, lists
from kybernate.errors import NotFoundError, RetryableError
from kybernate.ports import SeatSpec
from kybernate.types import Gpu, GpuUuid, PodUid

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.hostile, pytest.mark.always]

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

    def __init__(self, rules: list[str], group: Path | None = None) -> None:
        self.group = group or CGROUPS / "devices" / f"kyb-test-{uuid.uuid4().hex[:8]}"
        self.group.mkdir(exist_ok=True)
        first = [] if group else [("devices.deny", "a")]
        for file, rule in [*first, *(("devices.allow", one) for one in rules)]:
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
        if self.group.parent.name == "devices":
            self.group.rmdir()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """Where a GPU's nodes are, the second of them another GPU's."""
    if os.geteuid() != 0 or not (CGROUPS / "devices" / "devices.allow").exists():
        pytest.skip("needs root and the devices controller of cgroup version 1")
    for minor in (0, 1):
        os.mknod(tmp_path / f"nvidia{minor}", 0o20666, os.makedev(MAJOR, minor))
    nodes = [{"path": "/dev/nvidia0", "hostPath": str(tmp_path / "nvidia0")}]
    spec: dict[str, object] = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}
    devices = [{"name": GPU.uuid, "containerEdits": {"deviceNodes": nodes}}]
    os.mknod(tmp_path / "nvidiactl", 0o20666, os.makedev(MAJOR, 255))
    control = [{"path": "/dev/nvidiactl", "hostPath": str(tmp_path / "nvidiactl")}]
    spec["containerEdits"] = {"deviceNodes": control}
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "nvidia.yaml").write_text(yaml.safe_dump({**spec, "devices": devices}))
    yield tmp_path
    shutil.rmtree(tmp_path)


def specs_at(node: Path, door: DeviceLists | DevicePrograms) -> CdiSpecs:
    return CdiSpecs(node / "out", (node / "vendor",), node / "links", door)


def rules_of(node: Path) -> list[str]:
    """What a runtime makes of the seat's file."""
    (made,) = orjson.loads((node / "out" / "kyb-one.json").read_bytes())["devices"]
    return [
        f"c {one['major']}:{one['minor']} {one.get('permissions', 'rwm')}"
        for one in made["containerEdits"]["deviceNodes"]
    ]


def release(specs: CdiSpecs, pid: int, *, there: bool = True) -> None:
    asyncio.run(specs.release("one", pid, lambda: there, 5.0))


def test_before_its_turn_a_container_can_not_open_its_gpu(node: Path) -> None:
    specs = specs_at(node, DeviceLists())
    specs.write("one", SeatSpec((GPU,)))
    container = Container(rules_of(node))
    try:
        assert container.tries(node / "nvidia0") == errno.EPERM
        with pytest.raises(NotFoundError):
            release(specs, container.process.pid, there=False)
        assert container.tries(node / "nvidia0") == errno.EPERM, "its number was another's"
        release(specs, container.process.pid)
        assert container.tries(node / "nvidia0") == errno.ENXIO
        release(specs, container.process.pid)
        assert container.tries(node / "nvidia0") == errno.ENXIO
        assert container.tries(node / "nvidia1") == errno.EPERM, "it is another seat's"
    finally:
        container.close()


def test_what_a_container_lays_where_its_gpu_was_is_not_opened_to_it(node: Path) -> None:
    """With CAP_MKNOD it makes a node of the host's disk, and waits for its turn."""
    specs = specs_at(node, DeviceLists())
    specs.write("one", SeatSpec((GPU,)))
    container = Container(rules_of(node))
    try:
        (node / "nvidia0").unlink()
        os.mknod(node / "nvidia0", 0o20666, os.makedev(MAJOR + 1, 0))
        with pytest.raises(RetryableError, match="is not the device that its number says"):
            release(specs, container.process.pid)
        assert container.tries(node / "nvidia0") == errno.EPERM
    finally:
        container.close()


def test_a_container_that_is_gone_is_told(node: Path) -> None:
    specs = specs_at(node, DeviceLists())
    specs.write("one", SeatSpec((GPU,)))
    container = Container(rules_of(node))
    container.close()
    with pytest.raises(NotFoundError):
        release(specs, container.process.pid)


def shut(specs: CdiSpecs, pid: int) -> None:
    asyncio.run(specs.shut("one", pid, lambda: True, 5.0))


def test_a_container_whose_turn_is_put_off_can_not_open_its_gpu_again(node: Path) -> None:
    """An agent that was killed had let it to them, and did not say `go` any more."""
    specs = specs_at(node, DeviceLists())
    specs.write("one", SeatSpec((GPU,)))
    container = Container(rules_of(node))
    try:
        for _ in range(2):
            release(specs, container.process.pid)
            assert container.tries(node / "nvidia0") == errno.ENXIO
            shut(specs, container.process.pid)
            shut(specs_at(node, DeviceLists()), container.process.pid)
            assert container.tries(node / "nvidia0") == errno.EPERM
            assert container.tries(node / "nvidiactl") == errno.EPERM
    finally:
        container.close()


def test_what_is_opened_in_part_is_shut_again(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_at(node, DeviceLists())
    specs.write("one", SeatSpec((GPU,)))
    container = Container(rules_of(node))
    add = lists._add

    def in_part(file: Path, devices: set[str]) -> None:
        add(file, sorted(devices)[:1])
        if file.name == "devices.allow":
            raise OSError(errno.EIO, "the second is not written")
        add(file, sorted(devices)[1:])

    monkeypatch.setattr(lists, "_add", in_part)
    try:
        with pytest.raises(OSError, match="is not written"):
            release(specs, container.process.pid)
        assert container.tries(node / "nvidia0") == errno.EPERM
        assert container.tries(node / "nvidiactl") == errno.EPERM
    finally:
        container.close()


@pytest.fixture
def pod() -> Iterator[tuple[str, Path]]:
    """A pod of version 2: its UID, and its container's cgroup."""
    root = next((one for one in (CGROUPS, CGROUPS / "unified") if _is_version2(one)), None)
    if os.geteuid() != 0 or root is None:
        pytest.skip("needs root and a mount of cgroup version 2")
    uid = str(uuid.uuid4())
    top = root / f"kubepods-test-{uuid.uuid4().hex[:8]}"
    group = top / f"pod{uid}" / "container"
    group.mkdir(parents=True)
    yield uid, group
    for one in (group, group.parent, top):
        one.rmdir()


def _is_version2(mount: Path) -> bool:
    return (mount / "cgroup.procs").exists() and not (mount / "release_agent").exists()


def test_with_version_2_a_program_of_ours_keeps_the_pod_from_it(
    node: Path, pod: tuple[str, Path]
) -> None:
    uid, group = pod
    root = group.parents[2]
    specs = specs_at(node, DevicePrograms(root))
    specs.write("one", SeatSpec((GPU,), pod=PodUid(uid)))
    assert rules_of(node) == [f"c {MAJOR}:255 rwm", f"c {MAJOR}:0 rwm"], "the runtime allows them"
    container = Container([], group)
    try:
        assert container.tries(node / "nvidia0") == errno.EPERM
        assert container.tries(node / "nvidiactl") == errno.EPERM
        assert container.tries(node / "nvidia1") == errno.ENXIO, "only the seat's own are shut"
        assert container.tries(Path("/dev/null")) == 0
        specs.write("one", SeatSpec((GPU,), pod=PodUid(uid)))
        release(specs, container.process.pid)
        assert container.tries(node / "nvidia0") == errno.ENXIO
        assert container.tries(node / "nvidiactl") == errno.ENXIO
        release(specs, container.process.pid)
        specs.write("one", SeatSpec((GPU,)))
        assert container.tries(node / "nvidia0") == errno.ENXIO, "it runs: it is not shut out again"
    finally:
        container.close()


def test_with_version_2_it_is_shut_again_and_what_was_let_to_it_is_undone(
    node: Path, pod: tuple[str, Path]
) -> None:
    uid, group = pod
    root = group.parents[2]
    door, other = DevicePrograms(root), str(uuid.uuid4())
    specs = specs_at(node, door)
    specs.write("one", SeatSpec((GPU,), pod=PodUid(uid)))
    container = Container([], group)
    neighbour = root / group.parents[1].name / f"pod{other}"
    neighbour.mkdir()
    beside = Container([], neighbour)
    try:
        release(specs, container.process.pid)
        assert container.tries(node / "nvidia0") == errno.ENXIO
        for _ in range(3):
            shut(specs_at(node, door), container.process.pid)
        assert container.tries(node / "nvidia0") == errno.EPERM, "its turn was put off"
        assert container.tries(node / "nvidiactl") == errno.EPERM
        assert beside.tries(node / "nvidia0") == errno.ENXIO, "only the seat's own pod is kept out"
        devices = [(MAJOR, 0), (MAJOR, 255)]
        undo = door.open(container.process.pid, devices, lambda: True)
        assert container.tries(node / "nvidia0") == errno.ENXIO
        undo()
        assert container.tries(node / "nvidia0") == errno.EPERM, "it came too late"
        nothing = door.open(container.process.pid, devices, lambda: True)
        door.open(container.process.pid, devices, lambda: True)()
        assert container.tries(node / "nvidia0") == errno.ENXIO, "it had opened nothing"
        nothing()
        assert container.tries(node / "nvidia0") == errno.EPERM
        release(specs, container.process.pid)
        assert container.tries(node / "nvidia0") == errno.ENXIO
    finally:
        beside.close()
        container.close()
        neighbour.rmdir()


def test_a_pod_without_a_cgroup_of_version_2_is_let_in_rather_than_lost(
    node: Path, pod: tuple[str, Path]
) -> None:
    specs = specs_at(node, DevicePrograms(pod[1].parents[2]))
    why = specs.write("one", SeatSpec((GPU,), pod=PodUid(str(uuid.uuid4()))))
    assert "has no cgroup" in why
    assert specs.write("one", SeatSpec((GPU,), pod=PodUid(pod[0]))) == ""


def test_a_kernel_that_takes_no_program_lets_the_pod_in_and_says_so(
    node: Path, pod: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(bpf, "attach", refused)
    specs = specs_at(node, DevicePrograms(pod[1].parents[2]))
    why = specs.write("one", SeatSpec((GPU,), pod=PodUid(pod[0])))
    assert "the kernel takes no program" in why
    container = Container([], pod[1])
    try:
        assert container.tries(node / "nvidia0") == errno.ENXIO
    finally:
        container.close()


def test_without_a_controller_of_devices_nothing_is_shut(node: Path) -> None:
    """A container without its GPUs for ever would be worse."""
    specs = specs_at(node, DeviceLists(node))
    assert "no device cgroups" in specs.write("one", SeatSpec((GPU,), pod=PodUid("5e1f")))
    assert rules_of(node) == [f"c {MAJOR}:255 rwm", f"c {MAJOR}:0 rwm"]
    release(specs, os.getpid())
