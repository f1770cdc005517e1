"""A node on the simulated driver, with the plugin as a process that uses NVIDIA's own binding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import requests
from prometheus_client.parser import text_string_to_metric_families

from bench.processes import free_port
from tests.simgpu import Faults, install, make_device_nodes, parse
from tests.unit.deviceplugin.fakes import ONE, TWO, Kubelet, until

ROOT = Path(__file__).resolve().parents[3]
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
        self._probes = f"127.0.0.1:{free_port()}"

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
