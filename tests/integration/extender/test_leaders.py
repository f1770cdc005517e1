"""Both ways to have several extenders, on a real API server: one binds, and knows all before."""

from __future__ import annotations

import itertools
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import requests

from extender.lead.endpoints import SLICES
from kybernate.errors import ConflictError, NotFoundError
from kybernate.runtime.lead import LEASES
from tests.integration.extender.relay import Relay
from tests.integration.extender.upstream import Scheduler, node_of, offer
from tests.kit.servers.extenderserver import LIMIT_S, TWO, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.kit.servers.extenderserver import Extender, Extenders, World

pytestmark = pytest.mark.integration

LEASE_S = 3
SETTINGS = {"LEASE": "kyb-extender", "LEASE_S": str(LEASE_S), "API_TIMEOUT_S": "1"}
NUMBERS = itertools.count()


@pytest.fixture
def lease(admin: Api) -> Iterator[str]:
    """The Lease, nobody's; as config/ has it."""
    path = f"{LEASES}/kyb-extender"
    with suppress(NotFoundError):
        admin.delete(path)
    admin.post(LEASES, {"metadata": {"name": "kyb-extender"}})
    yield path
    admin.delete(path)


@pytest.fixture
def pair(lease: str, extenders: Extenders) -> Iterator[tuple[Extender, Extender]]:
    """Two replicas that run, the first of which leads."""
    made = []
    for _ in range(2):
        one = extenders.make(f"replica-{next(NUMBERS)}", **SETTINGS)
        # An address as a pod has it: endpoints on loopback are refused.
        one.set(ADVERTISE=f"10.9.8.7:{one.port}")
        one.start()
        made.append(one)
        until(lambda: any(leads(one) for one in made), "one leads")
    yield made[0], made[1]
    for one in made:
        one.stop()


def leads(extender: Extender) -> bool:
    with suppress(requests.ConnectionError):
        return "kyb_extender_leading 1.0" in extender.probe("metrics").text
    return False


def refused(extender: Extender, pod: dict[str, Any], node: str) -> requests.Response:
    answer = extender.post("v1/filter", {"Pod": pod, "NodeNames": [node]})
    assert answer.status_code == 503
    return answer


