"""Pods in whose place others are made, and how many of those that are gone are remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from extender.state.replaced import Replaced
from tests.unit.extender.objects import pod, read_pod

if TYPE_CHECKING:
    from extender.state.objects import SeatPod
    from tests.unit.extender.conftest import Clock

MOST, WITHIN_S = 20, 60.0


@pytest.fixture
def replaced(clock: Clock) -> Replaced:
    return Replaced(clock, MOST)


def goes(
    name: str, namespace: str = "a", owner: str = "o", kind: str = "ReplicaSet", **status: Any
) -> SeatPod:
    """One that its kubelet has failed, unless its status says otherwise."""
    item = pod(name, node="n1", phase="Failed")
    item["metadata"]["namespace"] = namespace
    reference = {"controller": True, "kind": kind, "uid": owner}
    item["metadata"]["ownerReferences"] = [reference]
    item["status"] |= {"reason": "UnexpectedAdmissionError", **status}
    return read_pod(item)


def names(replaced: Replaced, one: SeatPod) -> list[str]:
    found = replaced.of(one.ref.namespace, one.succession, WITHIN_S)
    return [pod.ref.name for pod in found]


def fails(replaced: Replaced, one: SeatPod) -> SeatPod:
    """It fails, and its controller deletes it."""
    replaced.take("MODIFIED", one)
    replaced.take("DELETED", one)
    return one


def test_a_tenants_failed_pods_push_out_no_others(replaced: Replaced) -> None:
    mine = fails(replaced, goes("q"))
    for number in range(3 * MOST):
        fails(replaced, goes(f"p{number}", "b", f"o{number % 3}"))
    assert names(replaced, mine) == ["q"]
    last = goes("p", "b", "o2")
    assert names(replaced, last)[-1] == f"p{3 * MOST - 1}"
    kept = sum(len(names(replaced, goes("p", "b", f"o{one}"))) for one in range(3))
    assert kept == MOST - 1


def test_namespaces_that_have_many_have_equally_many(replaced: Replaced) -> None:
    for number in range(MOST):
        fails(replaced, goes(f"p{number}", "b"))
    for number in range(MOST):
        fails(replaced, goes(f"p{number}", "c"))
    half = MOST // 2
    assert names(replaced, goes("p", "b")) == [f"p{one}" for one in range(half, MOST)]
    assert names(replaced, goes("p", "c")) == [f"p{one}" for one in range(half, MOST)]


def test_each_succession_has_its_own(replaced: Replaced, clock: Clock) -> None:
    first, other = fails(replaced, goes("q")), fails(replaced, goes("r", owner="other"))
    assert (names(replaced, first), names(replaced, other)) == (["q"], ["r"])
    clock.now += WITHIN_S + 1
    assert names(replaced, first) == []


def test_who_has_had_a_successor_that_somebody_deleted_is_forgotten(replaced: Replaced) -> None:
    first, other = (fails(replaced, goes(name, kind="StatefulSet")) for name in ("q", "r"))
    waits = goes("q", kind="StatefulSet", phase="Pending")
    replaced.take("DELETED", replace(waits, node=None))
    assert replaced.gone("a", first.succession, WITHIN_S) == (first.ref.uid,)
    replaced.take("DELETED", goes("q", kind="StatefulSet", phase="Running", reason=""))
    assert replaced.gone("a", first.succession, WITHIN_S) == ()
    assert replaced.gone("a", other.succession, WITHIN_S) == (other.ref.uid,)
    for number in range(2 * MOST):
        fails(replaced, goes(f"p{number}", "b"))
    assert len(names(replaced, goes("p", "b"))) == MOST - 1
