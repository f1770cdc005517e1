"""`kyb-device-plugin` as a process, on a machine without a GPU driver; and `kybernate groups`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import requests
from rich.console import Console

from bench.processes import free_port
from kybernate.adapters.files import sums
from kybernate.cli.groups import document, tables
from kybernate.core.ledger.topology import groups_of
from kybernate.settings.plugin import DEFAULT_SEATS
from kybernate.types import Gpu, GpuUuid, Link
from tests.unit.deviceplugin.fakes import until

GPUS = [Gpu(GpuUuid(f"GPU-{at}"), at, "NVIDIA H100", 80 << 30, numa=0) for at in range(2)]
LINKS = {frozenset(gpu.uuid for gpu in GPUS): Link.NVLINK}


@pytest.fixture
def no_driver(tmp_path):
    """An environment in which NVML can't be loaded, also on a machine that has a GPU."""
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


def plugin_command(*arguments):
    return [sys.executable, "-m", "deviceplugin", *arguments]


def test_a_wrong_file_ends_in_one_line_that_names_file_and_field(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("profiles: []")
    done = subprocess.run(
        plugin_command(
            *("--profiles", str(file), "--probe-listen", "127.0.0.1:0"),
            *("--state-dir", str(tmp_path)),
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert f"{file}: profiles: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_inventory_of_a_newer_release_ends_it_and_stays(tmp_path, no_driver):
    file = tmp_path / "inventory.json"
    newer = json.dumps(sums.summed({"version": 2, "what": "only a newer one knows"}))
    file.write_text(newer)
    done = subprocess.run(
        plugin_command("--probe-listen", "127.0.0.1:0", "--state-dir", str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=no_driver,
    )
    assert done.returncode == 1
    assert f"{file} has version 2" in done.stderr
    assert "run the release that wrote it" in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_text() == newer
    assert not list(tmp_path.glob("*.damaged"))


def test_it_waits_for_a_driver_and_ends_on_sigterm(tmp_path, no_driver):
    port = free_port()
    arguments = (
        *("--kubelet-dir", str(tmp_path), "--probe-listen", f"127.0.0.1:{port}"),
        *("--state-dir", str(tmp_path)),
    )
    with subprocess.Popen(
        plugin_command(*arguments), stderr=subprocess.PIPE, text=True, env=no_driver
    ) as process:
        try:
            until(lambda: "NVML" in get(f"http://127.0.0.1:{port}/readyz"), limit=60)
            metrics = get(f"http://127.0.0.1:{port}/metrics")
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "kyb_device_plugin_discovery_failures_total" in metrics
    assert process.returncode == 0
    assert "Traceback" not in stderr


def get(url):
    try:
        return requests.get(url, timeout=5).text
    except requests.ConnectionError:
        return ""


def test_groups_as_a_document():
    shown = document(GPUS, LINKS, groups_of(DEFAULT_SEATS, GPUS, LINKS))
    assert json.loads(json.dumps(shown)) == shown
    assert shown["links"] == [{"a": "GPU-0", "b": "GPU-1", "kind": "nvlink"}]
    assert shown["groups"][-1] == {
        "name": "G01",
        "resource": "kyb.ai/gpu-2x-seat",
        "gpus": ["GPU-0", "GPU-1"],
        "indices": [0, 1],
        "worstLink": "nvlink",
        "activeSlots": 1,
        "seats": ["G01-seat-1", "G01-seat-2", "G01-seat-3"],
    }


def test_groups_for_people():
    console = Console(width=160)
    with console.capture() as output:
        for table in tables(GPUS, LINKS, groups_of(DEFAULT_SEATS, GPUS, LINKS)):
            console.print(table)
    shown = output.get()
    for word in ("G01", "nvlink", "80 GiB", "kyb.ai/gpu-2x-seat", "GPU-1"):
        assert word in shown


def test_groups_without_a_driver_says_so(no_driver):
    done = subprocess.run(
        [sys.executable, "-m", "kybernate.cli", "groups"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=no_driver,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
