"""What the doctor sees: made-up nodes in a folder, made-up CRIUs, this machine, other users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kybernate.adapters.container.cri import cdi_from_config
from kybernate.adapters.criu import find_criu, is_static
from kybernate.adapters.lookabout import LookAbout
from kybernate.core.doctor.nodefacts import CgroupFacts, KubeletFacts, Unseen
from kybernate.errors import ConfigError
from tests.simgpu import build, install, make_device_nodes, parse

ROOT = Path(__file__).resolve().parents[3]


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("files", "facts"),
    [
        (["cgroup.controllers"], CgroupFacts(2, True, True)),
        (["freezer/x", "memory/x"], CgroupFacts(1, True, True)),
        (["memory/x"], CgroupFacts(1, False, True)),
    ],
)
def test_cgroups_of_both_versions(tmp_path, files, facts):
    for name in files:
        write(tmp_path / "sys/fs/cgroup" / name, "cpu memory\n")
    assert LookAbout(tmp_path).cgroup() == facts


def test_a_node_in_a_folder(tmp_path):
    look = LookAbout(tmp_path)
    assert isinstance(look.cgroup(), Unseen)
    assert isinstance(look.kubelet(Path("/var/lib/kubelet")), Unseen)
    assert look.vendor_specs(["/var/run/cdi"]) == ()
    assert look.io_uring() is None
    kubelet = tmp_path / "var/lib/kubelet"
    write(kubelet / "device-plugins/nvidia-gpu.sock")
    write(kubelet / "pod-resources/kubelet.sock")
    write(tmp_path / "var/run/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    write(tmp_path / "var/run/cdi/other.json", '{"kind": "x.com/y"}')
    write(
        tmp_path / "var/run/cdi/kyb-G0-seat-1.json",
        '{"kind": "kyb.ai/seat", "of": "nvidia.com/gpu"}',
    )
    write(tmp_path / "proc/sys/kernel/io_uring_disabled", "2\n")
    write(tmp_path / "proc/7/comm", "nvidia-persiste\n")
    write(tmp_path / "etc/sysctl.d/90.conf", "# off\nkernel.io_uring_disabled = 2\n")
    found = look.kubelet(Path("/var/lib/kubelet"))
    assert found == KubeletFacts(("nvidia-gpu.sock",), pod_resources=True)
    assert look.vendor_specs(["/etc/cdi", "/var/run/cdi"]) == ("/var/run/cdi/nvidia.yaml",)
    assert look.io_uring() == 2
    assert (look.lasting().persistenced, look.lasting().io_uring_file) == (True, True)
    assert not look.mps()
    write(tmp_path / "proc/8/comm", "nvidia-cuda-mps\n")
    assert look.mps()


def test_the_disk_of_a_folder_that_is_not_made_yet(tmp_path):
    disk = LookAbout().disk(tmp_path / "not" / "yet")
    assert not isinstance(disk, Unseen)
    assert disk.free > 0
    known = Path("/proc/filesystems").read_text().split()
    assert disk.kind in known


def criu(folder: Path, dump: str, version: str = "4.2.1") -> Path:
    path = write(
        folder / "criu",
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "Version: {version}"; exit 0; }}\n{dump}\n',
    )
    path.chmod(0o755)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may dump a process")
@pytest.mark.parametrize(
    ("dump", "trial"),
    [
        ('[ "$1" = restore ] || { kill -9 "$3" && [ -d "$5" ]; }', ""),
        (
            '[ "$1" = dump ] && kill -9 "$3" && exit 0; echo "Error: no way back"; exit 1',
            "Error: no way back",
        ),
        ("echo noise; echo 'Error: no vdso' >&2; exit 1", "Error: no vdso"),
        ("exit 3", "status 3"),
    ],
)
def test_a_criu_is_tried(tmp_path, dump, trial):
    found = find_criu(criu(tmp_path, dump))
    assert found is not None
    assert (found.version, found.static, found.trial) == ("4.2.1", False, trial)


def test_no_criu_is_no_error(tmp_path):
    assert find_criu(tmp_path / "criu") is None


def test_static_files_name_no_loader():
    assert not is_static(Path(sys.executable).resolve())
    built = ROOT / "build" / "kyb-init"
    if built.exists():
        assert is_static(built)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"enableCDI": true, "cdiSpecDirs": ["/etc/cdi"]}', (True, ("/etc/cdi",))),
        ('{"enableCDI": false}', (False, ())),
        ('{"other": 1}', None),
        ("", None),
        ("[]", None),
    ],
)
def test_what_a_runtime_says_of_cdi(config, said):
    assert cdi_from_config(config) == said


def doctor(*arguments, env=None, before=()):
    """Status, and what it printed."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "kybernate.cli", "doctor", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def findings(text):
    found = json.loads(text)
    return found["sound"], {one["check"]: one for one in found["findings"]}


def test_on_this_machine_it_has_something_to_say_and_does_not_fall():
    code, text = doctor("--json", "--cri-socket", "/nowhere/x.sock")
    fine, found = findings(text)
    assert code == (0 if fine else 1)
    assert {"driver", "runtime", "cdi", "kubelet", "cgroup", "memory", "disk", "criu"} <= set(found)
    assert "/nowhere/x.sock" in found["runtime"]["seen"]
    assert all(one["do"] for one in found.values() if one["level"] != "ok")


def test_people_get_a_table():
    code, text = doctor()
    assert code in (0, 1)
    assert "what to do" in text
    assert text.splitlines()[-1].endswith("fail")


def test_its_help_teaches():
    code, text = doctor("--help")
    assert code == 0
    assert "Exit status 1" in text
    assert "docs/reference/node/doctor.md" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_is_told_what_he_does_not_see(tmp_path):
    code, text = doctor(
        "--json",
        "--state-dir",
        str(tmp_path / "kyb"),
        env={"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
        before=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    )
    fine, found = findings(text)
    assert code == (0 if fine else 1)
    assert found["rights"]["level"] == "warn"
    assert "root" in found["rights"]["do"]
    # pytest keeps its folders from other users.
    assert "is not for this user" in found["disk"]["seen"]


def test_on_the_simulated_driver():
    pytest.importorskip("pynvml")
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    try:
        library = build(ROOT / "build" / "simgpu")
    except ConfigError as error:
        pytest.skip(str(error))
    folder = Path(tempfile.mkdtemp(prefix="kyb-doctor-", dir="/dev/shm"))
    gpus = [{"product": "NVIDIA H100 80GB HBM3", "memory": "16GiB", "numa": 0, "count": 2}]
    spec = parse({"name": "n1", "scale": 1024, "gpus": gpus, "links": []})
    install(spec, folder, library)
    make_device_nodes(spec, folder / "dev")
    try:
        _, text = doctor(
            "--json",
            env={
                "LD_LIBRARY_PATH": str(folder / "lib"),
                "SIMGPU_DIR": str(folder),
                "SIMGPU_DEV": f"{folder}/dev/nvidia",
            },
        )
    finally:
        shutil.rmtree(folder)
    _, found = findings(text)
    assert found["driver"]["level"] == "ok"
    assert found["gpus"]["seen"] == "0: NVIDIA H100 80GB HBM3, 1: NVIDIA H100 80GB HBM3"
    assert found["mig"]["level"] == "ok"
    assert found["persistence"]["level"] == "warn"
