"""One cluster for all e2e tests; each test leaves it without pods."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.spec import TIB
from tests.kit.clients.models import Models
from tests.kit.pods import Pods, SeatPod, ready
from tests.simgpu import read_log, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

SEATS = {
    "profiles": [
        {"name": "1x", "resource": "kyb.ai/gpu-1x-seat", "groupSize": 1, "seatsPerGroup": 4},
        {"name": "2x", "resource": "kyb.ai/gpu-2x-seat", "groupSize": 2, "seatsPerGroup": 3},
        {"name": "4x", "resource": "kyb.ai/gpu-4x-seat", "groupSize": 4, "seatsPerGroup": 2},
    ]
}

SPEC = ClusterSpec(seats=SEATS, host_memory=4 * TIB, node_pods=True)
"""Agent and plugin run as config/ has them on any cluster."""

FIGURES: list[str] = []


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes with four simulated GPUs each, all profiles, all services."""
    started = time.monotonic()
    with running(SPEC, print) as up:
        _first_seat(up, started)
        yield up


def _first_seat(up: Cluster, started: float) -> None:
    pods = Pods(up.api())
    pods.create(SeatPod("first"))
    pods.wait(["first"], ready, 60, "Ready")
    seconds = time.monotonic() - started
    FIGURES.append(f"from nothing to a pod with a seat Ready: {seconds:.1f} s")


@pytest.fixture(scope="session")
def figures() -> list[str]:
    """Lines for the session's summary."""
    return FIGURES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures are told, and decide nothing."""
    for line in FIGURES:
        terminalreporter.write_line(line)


@contextmanager
def emptied(cluster: Cluster) -> Iterator[Pods]:
    """The default namespace, empty before and after."""
    found = Pods(cluster.api())
    _empty(found)
    yield found
    _empty(found)


def _empty(pods: Pods) -> None:
    names = list(pods.all())
    pods.delete(names, grace=0)
    pods.gone(names, 60)


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    """The default namespace, empty before and after, with the driver as witness."""
    began = time.monotonic_ns()
    with emptied(cluster) as found:
        yield found
    for node in cluster.nodes:
        broken = violations(read_log(node.simgpu_root))
        assert not [one for one in broken if one.at_ns >= began]


@pytest.fixture
def models(cluster: Cluster) -> Iterator[Models]:
    """A client of the proxy."""
    client = Models(cluster.proxy_url)
    yield client
    client.close()
