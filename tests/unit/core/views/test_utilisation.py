"""Sums that are kept up are those that a look at all nodes gives."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.ledger.ledger import Claim, Ledger, NodeSeats
from kybernate.core.views.utilisation import Figures, Used, Utilisation
from kybernate.errors import ConflictError, NotFoundError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, PodRef, PodUid

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"
GIB = 1 << 30
NODES = tuple(NodeName(f"n{number}") for number in range(3))


def node(name: NodeName, product: str = "H100") -> NodeSeats:
    """Two GPUs of 80 GiB: two seats on each, one on both."""
    a, b = (GpuUuid(f"{name}-{at}") for at in "ab")
    groups = (
        Group(GroupName("G0"), ONE, (a,), 2),
        Group(GroupName("G1"), ONE, (b,), 2),
        Group(GroupName("G01"), TWO, (a, b), 1),
    )
    gpus = (Gpu(a, 0, product, 80 * GIB), Gpu(b, 1, product, 80 * GIB))
    return NodeSeats(name, gpus, {}, groups)


def claim(number: int, on: NodeName, group: str, vram: int | None = None) -> Claim:
    pod = PodRef("default", f"p{number}", PodUid(f"u{number}"))
    return Claim(pod, on, GroupName(group), TWO if group == "G01" else ONE, vram)


def look(ledger: Ledger) -> Figures:
    used = Utilisation(ledger, ledger.node)
    assert used.refresh() is False
    return used.figures()


def test_seats_and_memory_are_told_by_product() -> None:
    ledger = Ledger()
    ledger.upsert_node(node(NODES[0]))
    ledger.upsert_node(node(NODES[1], "A100"))
    ledger.upsert_claim(claim(1, NODES[0], "G0", 30 * GIB))
    ledger.upsert_claim(claim(2, NODES[0], "G01"))
    found = look(ledger)
    assert found.seats == {
        (ONE, "H100"): Used(4, 1),
        (TWO, "H100"): Used(1, 1),
        (ONE, "A100"): Used(4, 0),
        (TWO, "A100"): Used(1, 0),
    }
    assert found.memory == {"H100": Used(160 * GIB, 190 * GIB), "A100": Used(160 * GIB, 0)}


def test_what_no_group_with_a_free_seat_has_is_fragmented() -> None:
    ledger = Ledger()
    ledger.upsert_node(node(NODES[0]))
    assert look(ledger).fragmented_gpus == 0
    ledger.upsert_claim(claim(1, NODES[0], "G01"))
    # Each GPU has two of three seats left; pods hold pairs only, and no pair is left.
    found = look(ledger)
    assert found.free_gpus == pytest.approx(4 / 3, abs=0.01)
    assert found.fragmented_gpus == found.free_gpus
    # One of two pods is a single now, and a single could use all that is left.
    ledger.upsert_claim(claim(2, NODES[0], "G0"))
    found = look(ledger)
    assert found.fragmented_gpus == pytest.approx(found.free_gpus / 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["node", "gone", "bound", "reserved", "removed"]),
            st.integers(0, 5),
            st.sampled_from(NODES),
            st.sampled_from(["G0", "G1", "G01"]),
        ),
        max_size=25,
    )
)
def test_sums_are_kept_up(events: list[tuple[str, int, NodeName, str]]) -> None:
    ledger = Ledger()
    kept = Utilisation(ledger, ledger.node)
    for what, number, name, group in events:
        if what == "node":
            ledger.upsert_node(node(name, f"product {number}"))
        elif what == "gone":
            ledger.remove_node(name)
        elif what == "bound":
            ledger.upsert_claim(claim(number, name, group, number * GIB))
        elif what == "reserved":
            with suppress(ConflictError, NotFoundError):
                ledger.reserve(claim(number, name, group), 0, 10)
        else:
            ledger.remove_claim(PodUid(f"u{number}"))
        while kept.refresh(most=1):
            pass
        assert kept.figures() == look(ledger)
