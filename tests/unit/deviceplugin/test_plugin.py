"""The running plugin, seen from the kubelet and from the agent."""

from __future__ import annotations

import socket
import threading
import time

import grpc
import pytest

from kybernate.gen import deviceplugin_pb2 as pb
from tests.unit.deviceplugin.fakes import (
    ONE,
    TWO,
    Agent,
    allocated,
    listed,
    sample,
    start,
    until,
)

PROFILES = """
profiles:
  - {{name: a, resource: kyb.ai/gpu-1x-seat, groupSize: 1, seatsPerGroup: {seats}}}
  - {{name: b, resource: kyb.ai/gpu-2x-seat, groupSize: 2, seatsPerGroup: 2}}
gpuTopology: {{groups: [{{name: {name}, gpus: [0, 1]}}]}}
"""


def sockets(folder, resource):
    return list(folder.glob(f"kyb-{resource.partition('/')[2]}-*.sock"))


def preferred(kubelet, resource, available, must=(), size=1):
    request = pb.PreferredAllocationRequest()
    request.container_requests.add(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    answer = kubelet.plugin(resource).GetPreferredAllocation(request, timeout=60)
    return list(answer.container_responses[0].deviceIDs)


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
    assert sockets(folder, ONE)
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
        assert len(sockets(folder, ONE)) == 1
    until(lambda: plugin.not_ready() is None)


def test_a_removed_socket_is_served_again(plugin, kubelet, folder):
    listed(kubelet)
    kubelet.calls.clear()
    sockets(folder, TWO)[0].unlink()
    until(lambda: ("List", TWO) in kubelet.calls)
    assert ("Register", ONE) not in kubelet.calls


def test_it_registers_again_when_the_kubelet_never_lists(running, kubelet):
    kubelet.ignore_lists = 2
    running.start(relist_s=0.3)
    listed(kubelet)
    assert len([call for call in kubelet.calls if call[0] == "Register"]) >= 4


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


def test_what_does_not_pass_ends_with_the_agents_last_sentence(running, kubelet, agent):
    agent.start()
    running.start(prestart_deadline_s=2.0)
    listed(kubelet)
    agent.answers = [(grpc.StatusCode.UNAVAILABLE, "the pod isn't seen yet")] * 100
    with pytest.raises(grpc.RpcError) as caught:
        start(kubelet, ONE, "G0-seat-1")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "the pod isn't seen yet"


def test_a_start_waits_for_an_agent_that_restarts(plugin, kubelet, agent):
    listed(kubelet)
    call = kubelet.plugin(ONE).PreStartContainer.future(
        pb.PreStartContainerRequest(devices_ids=["G0-seat-1"]), timeout=60
    )
    agent.start()
    call.result()
    assert agent.prepared == [(ONE, ["G0-seat-1"])]


def test_an_agent_that_stays_away_is_named(running, kubelet):
    running.start(prestart_deadline_s=0.5)
    listed(kubelet)
    with pytest.raises(grpc.RpcError) as caught:
        start(kubelet, ONE, "G0-seat-1")
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "kyb-agent runs on this node" in caught.value.details()


def test_free_seats_are_withheld_as_soon_as_the_agent_says_how_little_fits(plugin, kubelet, agent):
    agent.hold(("G0-seat-2", "G0"), budget=0)
    agent.start()
    until(lambda: set(kubelet.lists.get(ONE, ())) == {"G0-seat-2", "G1-seat-1"})
    until(lambda: sample("kyb_device_plugin_seats_withheld", resource=ONE) == 6)
    agent.hold(("G0-seat-2", "G0"))
    until(lambda: len(kubelet.lists[ONE]) == 8)
    # Without the agent's word the last one counts.
    agent.stop()
    agent.hold(budget=0)
    time.sleep(0.3)
    assert len(kubelet.lists[ONE]) == 8


MEASURED = {
    "memory_used_bytes": ("memory_used", 3.0),
    "memory_bytes": ("memory", 9.0),
    "busy_ratio": ("busy", 0.5),
    "power_watts": ("power", 300.0),
    "temperature_celsius": ("temperature", 60.0),
}


class TestTheProfilesFile:
    """Read again whenever it changes."""

    @pytest.fixture
    def file(self, tmp_path, running):
        file = tmp_path / "config.yaml"
        file.write_text(PROFILES.format(seats=2, name="pair"))
        running.settings = running.settings.model_copy(update={"profiles": file})
        return file

    def test_a_change_is_taken_over_without_a_restart(self, file, plugin, kubelet, agent):
        agent.start()
        listed(kubelet)
        file.write_text(PROFILES.format(seats=3, name="both"))
        until(lambda: set(kubelet.lists[TWO]) == {"both-seat-1", "both-seat-2"})
        until(lambda: len(kubelet.lists[ONE]) == 6)
        until(lambda: [g.name for g in agent.reports[-1].groups] == ["G0", "G1", "both"])
        assert kubelet.calls.count(("Register", ONE)) == 1

    def test_a_bad_file_keeps_the_old_one_and_says_why(self, file, plugin, kubelet, agent, caplog):
        agent.start()
        before = {resource: dict(ids) for resource, ids in listed(kubelet).items()}
        file.write_text("profiles: [{name: a}]\nextra: 1")
        until(lambda: sample("kyb_device_plugin_profiles_refused") == 1)
        for field in ("profiles[0].resource", "profiles[0].groupSize", "extra"):
            until(lambda field=field: f": {field}: " in caplog.text)
            assert caplog.text.count(f": {field}: ") == 1
        assert kubelet.lists == before
        assert plugin.not_ready() is None
        file.write_text(PROFILES.format(seats=4, name="pair"))
        until(lambda: len(kubelet.lists[ONE]) == 8)
        until(lambda: sample("kyb_device_plugin_profiles_refused") == 0)

    def test_a_held_group_is_not_renamed(self, file, plugin, kubelet, agent, caplog):
        agent.hold(("pair-seat-1", "pair"))
        agent.start()
        listed(kubelet)
        file.write_text(PROFILES.format(seats=2, name="both"))
        until(lambda: "can't be renamed to both" in caplog.text)
        assert set(kubelet.lists[TWO]) == {"pair-seat-1", "pair-seat-2"}
        agent.hold()
        until(lambda: set(kubelet.lists[TWO]) == {"both-seat-1", "both-seat-2"})

    def test_nothing_is_formed_anew_while_nobody_knows_what_is_held(
        self, file, plugin, kubelet, agent
    ):
        listed(kubelet)
        file.write_text(PROFILES.format(seats=2, name="both"))
        time.sleep(0.4)
        assert set(kubelet.lists[TWO]) == {"pair-seat-1", "pair-seat-2"}
        agent.start()
        until(lambda: set(kubelet.lists[TWO]) == {"both-seat-1", "both-seat-2"})

    def test_a_plugin_that_starts_with_a_bad_file_goes_on_with_the_old_one(
        self, file, running, kubelet
    ):
        running.start()
        before = {resource: dict(ids) for resource, ids in listed(kubelet).items()}
        running.stop()
        file.write_text("profiles: 7")
        running.start()
        until(lambda: kubelet.lists == before)

    def test_a_resource_that_goes_is_served_no_more(self, file, plugin, kubelet, agent, folder):
        agent.start()
        listed(kubelet)
        one = PROFILES.format(seats=2, name="pair").split("\n  - {name: b")[0]
        file.write_text(one)
        until(lambda: not sockets(folder, TWO))
        assert sockets(folder, ONE)


def test_sockets_that_nobody_answers_are_removed(running, kubelet, folder):
    left = folder / "kyb-gpu-1x-seat-000000.sock"
    other = folder / "nvidia-gpu.sock"
    for path in (left, other):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    running.start()
    listed(kubelet)
    assert not left.exists()
    assert other.exists()
    other.unlink()


class Deaf(Agent):
    """Takes calls and never answers them."""

    def __init__(self, socket):
        super().__init__(socket)
        self.asked = []
        self.ended = threading.Event()

    def AwaitedGroups(self, request, context):  # noqa: N802 - gRPC's name
        self.asked.append(request.resource)
        self.ended.wait()

    def ReportInventory(self, request, context):  # noqa: N802 - gRPC's name
        self.ended.wait()


class TestAnAgentThatHangs:
    """What the kubelet does while it holds its lock must not wait for anybody."""

    @pytest.fixture
    def agent(self, tmp_path):
        agent = Deaf(tmp_path / "agent.sock")
        agent.start()
        yield agent
        agent.ended.set()
        agent.stop()

    def test_allocation_waits_for_nobody(self, plugin, kubelet, agent):
        free = sorted(listed(kubelet)[ONE])
        until(lambda: sorted(agent.asked) == [ONE, TWO])  # what the holdings lead to
        for number in range(4):
            ids = [f"G0-seat-{number + 1}"]
            assert allocated(kubelet, ONE, *ids) == [f"kyb.ai/seat={ids[0]}"]
        assert len(agent.asked) == 2
        assert preferred(kubelet, ONE, free) == ["G0-seat-1"]
        assert len(agent.asked) == 3


def test_what_was_allocated_and_never_started_blocks_no_other_pod(plugin, kubelet, agent):
    """No lock on the node: a pod that hangs between its steps costs the others nothing."""
    agent.start()
    listed(kubelet)
    allocated(kubelet, ONE, "G0-seat-1")
    for seat in ("G0-seat-2", "G1-seat-1"):
        allocated(kubelet, ONE, seat)
        start(kubelet, ONE, seat)
    assert [ids for _, ids in agent.prepared] == [["G0-seat-2"], ["G1-seat-1"]]


def test_the_same_ids_give_the_same_answer_for_ever(running, kubelet, driver):
    """A restarted container gets the kubelet's copy of the answer; nothing in it may grow old."""
    running.start(health_s=3600)
    listed(kubelet)
    first = allocated(kubelet, ONE, "G1-seat-2")
    driver.xid("GPU-1", 79)
    until(lambda: kubelet.lists[ONE]["G1-seat-2"] == "Unhealthy")
    assert allocated(kubelet, ONE, "G1-seat-2") == first
    running.stop()
    kubelet.calls.clear()
    running.start()
    until(lambda: ("List", ONE) in kubelet.calls)
    assert allocated(kubelet, ONE, "G1-seat-2") == first


def test_a_registration_never_follows_the_end_of_a_stream_at_once(plugin, kubelet, folder):
    """A kubelet takes a registration apart by name, a moment after a stream of that name ended."""
    listed(kubelet)
    kubelet.calls.clear()
    dropped = time.monotonic()
    kubelet.drop(ONE)
    until(lambda: ("Register", ONE) in kubelet.calls)
    assert time.monotonic() - dropped >= 0.5
    listed(kubelet)
    kubelet.calls.clear()
    removed = time.monotonic()
    sockets(folder, TWO)[0].unlink()
    until(lambda: ("Register", TWO) in kubelet.calls)
    assert time.monotonic() - removed >= 0.5
