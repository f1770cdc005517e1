"""The running plugin, seen from the kubelet and from the agent."""

from __future__ import annotations

import grpc
import pytest
from prometheus_client import REGISTRY

from kybernate.gen import deviceplugin_pb2 as pb
from tests.unit.deviceplugin.fakes import until

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"


def listed(kubelet):
    return until(lambda: set(kubelet.lists) == {ONE, TWO} and kubelet.lists)


def start(kubelet, resource, *ids):
    return kubelet.plugin(resource).PreStartContainer(
        pb.PreStartContainerRequest(devices_ids=ids), timeout=10
    )


def preferred(kubelet, resource, available, must=(), size=1):
    request = pb.PreferredAllocationRequest()
    request.container_requests.add(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    answer = kubelet.plugin(resource).GetPreferredAllocation(request, timeout=5)
    return list(answer.container_responses[0].deviceIDs)


def allocated(kubelet, resource, *ids):
    request = pb.AllocateRequest()
    request.container_requests.add(devices_ids=ids)
    answer = kubelet.plugin(resource).Allocate(request, timeout=5)
    return [one.name for one in answer.container_responses[0].cdi_devices]


def test_it_serves_registers_and_lists_without_an_agent(plugin, kubelet, folder):
    lists = listed(kubelet)
    assert sorted(lists[ONE]) == sorted(f"G{g}-seat-{k}" for g in (0, 1) for k in range(1, 5))
    assert lists[TWO] == {f"G01-seat-{k}": "Healthy" for k in range(1, 4)}
    assert [call for call, resource in kubelet.calls if resource == ONE] == [
        "Register",
        "Options",
        "List",
    ]
    assert kubelet.versions == {ONE: "v1beta1", TWO: "v1beta1"}
    assert (folder / "kyb-gpu-1x-seat.sock").is_socket()
    assert plugin.not_ready() is None


def test_a_kubelet_that_comes_later_is_found(plugin, folder, request):
    until(lambda: plugin.not_ready() and "list" in plugin.not_ready())
    listed(request.getfixturevalue("kubelet"))


def test_after_a_kubelet_restart_everything_is_registered_again(plugin, kubelet, folder):
    for _ in range(3):
        listed(kubelet)
        kubelet.calls.clear()
        kubelet.restart()
        listed(kubelet)
        assert kubelet.calls.count(("Register", ONE)) == 1
        assert (folder / "kyb-gpu-1x-seat.sock").is_socket()
    until(lambda: plugin.not_ready() is None)


def test_a_removed_socket_is_served_again(plugin, kubelet, folder):
    listed(kubelet)
    kubelet.calls.clear()
    (folder / "kyb-gpu-2x-seat.sock").unlink()
    until(lambda: ("List", TWO) in kubelet.calls)
    assert ("Register", ONE) not in kubelet.calls


def test_it_registers_again_when_the_kubelet_never_lists(plugin, kubelet):
    kubelet.ignore_lists = 2
    listed(kubelet)
    assert len([call for call in kubelet.calls if call[0] == "Register"]) == 4


def test_it_registers_again_when_the_kubelet_drops_the_stream(plugin, kubelet):
    listed(kubelet)
    kubelet.drop(TWO)
    listed(kubelet)
    assert kubelet.calls.count(("Register", TWO)) == 2
    assert kubelet.calls.count(("Register", ONE)) == 1


def test_a_refused_registration_is_tried_again(plugin, kubelet):
    kubelet.refuse = 1
    listed(kubelet)
    assert len([call for call in kubelet.calls if call[0] == "Register"]) == 3


def test_seats_of_a_lost_gpu_turn_unhealthy_and_recover(plugin, kubelet, agent, driver):
    agent.start()
    until(lambda: agent.reports)
    listed(kubelet)
    whole, driver.present = driver.present, driver.present[:1]
    until(lambda: set(kubelet.lists[TWO].values()) == {"Unhealthy"})
    until(lambda: kubelet.lists[ONE]["G1-seat-1"] == "Unhealthy")
    assert kubelet.lists[ONE]["G0-seat-1"] == "Healthy"
    until(lambda: [gpu.healthy for gpu in agent.reports[-1].gpus] == [True, False])
    assert sample("kyb_device_plugin_seats", resource=ONE, health="Unhealthy") == 4
    driver.present = whole
    until(lambda: set(kubelet.lists[ONE].values()) == {"Healthy"})
    until(lambda: set(kubelet.lists[TWO].values()) == {"Healthy"})


def test_a_driver_that_stops_answering_makes_all_seats_unhealthy(plugin, kubelet, driver):
    listed(kubelet)
    driver.broken = True
    until(lambda: set(kubelet.lists[ONE].values()) == {"Unhealthy"})
    driver.broken = False
    until(lambda: set(kubelet.lists[ONE].values()) == {"Healthy"})


def test_the_agent_hears_of_the_node_again_whenever_it_comes_back(plugin, kubelet, agent):
    listed(kubelet)
    for times in (1, 2, 3):
        agent.start()
        until(lambda times=times: len(agent.reports) == times)
        assert [group.name for group in agent.reports[-1].groups] == ["G0", "G1", "G01"]
        agent.stop()
        assert plugin.not_ready() is None


def test_the_agent_knows_at_once_whether_the_kubelet_lists_us(plugin, kubelet, agent):
    agent.start()
    listed(kubelet)
    until(lambda: agent.unlisted == ())
    kubelet.stop()
    until(lambda: agent.unlisted is not None and set(agent.unlisted) == {ONE, TWO})
    kubelet.start()
    until(lambda: agent.unlisted == ())
    agent.stop()
    agent.start()
    until(lambda: agent.unlisted == ())


def test_preference_follows_the_agent_and_what_is_on_the_way(plugin, kubelet, agent):
    agent.start()
    agent.groups = ["G1", "G0"]
    free = sorted(listed(kubelet)[ONE])
    assert preferred(kubelet, ONE, free) == ["G1-seat-1"]
    assert allocated(kubelet, ONE, "G1-seat-1") == ["kyb.ai/seat=G1-seat-1"]
    free.remove("G1-seat-1")
    assert preferred(kubelet, ONE, free) == ["G0-seat-1"]
    start(kubelet, ONE, "G1-seat-1")
    assert agent.prepared == [(ONE, ["G1-seat-1"])]
    assert preferred(kubelet, ONE, free) == ["G1-seat-2"]
    assert preferred(kubelet, ONE, free, must=["G0-seat-4"]) == ["G0-seat-4"]


def test_preference_without_an_agent_is_in_order(plugin, kubelet):
    assert preferred(kubelet, ONE, sorted(listed(kubelet)[ONE], reverse=True)) == ["G0-seat-1"]


def test_the_agents_refusal_reaches_the_kubelet_word_for_word(plugin, kubelet, agent):
    agent.start()
    listed(kubelet)
    sentence = "the pod never passed the scheduler; name schedulerName kybernate-scheduler"
    agent.answers = [(grpc.StatusCode.FAILED_PRECONDITION, sentence)]
    with pytest.raises(grpc.RpcError) as caught:
        start(kubelet, ONE, "G0-seat-1")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == sentence


def test_what_may_pass_is_tried_again_within_the_deadline(plugin, kubelet, agent):
    agent.start()
    listed(kubelet)
    agent.answers = [(grpc.StatusCode.UNAVAILABLE, "the pod isn't seen yet")] * 2
    start(kubelet, ONE, "G0-seat-1")
    assert agent.prepared == [(ONE, ["G0-seat-1"])]


def test_what_does_not_pass_ends_with_the_agents_last_sentence(plugin, kubelet, agent):
    agent.start()
    listed(kubelet)
    agent.answers = [(grpc.StatusCode.UNAVAILABLE, "the pod isn't seen yet")] * 100
    with pytest.raises(grpc.RpcError) as caught:
        start(kubelet, ONE, "G0-seat-1")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "the pod isn't seen yet"


def test_a_start_waits_for_an_agent_that_restarts(plugin, kubelet, agent):
    listed(kubelet)
    call = kubelet.plugin(ONE).PreStartContainer.future(
        pb.PreStartContainerRequest(devices_ids=["G0-seat-1"]), timeout=10
    )
    agent.start()
    call.result()
    assert agent.prepared == [(ONE, ["G0-seat-1"])]


def test_an_agent_that_stays_away_is_named(plugin, kubelet):
    listed(kubelet)
    with pytest.raises(grpc.RpcError) as caught:
        start(kubelet, ONE, "G0-seat-1")
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "kyb-agent runs on this node" in caught.value.details()


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


def sample(name, **labels):
    return REGISTRY.get_sample_value(name, labels)
