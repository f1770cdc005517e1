"""Reading pods and GPUNodes."""

from __future__ import annotations

import pytest

from kybernate.api.nodeseats import read_gpu_node
from kybernate.api.podnotes import parse_link
from kybernate.core.ledger.ledger import Claim
from kybernate.core.placement import Demand
from kybernate.types import Link, PodRef
from tests.unit.extender.objects import GIB, ONE, TWO, gpu_node, pod, read_pod


def test_reads_what_a_pod_asks_for() -> None:
    notes = {
        "kyb.ai/vram": "24Gi",
        "kyb.ai/gpu-product": "H100 | A100 80GB",
        "kyb.ai/prefer-group": "G1",
        "kyb.ai/require-group": "G0",
        "nvidia.com/gpu-topology": "nvlink",
    }
    read = read_pod(pod(notes=notes, limits={TWO: "1", "cpu": "3"}))
    assert read.demand == Demand(TWO, 24 * GIB, ("H100", "A100 80GB"), "G1", "G0", Link.NVLINK)
    assert read.problem == ""


def test_a_pod_without_a_seat_asks_for_nothing() -> None:
    read = read_pod(pod(limits={"cpu": "1", "nvidia.com/gpu": "1", ONE: "0"}))
    assert (read.resource, read.demand, read.problem) == (None, None, "")
    assert read_pod({}).resource is None


@pytest.mark.parametrize(
    ("limits", "notes", "problem"),
    [
        ({ONE: "2"}, {}, 'kyb.ai/gpu-1x-seat.*must be "1"'),
        ({ONE: "1", TWO: "1"}, {}, "one seat, not several"),
        ({ONE: "1"}, {"kyb.ai/vram": "lots"}, "kyb.ai/vram: 'lots' is not a quantity"),
        (
            {ONE: "1"},
            {"nvidia.com/gpu-topology": "string"},
            "is 'string'; write one of nvlink, pcie-switch",
        ),
    ],
)
def test_what_can_not_be_had_is_a_sentence(
    limits: dict[str, str], notes: dict[str, str], problem: str
) -> None:
    read = read_pod(pod(limits=limits, notes=notes))
    assert read.demand is None
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(read.problem)


def test_a_seat_in_an_init_container_is_a_problem() -> None:
    item = pod()
    item["spec"]["initContainers"] = [{"name": "fetch", "resources": {"limits": {ONE: "1"}}}]
    assert "initContainers[fetch]" in read_pod(item).problem


def test_a_bound_pod_claims_its_group() -> None:
    read = read_pod(pod(node="n1", notes={"kyb.ai/group": "G1", "kyb.ai/vram": "1Gi"}))
    assert read.claim() == Claim(PodRef("default", "p1", "uid-p1"), "n1", "G1", ONE, GIB)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_claims_nothing(phase: str) -> None:
    assert read_pod(pod(node="n1", phase=phase)).claim() is None


def test_a_terminating_pod_keeps_its_claim() -> None:
    item = pod(node="n1", phase="Running")
    item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert read_pod(item).claim() is not None


def test_a_bound_pod_with_a_problem_still_claims_its_seat() -> None:
    claim = read_pod(pod(node="n1", notes={"kyb.ai/vram": "lots"})).claim()
    assert claim is not None
    assert claim.vram is None


@pytest.mark.parametrize("other", ["kyb.ai/policy", "nvidia.com/gpu-topology"])
def test_what_a_seat_takes_stays_whatever_else_can_not_be_read(other: str) -> None:
    """Who holds a seat could else make it as large as its GPU, by a word that nobody reviews."""
    read = read_pod(pod(node="n1", notes={"kyb.ai/vram": "1Gi", other: "bogus"}))
    claim = read.claim()
    assert claim is not None
    assert (read.demand, claim.vram) == (None, GIB)


def test_reads_a_gpu_node() -> None:
    seats = read_gpu_node(gpu_node(), reserve=5)
    assert [(group.name, group.seats) for group in seats.groups] == [
        ("G0", 2),
        ("G1", 2),
        ("G01", 1),
    ]
    assert seats.links[frozenset(seats.groups[2].gpus)] is Link.NVLINK
    assert (seats.park_budget, seats.reserve, seats.not_ready) == (500 * GIB, 5, None)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"metadata": {"name": "n1"}}, "has not reported GPUs yet"),
        (gpu_node(gpus=[{"index": 0}]), "can't be read: KeyError"),
        (gpu_node(groups="G0"), "can't be read"),
        (gpu_node(groups=[{"name": "G0", "resource": ONE, "gpus": [], "seats": "x"}]), "can't be"),
        (
            gpu_node(conditions=[{"type": "Ready", "status": "False", "message": "no driver"}]),
            "no d",
        ),
    ],
)
def test_a_node_that_is_not_ready_says_why(item: dict[str, object], reason: str) -> None:
    seats = read_gpu_node(item, 0)
    assert reason in (seats.not_ready or "")
    assert seats.name == "n1"


@pytest.mark.parametrize("link", Link)
def test_every_kind_of_link_is_read_as_it_is_named(link: Link) -> None:
    for text in (link.name, link.name.lower(), link.name.lower().replace("_", "-")):
        assert parse_link(text) is link


def test_an_unknown_kind_of_link_counts_as_the_worst() -> None:
    item = gpu_node(links=[{"a": "x", "b": "y", "kind": "wormhole"}])
    assert set(read_gpu_node(item, 0).links.values()) == {Link.SYSTEM}
