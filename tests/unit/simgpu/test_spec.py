"""Descriptions: what is accepted, what the errors name."""

from __future__ import annotations

import copy
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kybernate.core.artifacts.privileges import is_gpu_runtimes
from kybernate.errors import ConfigError, RetryableError
from kybernate.local.simgpu import layout
from kybernate.local.simgpu.folder import compile_node
from kybernate.local.simgpu.spec import size
from tests.simgpu import install, load, make_device_nodes, parse, write_vendor_cdi

from .conftest import DESCRIPTION, GIB, REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


def with_field(path: str, value: object) -> dict[str, Any]:
    """DESCRIPTION with one field, named like `gpus.0.memory`, replaced."""
    data: Any = copy.deepcopy(DESCRIPTION)
    at = data
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in parents:
        at = at[key]
    at[last] = value
    return data  # type: ignore[no-any-return]


def test_reads_a_file_and_takes_the_nodes_name(tmp_path: Path) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text(yaml.safe_dump(DESCRIPTION))
    spec = load(path, name="n2", zero_cost=True)
    assert (spec.name, spec.zero_cost, len(spec.gpus)) == ("n2", True, 4)
    assert spec.gpus[3].memory == 16 * GIB
    assert spec.gpus[3].numa == 1


def test_the_example_is_valid() -> None:
    spec = load(REPOSITORY / "tests" / "simgpu" / "four-h100.yaml", name="n1")
    assert [gpu.memory for gpu in spec.gpus] == [80 * GIB] * 4
    assert spec.links[2] == ("SYS", "SYS", "X", "NV18")


def test_uuids_follow_from_the_nodes_name() -> None:
    first, again, other = (parse(DESCRIPTION, name=name) for name in ("n1", "n1", "n2"))
    assert first == again
    uuids = {gpu.uuid for spec in (first, other) for gpu in spec.gpus}
    assert len(uuids) == 8
    assert all(uuid.startswith("GPU-") and len(uuid) == 40 for uuid in uuids)


def test_links_are_symmetric_and_have_defaults() -> None:
    links = parse(DESCRIPTION).links
    assert links[0] == ("X", "NV4", "SYS", "SYS")
    assert links[3] == ("SYS", "SYS", "PIX", "X")


def test_links_can_be_a_matrix() -> None:
    rows = [["X" if a == b else "NV2" for b in range(4)] for a in range(4)]
    assert parse(with_field("links", rows)).links == tuple(map(tuple, rows))


@pytest.mark.parametrize(
    ("text", "expected"),
    [(5, 5), ("80GiB", 80 << 30), ("512Mi", 512 << 20), ("2GB", 2 * 10**9), ("3 K", 3000)],
)
def test_sizes(text: object, expected: int) -> None:
    assert size("memory", text) == expected


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("scale", 0, "scale"),
        ("gpus", [], "gpus"),
        ("gpus.0.memory", "lots", "gpus[0].memory"),
        ("gpus.1.product", "", "gpus[1].product"),
        ("gpus.1.count", 17, "gpus[1].count"),
        ("gpus.1.colour", "red", "gpus[1].colour"),
        ("links.0.kind", "NV99", "links[0].kind"),
        ("links.0.a", 9, "links[0].a"),
        ("links", [["X"]], "links[0]"),
        ("links", "none", "links"),
        ("major", 195, "major"),
        ("cuda_version", "new", "cuda_version"),
        ("restore_oom", "maybe", "restore_oom"),
        ("zero_cost", 1, "zero_cost"),
        ("driver", "580", "description.driver"),
    ],
)
def test_errors_name_the_field(path: str, value: object, field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(with_field(path, value))
    assert raised.value.field == field


def test_c_and_python_agree_on_the_layout(library: Path) -> None:
    output = subprocess.run(
        [library / "simgpu", "layout"], check=True, capture_output=True, text=True
    ).stdout
    told = dict(line.split() for line in output.splitlines())
    assert told == {
        "sg_gpu": str(layout.GPU.size),
        "sg_node": str(layout.NODE_SIZE),
        "sg_slot": str(layout.SLOT.size),
        "sg_state": str(layout.STATE_SIZE),
        "sg_fault": str(layout.FAULT.size),
        "sg_xid": str(layout.XID.size),
        "sg_faults": str(layout.FAULTS_SIZE),
        "sg_node.gpu": str(layout.NODE_HEAD.size),
        "sg_state.slot": str(layout.STATE_HEAD.size),
        "sg_faults.lost": str(layout.LOST_OFFSET),
        "sg_faults.foreign": str(layout.FOREIGN_OFFSET),
        "sg_faults.xid_seq": str(layout.XID_SEQ_OFFSET),
        "sg_faults.xid": str(layout.XID_OFFSET),
        "sg_faults.fault": str(layout.FAULT_OFFSET),
        "sg_faults.error": str(layout.ERROR_OFFSET),
        "sg_faults.hang": str(layout.HANG_OFFSET),
        "sg_faults.recovery": str(layout.RECOVERY_OFFSET),
        "sg_faults.remap_failed": str(layout.REMAP_FAILED_OFFSET),
        "sg_faults.mig": str(layout.MIG_OFFSET),
        "sg_faults.mps": str(layout.MPS_OFFSET),
        "sg_faults.unloaded": str(layout.UNLOADED_OFFSET),
        "sg_faults.loads": str(layout.LOADS_OFFSET),
    }
    assert len(compile_node(parse(DESCRIPTION))) == layout.NODE_SIZE


def test_cdi_lists_gpus_by_index_uuid_and_all(tmp_path: Path) -> None:
    spec = parse(DESCRIPTION)
    document = yaml.safe_load(write_vendor_cdi(spec, tmp_path).read_text())
    assert document["kind"] == "nvidia.com/gpu"
    nodes = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }
    assert nodes["2"] == nodes[spec.gpus[2].uuid] == ["/dev/nvidia2"]
    assert nodes["all"] == [f"/dev/nvidia{index}" for index in range(4)]
    assert len(nodes) == 9
    common = document["containerEdits"]
    mounts = {mount["containerPath"]: mount for mount in common["mounts"]}
    library_mount = mounts["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
    assert library_mount["hostPath"] == "/run/simgpu/lib/libcuda.so.1"
    assert "ro" in library_mount["options"]
    assert "rw" in mounts["/run/simgpu"]["options"]
    assert "hooks" not in common
    (hook_mount,) = (path for path in mounts if is_gpu_runtimes(path))
    again = yaml.safe_load(write_vendor_cdi(spec, tmp_path).read_text())["containerEdits"]
    assert hook_mount not in {mount["containerPath"] for mount in again["mounts"]}
    assert {"path": "/dev/nvidiactl"} in common["deviceNodes"]


def test_a_full_file_system_is_told_as_such(tmp_path: Path, library: Path) -> None:
    spec = parse(with_field("gpus.0.memory", 1 << 60) | {"scale": 1})
    with pytest.raises(RetryableError, match="larger file system"):
        install(spec, tmp_path / "node", library)


def test_device_nodes_can_be_made_twice(tmp_path: Path) -> None:
    spec = parse(DESCRIPTION)
    try:
        make_device_nodes(spec, tmp_path)
    except PermissionError:
        pytest.skip("needs the right to make device nodes")
    make_device_nodes(spec, tmp_path)
    assert (tmp_path / "nvidia3").is_char_device()
    assert (tmp_path / "nvidia-uvm").stat().st_mode & 0o777 == 0o666
