"""When a GPU is ill, and when it is well again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.doctor.health import (
    APPLICATION_XIDS,
    FATAL_XIDS,
    SETTLE_UNTOLD,
    Checkup,
    EventKind,
    GpuEvent,
    Health,
    Recovery,
    fatal,
)
from kybernate.types import GpuUuid

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
GONE = Checkup(gone="nvmlDeviceGetMemoryInfo failed: GPU is lost (15)")
DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "node" / "device-plugin.md"


def xid(number: int, gpu: GpuUuid | None = A) -> GpuEvent:
    return GpuEvent(gpu, EventKind.XID, number)


def test_a_gpu_that_does_not_answer_is_ill_at_once_and_alone() -> None:
    health = Health(4)
    health.checked(A, GONE, 0)
    health.checked(B, Checkup(), 0)
    assert "GPU is lost" in health.trouble(A)
    assert health.trouble(B) == ""


def test_it_is_well_after_it_was_found_well_for_long_enough() -> None:
    health = Health(4)
    health.checked(A, GONE, 0)
    for now in (10.0, 12.0, 13.9):
        health.checked(A, Checkup(), now)
        assert health.trouble(A)
    health.checked(A, Checkup(), 14.0)
    assert health.trouble(A) == ""


def test_a_gpu_that_comes_and_goes_stays_ill() -> None:
    health = Health(4)
    for now in range(0, 60, 3):
        health.checked(A, GONE if now % 2 else Checkup(), float(now))
        assert health.trouble(A) or now == 0


@pytest.mark.parametrize("number", [48, 62, 64, 79, 95, 119, 9999])
def test_a_fatal_xid_makes_ill_before_anybody_asks(number: int) -> None:
    health = Health(4)
    health.checked(A, Checkup(), 0)
    assert health.told(xid(number))
    assert f"Xid {number}" in health.trouble(A)
    health.checked(A, Checkup(), 1)
    assert health.trouble(A)
    health.checked(A, Checkup(), 5)
    assert health.trouble(A) == ""


@pytest.mark.parametrize("number", [8, 13, 31, 43, 45, 63, 68, 94, 154])
def test_the_xid_of_a_program_is_no_illness(number: int) -> None:
    health = Health(4)
    assert not health.told(xid(number))
    assert health.trouble(A) == ""


def test_another_fatal_xid_begins_the_wait_anew() -> None:
    health = Health(4)
    health.told(xid(79))
    health.checked(A, Checkup(), 0)
    health.told(xid(79))
    health.checked(A, Checkup(), 3)
    health.checked(A, Checkup(), 5)
    assert health.trouble(A)
    health.checked(A, Checkup(), 7)
    assert health.trouble(A) == ""


@pytest.mark.parametrize(
    "kind",
    [
        EventKind.DOUBLE_BIT_ECC,
        EventKind.RETIREMENT_FAILED,
        EventKind.FATAL_POISON,
        EventKind.UNAVAILABLE,
    ],
)
def test_memory_that_fails_makes_ill(kind: EventKind) -> None:
    health = Health(4)
    assert health.told(GpuEvent(A, kind))
    assert health.trouble(A)


def test_an_event_of_no_gpu_makes_nobody_ill() -> None:
    health = Health(4)
    assert not health.told(xid(79, None))
    assert not health.told(GpuEvent(A, EventKind.LOOK))


@pytest.mark.parametrize("action", [Recovery.RESET, Recovery.REBOOT, Recovery.BUS_RESET, 99])
def test_a_gpu_that_needs_more_than_time_stays_ill_until_it_had_it(action: int) -> None:
    health = Health(4)
    for now in range(100):
        health.checked(A, Checkup(recovery=action), float(now))
        assert "recovery action" in health.trouble(A)
    health.checked(A, Checkup(), 100)
    health.checked(A, Checkup(), 104)
    assert health.trouble(A) == ""


@pytest.mark.parametrize("action", [Recovery.DRAIN_P2P, Recovery.DRAIN_AND_RESET])
def test_what_can_wait_for_leisure_takes_no_seat(action: int) -> None:
    health = Health(4)
    health.checked(A, Checkup(recovery=action), 0)
    assert health.trouble(A) == ""


def test_where_the_driver_tells_no_action_a_fatal_xid_lasts_longer() -> None:
    health = Health(4)
    health.told(xid(119))
    silent = Checkup(recovery=None)
    health.checked(A, silent, 0)
    health.checked(A, silent, SETTLE_UNTOLD - 1)
    assert health.trouble(A)
    health.checked(A, silent, SETTLE_UNTOLD)
    assert health.trouble(A) == ""


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (Checkup(remap_failed=True), "exchanged"),
        (Checkup(mig=True), "MIG"),
        (Checkup(mps=True), "MPS"),
    ],
)
def test_each_trouble_says_what_to_do(found: Checkup, word: str) -> None:
    health = Health(4)
    health.checked(A, found, 0)
    assert word in health.trouble(A)


def test_what_was_known_at_the_last_start_holds_until_it_is_refuted() -> None:
    health = Health(4)
    health.recall({A: "it is lost"})
    assert health.trouble(A) == "it is lost"
    health.checked(A, Checkup(), 0)
    health.checked(A, Checkup(), 4)
    assert health.trouble(A) == ""


STEPS = st.lists(
    st.one_of(
        st.sampled_from([Checkup(), GONE, Checkup(recovery=1), Checkup(recovery=None)]),
        st.sampled_from([xid(79), xid(31), GpuEvent(A, EventKind.LOOK)]),
    ),
    max_size=30,
)


@given(STEPS)
def test_no_illness_outlasts_a_minute_of_good_checkups(steps: list[Checkup | GpuEvent]) -> None:
    health, now = Health(4), 0.0
    for step in steps:
        now += 1
        if isinstance(step, GpuEvent):
            health.told(step)
            assert health.trouble(A) or not fatal(step)
        else:
            health.checked(A, step, now)
            assert health.trouble(A) or not step.trouble()
    for _ in range(6):
        health.checked(A, Checkup(), now := now + 1)
    assert health.trouble(A) == ""


def test_no_xid_is_both() -> None:
    assert not APPLICATION_XIDS.keys() & FATAL_XIDS.keys()


def test_the_document_lists_the_same_xids() -> None:
    rows = re.findall(r"^\| ([\d, -]+) \|.*\| (ill|well) \|$", DOCUMENT.read_text(), re.MULTILINE)
    told: dict[str, set[int]] = {"ill": set(), "well": set()}
    for numbers, state in rows:
        for part in numbers.split(","):
            first, _, last = part.strip().partition("-")
            told[state] |= set(range(int(first), int(last or first) + 1))
    assert told["well"] == set(APPLICATION_XIDS)
    assert told["ill"] == set(FATAL_XIDS)
