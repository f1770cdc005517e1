"""The plugin as a process, with NVIDIA's own NVML binding on the simulated driver."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from kybernate.errors import ConfigError
from tests.simgpu import Faults, build, install, make_device_nodes, parse
from tests.unit.deviceplugin.fakes import Kubelet, until

ROOT = Path(__file__).resolve().parents[3]
ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"
HEALTH, RECOVERY = 0.2, 2.0
LIMIT = 60.0
"""Seconds within which anything happens, on a machine that is busy otherwise."""
DESCRIPTION = {
    "name": "n1",
    "scale": 1024,
    "zero_cost": True,
    "gpus": [{"product": "NVIDIA H100 80GB HBM3", "memory": "16GiB", "numa": 0, "count": 4}],
    "links": [{"a": 0, "b": 1, "kind": "NV4"}, {"a": 2, "b": 3, "kind": "NV4"}],
}


class Node:
    """A node folder with a kubelet's side, and the plugin on it."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        install(parse(DESCRIPTION), folder, library)
        make_device_nodes(parse(DESCRIPTION), folder / "dev")
        self.faults = Faults(folder)
        (folder / "kubelet" / "device-plugins").mkdir(parents=True)
        self.kubelet = Kubelet(folder / "kubelet" / "device-plugins")
        self.plugin: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._probes = f"127.0.0.1:{free.getsockname()[1]}"

    def start(self) -> None:
        folder = self.folder
        with (folder / "log").open("ab") as log:
            self.plugin = subprocess.Popen(
                [
                    *(sys.executable, "-m", "deviceplugin", "--probe-listen", self._probes),
                    *(
                        "--kubelet-dir",
                        str(folder / "kubelet"),
                        "--state-dir",
                        str(folder / "memory"),
                    ),
                    *("--agent-socket", str(folder / "agent.sock")),
                    *("--health-s", str(HEALTH), "--recovery-s", str(RECOVERY)),
                ],
                stderr=log,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(ROOT),
                    "LD_LIBRARY_PATH": str(folder / "lib"),
                    "SIMGPU_DIR": str(folder),
                    "SIMGPU_DEV": f"{folder}/dev/nvidia",
                },
            )

    def kill(self) -> None:
        if self.plugin is not None:
            self.plugin.kill()
            self.plugin.wait()

    def listed(self, resource: str, group: str) -> set[str]:
        """The states of a group's seats."""
        seats = self.kubelet.lists.get(resource, {})
        return {state for seat, state in seats.items() if seat.startswith(f"{group}-seat-")}

    def turn(self, group: str, state: str) -> None:
        """Wait until all of a group's seats are in this state."""
        resource = ONE if len(group) == 2 else TWO
        until(lambda: self.listed(resource, group) == {state}, LIMIT)

    def ill(self, index: str) -> bool:
        """Whether the seats of every group with this GPU are Unhealthy."""
        seats = [one for listed in self.kubelet.lists.values() for one in listed.items()]
        return {state for seat, state in seats if index in seat.partition("-")[0]} == {"Unhealthy"}

    def measures(self, name: str) -> dict[str, float]:
        """What its metrics tell of each GPU under this name."""
        text = requests.get(f"http://{self._probes}/metrics", timeout=5).text
        (family,) = (one for one in text_string_to_metric_families(text) if one.name == name)
        return {one.labels["gpu"]: one.value for one in family.samples}

    def says(self, word: str) -> bool:
        """Whether the plugin has logged it."""
        return word in (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def library() -> Path:
    pytest.importorskip("pynvml")
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    try:
        return build(ROOT / "build" / "simgpu")
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture
def node(library):
    folder = Path(tempfile.mkdtemp(prefix="kyb-dp-", dir="/dev/shm"))
    node = Node(folder, library)
    node.start()
    node.turn("G01", "Healthy")
    yield node
    node.kill()
    print((folder / "log").read_text())
    node.kubelet.stop()
    shutil.rmtree(folder)


def test_an_xid_takes_the_seats_and_a_reset_brings_them_back(node) -> None:
    node.faults.recovery_action(1, 1)
    node.faults.xid(1, 79)
    node.turn("G1", "Unhealthy")
    node.turn("G01", "Unhealthy")
    assert node.listed(ONE, "G0") == node.listed(TWO, "G23") == {"Healthy"}
    time.sleep(RECOVERY + 1.0)
    assert node.listed(ONE, "G1") == {"Unhealthy"}
    node.faults.recovery_action(1, 0)
    node.turn("G1", "Healthy")
    node.turn("G01", "Healthy")


def test_a_lost_gpu_goes_and_comes_back_alone(node) -> None:
    node.faults.lose_gpu(2)
    node.turn("G2", "Unhealthy")
    assert node.listed(ONE, "G3") == {"Healthy"}
    node.faults.lose_gpu(2, lost=False)
    node.turn("G2", "Healthy")


def test_what_each_gpu_measures_is_told(node) -> None:
    gpus = [gpu.uuid for gpu in parse(DESCRIPTION).gpus]
    assert node.measures("kyb_device_plugin_gpu_memory_bytes") == dict.fromkeys(gpus, 16 * 2**30)
    assert node.measures("kyb_device_plugin_gpu_power_watts") == dict.fromkeys(gpus, 70.0)
    assert node.measures("kyb_device_plugin_gpu_temperature_celsius") == dict.fromkeys(gpus, 35.0)
    assert node.measures("kyb_device_plugin_gpu_busy_ratio") == dict.fromkeys(gpus, 0.0)
    node.faults.lose_gpu(2)
    until(lambda: gpus[2] not in node.measures("kyb_device_plugin_gpu_power_watts"), LIMIT)
    assert gpus[1] in node.measures("kyb_device_plugin_gpu_power_watts")


def test_an_nvml_error_of_one_gpu_and_an_ecc_event_of_another(node) -> None:
    node.faults.nvml_error(0, 999)
    node.turn("G0", "Unhealthy")
    node.faults.event(3, 2)
    node.turn("G3", "Unhealthy")
    assert node.listed(ONE, "G1") == node.listed(ONE, "G2") == {"Healthy"}
    node.faults.nvml_error(0, 0)
    for group in ("G0", "G3"):
        node.turn(group, "Healthy")


def test_a_gpu_that_hangs_takes_no_other_with_it(node) -> None:
    node.faults.nvml_hang(1)
    node.turn("G1", "Unhealthy")
    node.faults.xid(2, 48)
    node.turn("G2", "Unhealthy")
    assert node.listed(ONE, "G0") == {"Healthy"}
    node.turn("G2", "Healthy")
    node.faults.nvml_hang(1, hangs=False)
    node.turn("G1", "Healthy")


def test_a_driver_that_is_loaded_anew_is_found_again(node) -> None:
    node.faults.unload_driver()
    for group in ("G0", "G1", "G2", "G3"):
        node.turn(group, "Unhealthy")
    node.faults.load_driver()
    node.turn("G0", "Healthy")


def test_killed_while_a_gpu_is_lost_it_keeps_its_groups(node) -> None:
    node.faults.lose_gpu(0)
    until(lambda: node.ill("0"), LIMIT)
    before = {name: dict(seats) for name, seats in node.kubelet.lists.items()}
    node.kill()
    node.kubelet.lists.clear()
    node.start()
    until(
        lambda: node.kubelet.lists.keys() == before.keys() and node.kubelet.lists == before, LIMIT
    )
    node.faults.lose_gpu(0, lost=False)
    node.turn("G0", "Healthy")


def test_a_node_in_mig_mode_offers_nothing(node) -> None:
    node.kill()
    shutil.rmtree(node.folder / "memory")
    node.kubelet.lists.clear()
    node.kubelet.calls.clear()
    node.faults.mig(3)
    node.start()
    until(lambda: node.says("MIG mode"), LIMIT)
    assert node.kubelet.calls == []
    node.faults.mig(3, enabled=False)
    node.turn("G3", "Healthy")
