"""A bit that changes in a file of the node's: told, or nothing is different. All bits of small
files, of the others one of each byte."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress

import pytest

from deviceplugin.inventory import Inventory
from deviceplugin.state import Remembered, StateFile
from kybernate.adapters.container.cdi import CdiSpecs
from kybernate.adapters.criu import limits
from kybernate.adapters.files import sums
from kybernate.errors import ConfigError, RetryableError
from kybernate.ports import SeatSpec
from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link
from nodeagent.app.install import install_kyb_init

_SMALL = 3000


def flipped(path):
    """Once for each bit the file is changed; then it is as it was."""
    before = path.read_bytes()
    bits = range(8 * len(before))
    for bit in bits if len(bits) < _SMALL else bits[::9]:
        data = bytearray(before)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(bytes(data))
        yield bit
    path.write_bytes(before)


def test_the_plugins_inventory(tmp_path, caplog):
    gpus = tuple(Gpu(GpuUuid(f"GPU-{n}"), n, "H100", 80 << 30) for n in range(2))
    groups = (Group(GroupName("g"), "kyb.ai/gpu-2x-seat", tuple(one.uuid for one in gpus), 4),)
    links = {frozenset(str(one.uuid) for one in gpus): Link.NVLINK}
    known = Remembered(Inventory(gpus, links, groups, "580", "13.0", "best-fit", {}), "profiles: 1")
    StateFile(tmp_path).save(known)
    path = tmp_path / "inventory.json"
    assert StateFile(tmp_path).load() == known
    told = 0
    for bit in flipped(path):
        caplog.clear()
        found = StateFile(tmp_path).load()
        if found is None:
            told += 1
            assert "drain this node" in caplog.text, bit
            assert (tmp_path / "inventory.json.damaged").exists()
        else:
            assert found == known, bit
    assert told > 300


def test_the_plugins_inventory_of_the_release_before_is_read(tmp_path):
    known = Remembered(Inventory((), {}, (), "580", "13.0", "best-fit", {}), "")
    StateFile(tmp_path).save(known)
    path = tmp_path / "inventory.json"
    record = json.loads(path.read_bytes())
    del record[sums.MEMBER]
    path.write_text(json.dumps(record))
    assert StateFile(tmp_path).load() == known


def test_the_plugins_inventory_of_the_release_after_is_read(tmp_path):
    gpu = Gpu(GpuUuid("GPU-0"), 0, "H100", 80 << 30)
    group = Group(GroupName("g"), "kyb.ai/gpu-1x-seat", (gpu.uuid,), 4)
    known = Remembered(Inventory((gpu,), {}, (group,), "580", "13.0", "best-fit", {}), "")
    StateFile(tmp_path).save(known)
    path = tmp_path / "inventory.json"
    record = json.loads(path.read_bytes())
    del record[sums.MEMBER]
    for one in (record, *record["gpus"], *record["groups"]):
        one["new"] = "what only a newer plugin knows"
    path.write_text(json.dumps(sums.summed(record)))
    assert StateFile(tmp_path).load() == known


def test_limits_that_were_lifted(tmp_path, caplog):
    own = tmp_path / "pod" / "one"
    own.mkdir(parents=True)
    (tmp_path / "pod" / "cpu.max").write_text("max 100000")
    for group in (own, own.parent):
        (group / "memory.max").write_text("1000000")
        (group / "memory.high").write_text("max")
    (own / "cpu.max").write_text("20000 100000")
    work = tmp_path / "work"
    work.mkdir()
    limits.lift({"": own}, work)
    files = [path for path in (tmp_path / "pod").rglob("*") if path.is_file()]
    lifted = {path: path.read_text() for path in files}
    others = sorted(tmp_path.rglob("*"))
    told = 0
    for bit in flipped(work / limits.FILE):
        caplog.clear()
        for path, content in lifted.items():
            path.write_text(content)
        limits.put_back(work)
        if (own / "cpu.max").read_text() != "20000 100000":
            told += 1
            assert "restart the container" in caplog.text, bit
            assert (work / f"{limits.FILE}.damaged").exists()
        else:
            assert (own / "memory.max").read_text() == "1000000", bit
        (work / limits.FILE).unlink(missing_ok=True)
        (work / f"{limits.FILE}.damaged").unlink(missing_ok=True)
        assert set(tmp_path.rglob("*")) <= set(others)
    assert told > 300


def test_what_a_network_was_lent(tmp_path, caplog):
    """Loans are read by `sums.read` alone; `test_addresses.py` takes them back."""
    note = {"addresses": ["10.0.0.7/24"], "routes": [], "network": "net:[40]", "at": 7}
    path = tmp_path / "lent.json"
    path.write_text(json.dumps(sums.summed(note)))
    for bit in flipped(path):
        caplog.clear()
        found = sums.read(path, "delete the pod")
        if not found:
            assert "delete the pod" in caplog.text
        else:
            assert {name: found[name] for name in note} == note, bit


class Door:
    born_shut = False

    def __init__(self):
        self.opened = None

    def shut(self, uid, devices):
        pass

    def lets(self, init, devices):
        return False

    def open(self, init, devices, is_there):
        self.opened = set(devices)
        return lambda: None


@pytest.mark.real_time
async def test_a_seats_devices(tmp_path):
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    nodes = [{"path": "/dev/null"}, {"path": "/dev/full"}]
    device = {"name": "GPU-1", "containerEdits": {"deviceNodes": nodes}}
    (vendor / "nvidia.json").write_text(
        json.dumps({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [device]})
    )
    door = Door()
    specs = CdiSpecs(tmp_path / "cdi", [vendor], tmp_path / "ids", door)
    gpu = Gpu(GpuUuid("GPU-1"), 0, "H100", 80 << 30)
    specs.write("id", SeatSpec((gpu,), {"A": "b"}, {"/kyb": "/run/kyb"}))
    (path,) = (tmp_path / "cdi").iterdir()
    right = {
        (os.major(rdev), os.minor(rdev)) for rdev in (os.stat(n["path"]).st_rdev for n in nodes)
    }
    refused = 0
    for bit in flipped(path):
        door.opened = None
        problem = ""
        try:
            await specs.release("id", 1, lambda: True, 60)
        except RetryableError as error:
            problem = str(error)
            refused += 1
        assert (door.opened is None) == ("restart it" in problem), bit
        assert (door.opened or set()) <= right, bit
    assert refused > 50


def test_the_built_kyb_init(tmp_path, caplog):
    built = tmp_path / "kyb-init"
    built.write_bytes(b"\x7fELF and what follows")
    folder = tmp_path / "bin"
    file = install_kyb_init(built, folder)
    assert hashlib.sha256(file.read_bytes()).hexdigest() in file.name
    for bit in flipped(file):
        caplog.clear()
        with pytest.raises(ConfigError):
            install_kyb_init(None, folder)
        assert install_kyb_init(built, folder).read_bytes() == built.read_bytes(), bit
        assert "was changed where it lies" in caplog.text
    with suppress(ConfigError):
        assert install_kyb_init(None, folder) == file
