"""A node that leaves the cluster takes its GPUNode out of account, and brings it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from extender.state.nodes import Nodes
from kybernate.errors import NotFoundError, RetryableError
from kybernate.types import NodeName
from tests.unit.extender.objects import gpu_node

if TYPE_CHECKING:
    from extender.state.snapshot import Snapshot

N1 = NodeName("n1")


class Store:
    """GPUNodes as the API server has them; `errors` are raised by the next reads."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {"n1": gpu_node("n1")}
        self.errors: list[Exception] = []

    def read(self, name: str) -> dict[str, Any]:
        if self.errors:
            raise self.errors.pop()
        if name not in self.items:
            raise NotFoundError(name)
        return self.items[name]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def nodes(snapshot: Snapshot, store: Store) -> Nodes:
    return Nodes(snapshot.node_event, store.read)


def known(snapshot: Snapshot) -> bool:
    return snapshot.views([N1])[N1] is not None


def node(uid: str = "first") -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": uid}}


def owned(uid: str = "first") -> dict[str, Any]:
    """A GPUNode that says which Node owns it, as the watch passes it on."""
    whole = gpu_node("n1")
    whole["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}
    ]
    return whole


def test_a_node_that_goes_is_not_placed_on_whatever_its_gpunode_says(
    nodes: Nodes, snapshot: Snapshot
) -> None:
    nodes.gpu_node_event("ADDED", gpu_node("n1"))
    nodes.node_event("ADDED", node())
    assert known(snapshot)
    nodes.node_event("DELETED", node())
    nodes.gpu_node_event("MODIFIED", gpu_node("n1"))
    assert not known(snapshot)


def test_a_node_that_comes_back_is_as_its_gpunode_says(nodes: Nodes, snapshot: Snapshot) -> None:
    nodes.node_event("DELETED", node())
    nodes.node_event("ADDED", node())
    assert known(snapshot)
    nodes.gpu_node_event("DELETED", gpu_node("n1"))
    assert not known(snapshot)


def test_one_that_can_not_be_read_is_read_with_its_next_event(
    nodes: Nodes, snapshot: Snapshot, store: Store
) -> None:
    nodes.node_event("DELETED", node())
    store.errors = [RetryableError("no answer")]
    with pytest.raises(RetryableError):
        nodes.node_event("ADDED", node())
    assert not known(snapshot)
    nodes.node_event("MODIFIED", node())
    assert known(snapshot)


def test_one_that_has_no_gpunode_any_more_gets_another(
    nodes: Nodes, snapshot: Snapshot, store: Store
) -> None:
    nodes.node_event("DELETED", node())
    store.items.clear()
    nodes.node_event("ADDED", node())
    assert not known(snapshot)
    nodes.gpu_node_event("ADDED", gpu_node("n1"))
    assert known(snapshot)


def test_a_node_that_went_before_we_came_is_left_out_once_nodes_are_listed(
    nodes: Nodes, snapshot: Snapshot
) -> None:
    nodes.gpu_node_event("ADDED", owned())
    assert known(snapshot), "as long as Nodes can't be listed, it is believed"
    nodes.listed()
    assert not known(snapshot)
    nodes.gpu_node_event("MODIFIED", owned())
    assert not known(snapshot)


def test_of_a_gpunode_without_an_owner_nobody_knows_whether_its_node_is_gone(
    nodes: Nodes, snapshot: Snapshot
) -> None:
    nodes.gpu_node_event("ADDED", gpu_node("n1"))
    nodes.listed()
    assert known(snapshot)


def test_another_machine_of_the_same_name_is_not_taken_for_the_old_one(
    nodes: Nodes, snapshot: Snapshot
) -> None:
    nodes.node_event("ADDED", node())
    nodes.listed()
    nodes.gpu_node_event("ADDED", owned())
    assert known(snapshot)
    nodes.node_event("DELETED", node())
    nodes.node_event("ADDED", node("second"))
    assert not known(snapshot)
    nodes.gpu_node_event("MODIFIED", owned("second"))
    assert known(snapshot)


def test_a_gpunode_may_be_heard_of_before_its_node(
    nodes: Nodes, snapshot: Snapshot, store: Store
) -> None:
    nodes.listed()
    nodes.gpu_node_event("ADDED", owned())
    assert not known(snapshot)
    store.items["n1"] = owned()
    nodes.node_event("ADDED", node())
    assert known(snapshot)
