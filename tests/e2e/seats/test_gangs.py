"""Gangs on the whole cluster: the webhook's gate, the extender's plan, real kubelets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from kybernate.errors import RefusedError
from tests.kit.pods import SeatPod, group_of, ready

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e


def member(name: str, size: object = 2, gpus: int = 4) -> SeatPod:
    return SeatPod(name, gpus, annotations={keys.GANG: "train", keys.GANG_SIZE: str(size)})


def test_a_gang_over_both_nodes_starts_once_it_is_whole(cluster: Cluster, pods: Pods) -> None:
    first = pods.create(member("rank-0"))
    assert first["spec"]["schedulingGates"] == [{"name": keys.GANG_GATE}]
    other = SeatPod("alone", 4, node="n1")
    pods.create(other)
    pods.wait([other.name], ready, 60, "Ready")
    assert pods.get("rank-0")["spec"]["schedulingGates"]
    pods.create(member("rank-1"))
    found = pods.wait(["rank-0", "rank-1"], ready, 90, "Ready")
    assert {pod["spec"]["nodeName"] for pod in found.values()} == {"n1", "n2"}
    assert {group_of(pod) for pod in found.values()} == {"G0123"}


def test_a_gang_on_one_node_gets_gpus_apart(cluster: Cluster, pods: Pods) -> None:
    names = ["rank-0", "rank-1", "rank-2"]
    for name in names:
        pods.create(member(name, size=3, gpus=1))
    found = pods.wait(names, ready, 60, "Ready")
    assert len({pod["spec"]["nodeName"] for pod in found.values()}) == 1
    assert len({group_of(pod) for pod in found.values()}) == 3


@pytest.mark.parametrize("size", ["two", "0", "257"])
def test_an_odd_size_is_refused_in_words(cluster: Cluster, pods: Pods, size: str) -> None:
    with pytest.raises(RefusedError, match=r"gang-size: .* is no whole number from 1 to 256"):
        pods.create(member("rank-0", size=size))
