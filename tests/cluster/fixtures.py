"""pytest fixtures; a conftest.py imports those it wants:

    from tests.cluster.fixtures import cluster, control_plane  # noqa: F401

Each is made once per session, by each worker of pytest-xdist. KEEP=1 leaves them up; `make down`
takes them away.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from .cluster import Cluster, running
from .given import GivenCluster, given_kubeconfig
from .spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL_PLANE = ClusterSpec(
    name="kybapi", control_plane_only=True, controller_manager=False, services=frozenset()
)
"""etcd and the API server with config/ applied; tests start the services that they look at."""


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """A real API server, without nodes and without our services (about 5 s)."""
    with running(of_worker(CONTROL_PLANE), print) as up:
        yield up


def of_worker(spec: ClusterSpec) -> ClusterSpec:
    """The same by a name of this worker's own: others may have one of the kind at the time."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return replace(spec, name=f"{spec.name}{worker}")


@pytest.fixture(scope="session")
def any_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Cluster | GivenCluster:
    """The cluster of $KYB_KUBECONFIG if it is set, else `control_plane`."""
    given = given_kubeconfig()
    if given is not None:
        return GivenCluster(given, tmp_path_factory.mktemp("accounts"))
    found: Cluster = request.getfixturevalue("control_plane")
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The whole cluster: two nodes with four simulated GPUs each, and all our services."""
    with running(ClusterSpec(), print) as up:
        yield up
