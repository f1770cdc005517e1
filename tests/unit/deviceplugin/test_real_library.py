"""The plugin as a process on a real node: what becomes of all of its GPUs, and what it tells."""

from __future__ import annotations

import shutil

from tests.simgpu import parse
from tests.unit.deviceplugin.fakes import until
from tests.unit.deviceplugin.realnode import DESCRIPTION, LIMIT


def test_what_each_gpu_measures_is_told(node) -> None:
    gpus = [gpu.uuid for gpu in parse(DESCRIPTION).gpus]
    assert node.measures("kyb_device_plugin_gpu_memory_bytes") == dict.fromkeys(gpus, 16 * 2**30)
    assert node.measures("kyb_device_plugin_gpu_power_watts") == dict.fromkeys(gpus, 70.0)
    assert node.measures("kyb_device_plugin_gpu_temperature_celsius") == dict.fromkeys(gpus, 35.0)
    assert node.measures("kyb_device_plugin_gpu_busy_ratio") == dict.fromkeys(gpus, 0.0)
    node.faults.lose_gpu(2)
    until(lambda: gpus[2] not in node.measures("kyb_device_plugin_gpu_power_watts"), LIMIT)
    assert gpus[1] in node.measures("kyb_device_plugin_gpu_power_watts")


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