def one_bound(leader: Extender, world: World) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A node, the pod that has its only seat of two GPUs, and one that would like to."""
    node, first, second = world.node(), world.pod(TWO), world.pod(TWO)
    until(lambda: node in leader.filter(first, node)["NodeNames"], "the GPUNode is seen")
    assert leader.bind(first, node) == ""
    return node, first, second


def test_only_the_leader_answers_and_a_standby_closes(
    pair: tuple[Extender, Extender], world: World
) -> None:
    leader, standby = pair
    pod, node = world.pod(), world.node()
    until(lambda: node in leader.filter(pod, node)["NodeNames"], "the GPUNode is seen")
    answer = refused(standby, pod, node)
    assert answer.headers["Connection"] == "close"
    assert "this replica does not lead; " in answer.json()["Error"]
    assert standby.probe("readyz").ok, "it is ready to take over"
    body = {"Pod": pod, "NodeNames": [node]}
    with leader.session() as session:
        kept = session.post(f"https://127.0.0.1:{leader.port}/v1/filter", json=body, timeout=5)
    assert kept.headers["Connection"] == "keep-alive"


def test_the_service_leads_to_the_leader(pair: tuple[Extender, Extender], admin: Api) -> None:
    leader, standby = pair

    def port() -> int:
        found = admin.get(f"{SLICES}/kyb-extender")
        (endpoint,) = found["endpoints"]
        assert endpoint["addresses"] == ["10.9.8.7"]
        assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "kyb-extender"
        return int(found["ports"][0]["port"])

    assert port() == leader.port
    leader.stop()
    until(lambda: port() == standby.port, "the other one is told of")
    leader.start()


def test_a_leader_that_ends_hands_over_at_once(
    pair: tuple[Extender, Extender], lease: str, admin: Api, world: World
) -> None:
    leader, standby = pair
    node, _, second = one_bound(leader, world)
    holder = admin.get(lease)["spec"]["holderIdentity"]
    leader.stop()
    assert admin.get(lease)["spec"]["holderIdentity"] != holder, "the lease would have to run out"
    until(lambda: leads(standby), "the other one leads")
    assert "are taken" in standby.filter(second, node)["FailedNodes"][node]
    leader.start()


def test_a_leader_that_is_killed_is_followed_when_its_lease_has_ended(
    pair: tuple[Extender, Extender], world: World
) -> None:
    leader, standby = pair
    node, first, second = one_bound(leader, world)
    leader.stop(kill=True)
    refused(standby, second, node)
    until(lambda: leads(standby), "the other one leads")
    # What the last one bound, it knows from its first answer on.
    assert "are taken" in standby.filter(second, node)["FailedNodes"][node]
    assert "are taken" in standby.bind(second, node)
    assert standby.bind(first, node) == ""
    leader.start()


def test_a_leader_that_is_cut_off_stops_before_another_one_begins(
    control_plane: Cluster, extenders: Extenders, lease: str, world: World
) -> None:
    relay = Relay(control_plane.ports.apiserver)
    settings = {**SETTINGS}
    distant = extenders.make(f"cut-{next(NUMBERS)}", relay.url, **settings)
    other = extenders.make(f"near-{next(NUMBERS)}", **settings)
    distant.start()
    try:
        until(lambda: leads(distant), "it leads")
        other.start()
        relay.cut()
        deadline = time.monotonic() + LIMIT_S
        while not leads(other):
            assert time.monotonic() < deadline
            both = leads(distant) and leads(other)
            assert not both
        assert not leads(distant)
        pod, node = world.pod(), world.node()
        assert "does not lead" in refused(distant, pod, node).json()["Error"]
        relay.heal()
        until(lambda: node in other.filter(pod, node)["NodeNames"], "the GPUNode is seen")
        assert other.bind(pod, node) == ""
    finally:
        relay.heal()
        distant.stop()
        other.stop()
        relay.close()


def test_beside_a_scheduler_that_does_not_lead_nothing_is_bound(
    extenders: Extenders, world: World, admin: Api
) -> None:
    """Two pods with a scheduler each: what counts is whose scheduler holds the lease."""
    name = "kybernate-scheduler"
    path = f"{LEASES}/{name}"
    holder = {"leaseDurationSeconds": 15, "holderIdentity": "another-pod_1"}
    with suppress(ConflictError):
        admin.post(LEASES, {"metadata": {"name": name}})
    before = admin.patch(path, {"spec": holder})
    one = extenders.make(f"beside-{next(NUMBERS)}", SCHEDULER_LEASE=name)
    one.start()
    try:
        pod, node = world.pod(), world.node()
        until(lambda: node in one.filter(pod, node)["NodeNames"], "the GPUNode is seen")
        assert "another-pod_1 holds the lease kybernate-scheduler" in one.bind(pod, node)
        assert node_of(world, pod) is None
        mine = {"holderIdentity": f"{socket.gethostname()}_2"}
        admin.patch(path, {"spec": mine})
        assert one.bind(pod, node) == ""
    finally:
        one.stop()
        if before:
            admin.delete(path)


def test_a_scheduler_behind_the_service_follows_the_leader(
    control_plane: Cluster,
    pair: tuple[Extender, Extender],
    world: World,
    tmp_path: Path,
    admin: Api,
) -> None:
    """As docs/how-to/install/own-scheduler.md has it for a scheduler of one's own: by mutual TLS
    under the Service's name, to the one endpoint that the leader wrote; here a relay stands for
    the Service."""

    def port() -> int:
        return int(admin.get(f"{SLICES}/kyb-extender")["ports"][0]["port"])

    leader, standby = pair
    service = Relay(until(port, "the leader told where it is"))
    scheduler = Scheduler(control_plane, leader, tmp_path)
    (one,) = scheduler.config["extenders"]
    one["urlPrefix"] = f"{service.url}/v1"
    one["tlsConfig"]["serverName"] = "kyb-extender.kyb-system.svc"
    scheduler.config["leaderElection"] = {"leaderElect": False}
    ours = scheduler.alone("behind-the-service")
    scheduler.start()
    try:
        node = offer(world, world.node(seats=4), x1="8", x2="1")
        first = [world.pod(scheduler=ours) for _ in range(4)]
        until(lambda: all(node_of(world, pod) for pod in first), "the first pods are bound")
        leader.stop(kill=True)
        service.cut()
        second = [world.pod(scheduler=ours) for _ in range(4)]
        until(lambda: port() == standby.port, "the other one leads")
        service.lead_to(standby.port)
        until(lambda: all(node_of(world, pod) for pod in second), "the other one continues")
        groups = Counter(world.group(pod) for pod in (*first, *second))
        assert groups == {"G0": 4, "G1": 4}
        assert {node_of(world, pod) for pod in (*first, *second)} == {node}
    finally:
        scheduler.stop()
        service.close()
        leader.start()


def test_two_pods_with_scheduler_and_extender_place_each_pod_once(
    control_plane: Cluster, extenders: Extenders, world: World, tmp_path: Path, admin: Api
) -> None:
    """The default way with two replicas: the one that leads is killed, the other goes on."""
    with suppress(NotFoundError):
        admin.delete(f"{LEASES}/kybernate-scheduler")
    teams = []
    for number in range(2):
        name = f"team-{next(NUMBERS)}"
        extender = extenders.make(name, SCHEDULER_LEASE="kybernate-scheduler")
        extender.start()
        folder = tmp_path / str(number)
        folder.mkdir()
        scheduler = Scheduler(control_plane, extender, folder)
        election = {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"}
        scheduler.config["leaderElection"] |= election
        ours = scheduler.alone("one-of-two")
        teams.append((scheduler, extender))
    try:
        node = offer(world, world.node(seats=2), x1="4", x2="1")
        for scheduler, _ in teams:
            scheduler.start()
        first = [world.pod(scheduler=ours) for _ in range(2)]
        until(lambda: all(node_of(world, pod) for pod in first), "the first pods are bound")
        holder = admin.get(f"{LEASES}/kybernate-scheduler")["spec"]["holderIdentity"]
        for scheduler, extender in teams:
            if holder in scheduler.log:
                scheduler.stop(kill=True)
                extender.stop(kill=True)
        second = [world.pod(scheduler=ours) for _ in range(2)]
        until(lambda: all(node_of(world, pod) for pod in second), "the other one continues")
        groups = sorted(str(world.group(pod)) for pod in (*first, *second))
        assert groups == ["G0", "G0", "G1", "G1"]
        assert node_of(world, first[0]) == node
    finally:
        for scheduler, extender in teams:
            scheduler.stop()
            extender.stop(kill=True)
