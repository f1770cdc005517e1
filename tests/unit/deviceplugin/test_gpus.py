"""The running plugin where GPUs fail and come back, or the driver does."""

from __future__ import annotations

import time
from dataclasses import replace

import grpc
import pytest

from kybernate.core.doctor.health import Checkup, Readings
from tests.unit.deviceplugin.fakes import (
    ONE,
    TWO,
    allocated,
    listed,
    sample,
    until,
)

MEASURED = {
    "memory_used_bytes": ("memory_used", 3.0),
    "memory_bytes": ("memory", 9.0),
    "busy_ratio": ("busy", 0.5),
    "power_watts": ("power", 300.0),
    "temperature_celsius": ("temperature", 60.0),
}


def test_seats_of_a_lost_gpu_turn_unhealthy_and_recover(plugin, kubelet, agent, driver):
    agent.start()
    until(lambda: agent.reports)
    listed(kubelet)
    whole, driver.present = driver.present, driver.present[:1]
    until(lambda: set(kubelet.lists[TWO].values()) == {"Unhealthy"})
    until(lambda: kubelet.lists[ONE]["G1-seat-1"] == "Unhealthy")
    assert kubelet.lists[ONE]["G0-seat-1"] == "Healthy"
    until(lambda: [gpu.healthy for gpu in agent.reports[-1].gpus] == [True, False])
    assert "GPU is lost" in agent.reports[-1].gpus[1].trouble
    assert sample("kyb_device_plugin_seats", resource=ONE, health="Unhealthy") == 4
    assert allocated(kubelet, ONE, "G0-seat-1"), "a token of any group may become one of G0"
    with pytest.raises(grpc.RpcError, match=f"no {TWO} is healthy: GPU 1 of this node is lost"):
        allocated(kubelet, TWO, "G01-seat-1")
    driver.present = whole
    until(lambda: set(kubelet.lists[ONE].values()) == {"Healthy"})
    until(lambda: set(kubelet.lists[TWO].values()) == {"Healthy"})
    assert allocated(kubelet, TWO, "G01-seat-1")


def test_a_driver_that_stops_answering_makes_all_seats_unhealthy(plugin, kubelet, driver):
    listed(kubelet)
    driver.broken = True
    until(lambda: set(kubelet.lists[ONE].values()) == {"Unhealthy"})
    driver.broken = False
    until(lambda: set(kubelet.lists[ONE].values()) == {"Healthy"})


def test_an_xid_makes_all_seats_of_its_gpu_unhealthy_at_once(running, kubelet, driver):
    # Without waiting for the next look at the GPUs: there is none.
    running.start(health_s=3600, refresh_s=3600)
    listed(kubelet)
    driver.xid("GPU-1", 79)
    until(lambda: set(kubelet.lists[TWO].values()) == {"Unhealthy"})
    until(lambda: kubelet.lists[ONE]["G1-seat-4"] == "Unhealthy")
    assert kubelet.lists[ONE]["G0-seat-1"] == "Healthy"


def test_seats_that_an_xid_took_come_back(running, kubelet, driver):
    running.start(recovery_s=2.0)
    listed(kubelet)
    driver.xid("GPU-1", 79)
    until(lambda: kubelet.lists[ONE]["G1-seat-4"] == "Unhealthy")
    until(lambda: set(kubelet.lists[ONE].values()) == {"Healthy"})


def test_an_xid_of_a_program_takes_no_seat(plugin, kubelet, driver):
    before = sample("kyb_device_plugin_gpu_events_total", gpu="GPU-1", kind="xid", number="31") or 0
    listed(kubelet)
    driver.xid("GPU-1", 31)
    until(
        lambda: (
            sample("kyb_device_plugin_gpu_events_total", gpu="GPU-1", kind="xid", number="31")
            == before + 1
        )
    )
    assert set(kubelet.lists[ONE].values()) == {"Healthy"}


def test_a_gpu_that_wants_a_reset_stays_away_until_it_had_one(plugin, kubelet, driver):
    listed(kubelet)
    driver.found["GPU-1"] = Checkup(recovery=1)
    until(lambda: kubelet.lists[ONE]["G1-seat-1"] == "Unhealthy")
    time.sleep(0.4)
    assert kubelet.lists[ONE]["G1-seat-1"] == "Unhealthy"
    driver.found.clear()
    until(lambda: set(kubelet.lists[ONE].values()) == {"Healthy"})


