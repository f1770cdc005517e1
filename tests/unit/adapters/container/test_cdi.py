"""Composing a seat's CDI specification, and the files it lives in."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kybernate.adapters.container.cdi import CdiSpecs, compose, merge
from kybernate.errors import DeadlineError, NotFoundError, RefusedError, RetryableError
from kybernate.ports import SeatSpec
from kybernate.types import Gpu, GpuUuid

A, B, C = (
    Gpu(GpuUuid(f"GPU-{name * 8}"), index, "H100", 80 << 30) for index, name in enumerate("abc")
)
HOOK = {
    "hookName": "createContainer",
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "update-ldcache"],
}
VENDOR = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": A.uuid, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {
            "name": "1",
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/nvidia1"}, {"path": "/dev/dri/card1"}],
                "hooks": [HOOK],
            },
        },
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia9"}]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        "mounts": [{"hostPath": "/host/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1"}],
        "hooks": [HOOK],
    },
}
SEAT = SeatSpec(
    gpus=(A, B),
    env={"NVIDIA_VISIBLE_DEVICES": f"{A.uuid},{B.uuid}", "KYB_GPU_GROUP": "G01"},
    mounts={"/run/kyb": "/run/kyb/seats/u1", "/kyb/kyb-init": "/var/lib/kyb/bin/kyb-init-1"},
)


def edits(spec):
    (device,) = spec["devices"]
    return device["containerEdits"]


def test_a_seat_gets_the_common_edits_and_those_of_its_gpus_only():
    composed = edits(compose([VENDOR], "G01-seat-1", SEAT))
    assert [node["path"] for node in composed["deviceNodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/dri/card1",
    ]


def test_the_spec_is_one_device_of_our_kind_named_by_the_token():
    spec = compose([VENDOR], "G23-seat-2", SEAT)
    assert spec["kind"] == "kyb.ai/seat"
    assert spec["cdiVersion"] == "0.6.0"
    assert [device["name"] for device in spec["devices"]] == ["G23-seat-2"]
    assert set(spec) == {"kind", "cdiVersion", "devices"}


def test_the_seats_environment_replaces_the_vendors():
    assert edits(compose([VENDOR], "x", SEAT))["env"] == [
        f"NVIDIA_VISIBLE_DEVICES={A.uuid},{B.uuid}",
        "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib",
        "KYB_GPU_GROUP=G01",
    ]


def test_hooks_are_kept_as_they_are_and_once():
    assert edits(compose([VENDOR], "x", SEAT))["hooks"] == [HOOK]


def test_mounts_are_read_only_and_added_to_the_vendors():
    mounts = edits(compose([VENDOR], "x", SEAT))["mounts"]
    assert [mount["containerPath"] for mount in mounts] == [
        "/usr/lib/libcuda.so.1",
        "/run/kyb",
        "/kyb/kyb-init",
    ]
    assert all("ro" in mount["options"] for mount in mounts[1:])


def test_a_gpu_that_the_vendor_does_not_know_is_refused_by_name():
    with pytest.raises(RefusedError, match=rf"GPU 2 \({C.uuid}\).*nvidia-ctk cdi generate"):
        compose([VENDOR], "x", SeatSpec(gpus=(A, C)))


def test_a_uuid_counts_before_an_index():
    vendor = {
        **VENDOR,
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/stale"}]}},
            *VENDOR["devices"],
        ],
    }
    paths = [
        node["path"] for node in edits(compose([vendor], "x", SeatSpec(gpus=(A,))))["deviceNodes"]
    ]
    assert "/dev/nvidia0" in paths
    assert "/dev/stale" not in paths


def test_the_vendors_objects_stay_untouched():
    before = json.dumps(VENDOR)
    compose([VENDOR], "x", SEAT)
    assert json.dumps(VENDOR) == before


@given(st.lists(st.lists(st.sampled_from(["A=1", "A=2", "B=1", "C=", "D"]))))
def test_merging_leaves_one_value_per_variable_the_last(lists):
    merged = merge([{"env": env} for env in lists]).get("env", [])
    last = {item.partition("=")[0]: item for env in lists for item in env}
    assert sorted(merged) == sorted(last.values())


@pytest.fixture
def folders(tmp_path):
    vendor, out = tmp_path / "vendor", tmp_path / "out"
    vendor.mkdir()
    return vendor, out


@pytest.mark.parametrize(
    ("name", "dump"), [("nvidia.json", json.dumps), ("nvidia.yaml", yaml.safe_dump)]
)
def test_a_file_is_written_whole_found_and_removed(folders, name, dump):
    vendor, out = folders
    (vendor / name).write_text(dump(VENDOR))
    specs = CdiSpecs(out, [vendor])
    specs.write("G01-seat-1", SEAT)
    specs.write("G01-seat-1", SEAT)
    assert os.listdir(out) == ["kyb-G01-seat-1.json"]
    assert json.loads((out / "kyb-G01-seat-1.json").read_text()) == compose(
        [VENDOR], "G01-seat-1", SEAT
    )
    assert specs.ids() == {"G01-seat-1"}
    specs.remove("G01-seat-1")
    specs.remove("G01-seat-1")
    assert specs.ids() == frozenset()


def test_our_files_beside_the_vendors_are_not_the_vendors(folders):
    vendor, _ = folders
    (vendor / "nvidia.json").write_text(json.dumps(VENDOR))
    specs = CdiSpecs(vendor, [vendor])
    specs.write("a", SEAT)
    specs.write("b", SEAT)
    assert specs.ids() == {"a", "b"}


@pytest.mark.parametrize(
    "content", [None, "{", "[]", "null", json.dumps({"kind": "other.com/nic", "devices": []})]
)
def test_without_a_vendors_spec_it_says_what_to_install(folders, content):
    vendor, out = folders
    if content is not None:
        (vendor / "some.json").write_text(content)
    with pytest.raises(RetryableError, match=r"nvidia\.com/gpu.*nvidia-ctk"):
        CdiSpecs(out, [vendor, vendor / "absent"]).write("x", SEAT)
    assert not out.exists()


def test_a_vendors_spec_that_comes_later_is_read(folders):
    vendor, out = folders
    specs = CdiSpecs(out, [vendor])
    with pytest.raises(RetryableError):
        specs.write("x", SEAT)
    (vendor / "nvidia.yaml").write_text(yaml.safe_dump(VENDOR))
    specs.write("x", SEAT)
    assert specs.ids() == {"x"}


@pytest.mark.parametrize("name", ["", "../x", "a/b"])
def test_a_name_that_is_a_path_is_refused(folders, name):
    vendor, out = folders
    (vendor / "nvidia.json").write_text(json.dumps(VENDOR))
    with pytest.raises(RefusedError, match="device ID"):
        CdiSpecs(out, [vendor]).write(name, SEAT)


def test_without_cdi_an_ids_folder_leads_to_its_pods(tmp_path):
    links = tmp_path / "ids"
    specs = CdiSpecs(tmp_path / "cdi", [], links)
    for pod in ("u1", "u2"):
        mounts = {"/run/kyb": f"/run/kyb/seats/{pod}", "/kyb/kyb-init": "/var/lib/kyb/bin/i"}
        specs.write("G0-seat-1", SeatSpec((), {}, mounts, cdi=False))
        assert (links / "G0-seat-1" / "seat").readlink() == Path(f"/run/kyb/seats/{pod}")
        assert (links / "G0-seat-1" / "kyb-init").readlink() == Path("/var/lib/kyb/bin/i")
    assert specs.ids() == {"G0-seat-1"}
    assert not (tmp_path / "cdi").exists()
    specs.remove("G0-seat-1")
    specs.remove("G0-seat-1")
    assert specs.ids() == frozenset()
    with pytest.raises(RefusedError, match="path"):
        specs.write("../x", SeatSpec((), {}, mounts, cdi=False))


class Door:
    """Lets a container to its devices once it may; `known`: it was let before."""

    born_shut = True

    def __init__(self, *, known=False):
        self.known, self.may, self.threads = known, threading.Event(), []
        self.shuts = 0

    def shut(self, _uid, _devices):
        return ""

    def lets(self, _init, _devices):
        return self.known

    def open(self, init, devices, is_there):
        self.threads.append(threading.current_thread())
        self.may.wait(60)
        if not is_there():
            raise NotFoundError(f"no {init}")
        self.known = True
        return self.shut_again

    def shut_again(self):
        self.known = False
        self.shuts += 1


@pytest.fixture
def shut(folders):
    """What is written with a door, of a GPU that is a character device here."""
    vendor, out = folders
    node = {"deviceNodes": [{"path": "/dev/null"}]}
    spec = {**VENDOR, "devices": [{"name": A.uuid, "containerEdits": node}]}
    (vendor / "nvidia.json").write_text(json.dumps(spec))

    def made(door):
        specs = CdiSpecs(out, [vendor], door=door)
        specs.write("one", replace(SEAT, gpus=(A,)))
        return specs

    return made


@pytest.mark.real_time
async def test_a_kernel_that_does_not_answer_holds_up_nobody_else(shut):
    door = Door()
    specs = shut(door)
    try:
        with pytest.raises(DeadlineError, match=r"process 7 to its devices within 0\.05 s"):
            await specs.release("one", 7, lambda: True, 0.05)
        assert door.threads != [threading.current_thread()]
    finally:
        door.may.set()
    await specs.release("one", 7, lambda: True, 60)
    with pytest.raises(NotFoundError):
        await specs.release("one", 7, lambda: False, 60)


@pytest.mark.real_time
async def test_what_the_kernel_does_too_late_is_undone(shut):
    door = Door()
    specs = shut(door)
    for _ in range(3):
        with pytest.raises(DeadlineError):
            await specs.release("one", 7, lambda: True, 0.05)
    assert len(door.threads) == 1, "nothing is opened beside what hangs"
    door.may.set()
    await specs._openings.settled("one")
    assert (door.known, door.shuts) == (False, 1), "it stays open before its turn"
    await specs.release("one", 7, lambda: True, 60)
    assert (door.known, door.shuts) == (True, 1)


@pytest.mark.real_time
async def test_what_a_wake_is_let_to_too_late_stays(shut):
    door = Door()
    specs = shut(door)
    with pytest.raises(DeadlineError):
        await specs.release("one", 7, lambda: True, 0.05, stays=True)
    door.may.set()
    await specs.release("one", 7, lambda: True, 60)
    assert (door.known, door.shuts, len(door.threads)) == (True, 0, 1)


@pytest.mark.real_time
async def test_a_wake_waits_for_no_thread_where_all_is_let_already(shut):
    door = Door(known=True)
    door.may.set()
    specs = shut(door)
    await specs.release("one", 7, lambda: True, 60)
    assert door.threads == []
    with pytest.raises(NotFoundError):
        await specs.release("one", 7, lambda: False, 60)


@pytest.mark.real_time
async def test_a_pod_is_let_to_what_a_file_without_numbers_names_and_without_a_file_to_nothing(
    shut,
):
    door = Door()
    door.may.set()
    specs = shut(door)
    await specs.release("other", 7, lambda: True, 60)
    assert door.threads == []
    (path,) = specs._out.iterdir()
    path.write_text(json.dumps({"devices": []}))
    await specs.release("one", 7, lambda: True, 60)
    assert len(door.threads) == 1, "a program on the pod may keep it from them"
