"""From pod to process: which GPUs a container gets, and when it starts."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.kit.pods import SeatPod, admitted, condition, group_of, opened, ready

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e


def members(cluster: Cluster, pod: dict[str, Any]) -> set[str]:
    """The GPUs of the group that the extender wrote at bind."""
    status = cluster.api().get(f"{keys.GPU_NODES_PATH}/{pod['spec']['nodeName']}")["status"]
    (group,) = [one for one in status["groups"] if one["name"] == group_of(pod)]
    return set(group["gpus"])


@pytest.mark.always
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_a_pod_of_each_profile_gets_exactly_its_groups_gpus(
    cluster: Cluster, pods: Pods, models: Models, gpus: int
) -> None:
    name = f"p{gpus}x"
    pods.create(SeatPod(name, gpus=gpus))
    pod = pods.wait([name], ready, 60, "Ready")[name]
    wanted = members(cluster, pod)
    assert len(wanted) == gpus
    assert opened(pods.log(name)) == wanted
    answer = models.ask(name)
    assert answer.status == 200
    assert answer.intact


def test_the_bound_group_wins_over_the_kubelets_choice(cluster: Cluster, pods: Pods) -> None:
    # Required groups in an order that no rule of the kubelet follows.
    wanted = {"g3": "G3", "g1": "G1", "g2": "G2", "g0": "G0"}
    for name, group in wanted.items():
        pods.create(
            SeatPod(name, node="n1", annotations={keys.REQUIRE_GROUP: group}, bytes_="1GiB")
        )
    found = pods.wait(wanted, ready, 90, "Ready")
    for name, group in wanted.items():
        assert group_of(found[name]) == group
        assert opened(pods.log(name)) == members(cluster, found[name])


def test_a_pod_gets_the_group_that_it_prefers_while_that_has_a_seat(
    cluster: Cluster, pods: Pods
) -> None:
    """By the annotation without a prefix, which the webhook takes for kyb.ai/prefer-group."""
    wishes = {"a": "G23", "b": "G23", "c": "G01", "d": "G23", "e": "G23"}
    for name, group in wishes.items():
        wish = {keys.SHORT_PREFER_GROUP: group}
        pods.create(SeatPod(name, gpus=2, node="n1", annotations=wish, bytes_="1GiB"))
        pods.wait([name], admitted, 60, "admitted")
    found = pods.wait(["a", "c"], ready, 90, "Ready")
    for name in ("a", "c"):
        assert opened(pods.log(name)) == members(cluster, found[name])
    # A group of two GPUs has three seats: the fifth pod takes what is there.
    groups = {name: group_of(pod) for name, pod in pods.all().items()}
    assert groups == {**wishes, "e": "G01"}


def test_it_wins_also_over_another_groups_device_id(cluster: Cluster, pods: Pods) -> None:
    # Without the agent's advice the plugin offers IDs in order: the kubelet takes one of G0.
    node = cluster.node("n1")
    node.agent.stop()
    before = specs(cluster, "n1")
    try:
        pods.create(SeatPod("late", node="n1", annotations={keys.REQUIRE_GROUP: "G3"}))
        pods.wait(["late"], admitted, 30, "admitted")
    finally:
        node.agent.start()
    pod = pods.wait(["late"], ready, 90, "Ready")["late"]
    # Files of pods that are gone may be there still.
    written = [file for path, file in specs(cluster, "n1").items() if before.get(path) != file]
    given = [file for file in written if f"{keys.ENV_GROUP}={group_of(pod)}" in file.env]
    assert [file.id_group for file in given] == ["G0"]
    assert opened(pods.log("late")) == members(cluster, pod)


class Spec(NamedTuple):
    """A CDI file: when it was written, the group of the device ID it is for, the seat's words."""

    time: int
    id_group: str
    env: list[str]


def specs(cluster: Cluster, node: str) -> dict[Path, Spec]:
    """The CDI files of a node's seats."""
    found = {}
    for path in (cluster.layout.node(node).root / "cdi").glob("kyb-*.json"):
        with contextlib.suppress(FileNotFoundError):
            (device,) = json.loads(path.read_text())["devices"]
            group = device["name"].rsplit("-seat-", 1)[0]
            found[path] = Spec(path.stat().st_mtime_ns, group, device["containerEdits"]["env"])
    return found


def test_over_provisioned_pods_wait_at_the_gate_and_start_in_turn(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    names = ["first", "second", "third"]
    for name in names:
        slow = ("--start-delay=8",) if name == "first" else ()
        annotations = {keys.REQUIRE_GROUP: "G0"}
        pods.create(SeatPod(name, node="n1", annotations=annotations, arguments=slow))
        pods.wait([name], running_container, 60, "running")

    def gathered() -> bool:
        told = states(cluster, "n1")
        return [told.get(name) for name in names] == ["starting", "waiting", "waiting"]

    wait_until(gathered, 8, "the second and third didn't wait for the first")
    found = pods.wait(names, ready, 90, "Ready")
    assert all(condition(pod, keys.WAKEABLE_CONDITION) for pod in found.values())
    assert {p["status"]["containerStatuses"][0]["restartCount"] for p in found.values()} == {0}
    first_words = [pods.log(name, timestamps=True).split(" ", 1)[0] for name in names]
    assert first_words == sorted(first_words)
    for name in names:
        assert models.ask(name).intact


def running_container(pod: dict[str, Any]) -> bool:
    """Whether its container runs: kyb-init is at the gate, or behind it."""
    return any("running" in one["state"] for one in pod["status"].get("containerStatuses", []))


def states(cluster: Cluster, node: str) -> dict[str, str]:
    """Seat states by pod, as the GPUNode status tells them."""
    status = cluster.api().get(f"{keys.GPU_NODES_PATH}/{node}")["status"]
    return {seat["pod"]: seat["state"] for seat in status["seats"]}


@pytest.mark.always
def test_two_pods_of_one_group_alternate_with_their_state_intact(
    pods: Pods, models: Models
) -> None:
    names = ("left", "right")
    for name in names:
        pods.create(SeatPod(name, node="n1", annotations={keys.REQUIRE_GROUP: "G1"}))
    pods.wait(names, ready, 60, "Ready")
    first = {name: models.ask(name).counter for name in names}
    for round_ in range(1, 6):
        for name in names:
            answer = models.ask(name)
            assert answer.status == 200
            assert answer.intact
            assert answer.counter == first[name] + round_


def test_a_2x_seat_and_two_1x_seats_take_turns_on_overlapping_groups(
    pods: Pods, models: Models
) -> None:
    groups = {"wide": (2, "G01"), "a": (1, "G0"), "b": (1, "G1")}
    for name, (gpus, group) in groups.items():
        annotations = {keys.REQUIRE_GROUP: group}
        pods.create(SeatPod(name, gpus=gpus, node="n2", annotations=annotations))
    pods.wait(groups, ready, 90, "Ready")
    for _ in range(3):
        for name in groups:
            answer = models.ask(name)
            assert answer.status == 200
            assert answer.intact


def test_a_parked_pod_is_deleted_at_once(pods: Pods, models: Models) -> None:
    names = ("stays", "goes")
    for name in names:
        pods.create(SeatPod(name, node="n1", annotations={keys.REQUIRE_GROUP: "G2"}))
    pods.wait(names, ready, 60, "Ready")
    models.ask("goes")
    models.ask("stays")
    pods.delete(["goes"], grace=30)
    assert pods.gone(["goes"], 20) < 10
    assert models.ask("stays").intact