def test_a_driver_that_was_loaded_anew_gets_a_new_session(plugin, kubelet, driver):
    listed(kubelet)
    driver.stale = True
    until(lambda: set(kubelet.lists[ONE].values()) == {"Unhealthy"})
    until(lambda: set(kubelet.lists[ONE].values()) == {"Healthy"})
    assert driver.reloads == 1


def test_a_plugin_restarted_while_a_gpu_is_lost_keeps_its_groups(running, kubelet, driver):
    running.start()
    before = {resource: set(ids) for resource, ids in listed(kubelet).items()}
    running.stop()
    whole, driver.present = driver.present, [replace(driver.present[1], index=0)]
    kubelet.restart()
    running.start()
    until(lambda: set(kubelet.lists) == {ONE, TWO})
    until(lambda: kubelet.lists[ONE]["G0-seat-1"] == "Unhealthy")
    assert {resource: set(ids) for resource, ids in kubelet.lists.items()} == before
    assert kubelet.lists[ONE]["G1-seat-1"] == "Healthy"
    driver.present = whole
    until(lambda: set(kubelet.lists[ONE].values()) == {"Healthy"})


def test_at_a_reboot_seats_are_offered_before_the_driver_is_there(running, kubelet, driver, agent):
    running.start()
    before = dict(listed(kubelet))
    running.stop()
    kubelet.restart()
    driver.broken = True
    agent.start()
    plugin = running.start(boot_grace_s=30)
    assert listed(kubelet) == before
    assert "aren't confirmed" in plugin.not_ready()
    assert agent.reports == []
    driver.broken = False
    until(lambda: plugin.not_ready() is None)
    until(lambda: agent.reports)


def test_a_driver_that_never_comes_ends_the_grace(running, kubelet, driver):
    running.start()
    listed(kubelet)
    running.stop()
    kubelet.restart()
    driver.broken = True
    running.start(boot_grace_s=0.3)
    until(lambda: kubelet.lists.get(ONE) and set(kubelet.lists[ONE].values()) == {"Unhealthy"})


def test_a_state_that_cannot_be_read_is_none(running, kubelet, settings):
    settings.state_dir.mkdir()
    (settings.state_dir / "inventory.json").write_text('{"version": 1, "gpus": 7}')
    running.start()
    listed(kubelet)
    until(lambda: '"GPU-1"' in (settings.state_dir / "inventory.json").read_text())


def test_what_a_gpu_measures_is_told_until_it_tells_it_no_more(running, kubelet, driver):
    driver.found["GPU-1"] = Checkup(readings=Readings(**dict(MEASURED.values())))
    running.start()
    listed(kubelet)

    def told(gpu):
        return {name: sample(f"kyb_device_plugin_gpu_{name}", gpu=gpu) for name in MEASURED}

    until(lambda: told("GPU-1") == {name: value for name, (_, value) in MEASURED.items()})
    assert set(told("GPU-0").values()) == {None}, "nothing is made up"
    driver.found["GPU-1"] = Checkup(readings=Readings(memory_used=4))
    until(lambda: told("GPU-1") == {**dict.fromkeys(MEASURED), "memory_used_bytes": 4.0})


@pytest.mark.parametrize(("field", "word"), [("mig", "MIG mode"), ("mps", "MPS server")])
def test_a_node_that_is_divided_otherwise_is_refused(running, kubelet, driver, field, word):
    driver.found["GPU-1"] = Checkup(**{field: True})
    plugin = running.start()
    until(lambda: word in (plugin.not_ready() or ""))
    assert "GPU 1 (GPU-1) can't have seats" in plugin.not_ready()
    assert kubelet.calls == []
    driver.found.clear()
    listed(kubelet)


PROFILES = """
profiles:
  - {{name: a, resource: kyb.ai/gpu-1x-seat, groupSize: 1, seatsPerGroup: {seats}}}
  - {{name: b, resource: kyb.ai/gpu-2x-seat, groupSize: 2, seatsPerGroup: 2}}
gpuTopology: {{groups: [{{name: {name}, gpus: [0, 1]}}]}}
"""


class TestBeforeTheDriver:
    """A plugin that starts before the GPU driver is loaded."""

    @pytest.fixture
    def driver(self, driver):
        driver.broken = True
        return driver

    def test_it_waits_and_says_so(self, plugin, kubelet, driver):
        assert "driver" in plugin.not_ready()
        assert kubelet.calls == []
        driver.broken = False
        listed(kubelet)
