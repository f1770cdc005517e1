"""A GPUNode goes with its Node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError
from nodeagent.kube.gpunode import Record

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api
    from tests.cluster import Cluster

pytestmark = pytest.mark.e2e

NODES = "/api/v1/nodes"
LIMIT_S = 30.0


def exists(api: Api, path: str) -> bool:
    try:
        return bool(api.get(path))
    except NotFoundError:
        return False


def test_agents_name_the_node_as_owner(cluster: Cluster) -> None:
    api = cluster.api()
    for node in cluster.nodes:
        uid = api.get(f"{NODES}/{node.name}")["metadata"]["uid"]
        (owner,) = api.get(f"{keys.GPU_NODES_PATH}/{node.name}")["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", node.name, uid)


def test_it_is_taken_away_when_its_node_is_deleted(cluster: Cluster) -> None:
    """A Node without a machine, whose GPUNode is written as an agent does it."""
    api, path = cluster.api(), f"{keys.GPU_NODES_PATH}/ghost"
    record = Record("ghost")
    with pytest.raises(NotFoundError, match="has no Node ghost"):
        record.write(api, {"gpus": []})
    api.post(NODES, {"metadata": {"name": "ghost"}})
    record.write(api, {"gpus": []})
    assert exists(api, path)
    api.delete(f"{NODES}/ghost")
    deadline = time.monotonic() + LIMIT_S
    while exists(api, path):
        assert time.monotonic() < deadline, "the garbage collector leaves it"
        time.sleep(0.1)
