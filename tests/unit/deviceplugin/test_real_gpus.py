"""The plugin as a process on a real node: one of its GPUs fails, and the others go on."""

from __future__ import annotations

import time

from tests.unit.deviceplugin.realnode import ONE, RECOVERY, TWO


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
