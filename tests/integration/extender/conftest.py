"""The extender as a process of its own, with its own account, against a real API server."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from kybernate.errors import ConflictError
from tests.integration.extender.upstream import Scheduler
from tests.kit.pods import take_away
from tests.kit.servers.extenderserver import NAMESPACE, Extender, Extenders, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.cluster.given import GivenCluster


@pytest.fixture(scope="session")
def admin(any_cluster: Cluster | GivenCluster) -> Api:
    """The administrator's API, with what pods need where no controllers run."""
    api = any_cluster.api()
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    with suppress(ConflictError):
        api.post(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
    return api


@pytest.fixture(scope="session")
def extenders(
    any_cluster: Cluster | GivenCluster, admin: Api, tmp_path_factory: pytest.TempPathFactory
) -> Extenders:
    return Extenders(any_cluster, admin, tmp_path_factory.mktemp("extender"))


@pytest.fixture(scope="session")
def extender(extenders: Extenders) -> Iterator[Extender]:
    """An extender that runs all along; who stops it starts it again."""
    running = extenders.make("alone", GANG_HOLD_S="5")
    running.start()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def scheduler(
    control_plane: Cluster, extender: Extender, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scheduler]:
    """A real scheduler in front of that extender. Nodes that tests make are all there are."""
    running = Scheduler(control_plane, extender, tmp_path_factory.mktemp("scheduler"))
    # The lease is for those that stand for it.
    running.config["leaderElection"] = {"leaderElect": False}
    running.start()
    yield running
    running.stop()


@pytest.fixture
def world(admin: Api) -> Iterator[World]:
    """Pods that other folders' tests left on the same API server would take these tests' seats."""
    take_away(admin, "/api/v1/pods", but=NAMESPACE)
    made = World(admin)
    yield made
    made.clear()
