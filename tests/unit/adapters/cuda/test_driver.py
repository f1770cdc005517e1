"""The adapters of driver and NVML with the vendor's own bindings, on the simulated driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kybernate.errors import ConfigError
from tests.simgpu import build, install, make_device_nodes, parse

ROOT = Path(__file__).resolve().parents[4]
DESCRIPTION = {
    "name": "n1",
    "scale": 1024,
    "gpus": [
        {"product": "NVIDIA H100 80GB HBM3", "memory": "16GiB", "numa": numa, "count": 2}
        for numa in (0, 1)
    ],
    "links": [
        {"a": 0, "b": 1, "kind": "NV4"},
        {"a": 2, "b": 3, "kind": "PIX"},
        {"a": 0, "b": 2, "kind": "SYS"},
    ],
}


@pytest.fixture(scope="module")
def library() -> Path:
    pytest.importorskip("cuda.bindings")
    pytest.importorskip("pynvml")
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    try:
        return build(ROOT / "build" / "simgpu")
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture
def environment(library):
    folder = Path(tempfile.mkdtemp(prefix="kyb-driver-", dir="/dev/shm"))
    spec = parse(DESCRIPTION)
    install(spec, folder, library)
    make_device_nodes(spec, folder / "dev")
    yield {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "SIMGPU_DIR": str(folder),
        "SIMGPU_DEV": f"{folder}/dev/nvidia",
    }
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "scene",
    [
        "inventory",
        "lost_gpu",
        "unknown_gpu",
        "events",
        "events_of_the_others",
        "checkups",
        "hung_gpu",
        "driver_reload",
        "driver_reload_renewed",
        "park_and_wake",
        "noted",
        "another_gpu",
        "bystander",
        "lock_timeout",
        "checkpoint_fails",
        "restore_without_memory",
        "failed",
        "dies_on_lock",
        "hang",
        "hang_in_every_call",
        "lock_fails_otherwise",
        "checkpoint_fails_when_it_is_done",
        "passing_states",
        "thread_number",
        "one_rank_dies_on_lock",
        "killed_after_out_of_memory",
    ],
)
def test_driver(environment, scene):
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.adapters.cuda.driver_scenes", scene],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
