"""Whether the host can take a park: pure arithmetic and its sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.seat.budget import (
    BudgetLimits,
    Candidate,
    HostMemory,
    Lack,
    Load,
    MemoryLevel,
    refusal,
    refusals,
)
from kybernate.types import PodUid

GIB = 1 << 30
SEAT = Candidate(PodUid("a"), 40 * GIB)
HOST = HostMemory(200 * GIB, 100 * GIB, 0.0)
LIMITS = BudgetLimits(park_budget=150 * GIB, reserve=GIB, stalled=10.0)


def level(room, whose="its container's"):
    return MemoryLevel(whose, 50 * GIB, (50 - room) * GIB)


@pytest.mark.parametrize(
    ("seat", "load", "host", "lack", "choice"),
    [
        (SEAT, Load(), HOST, None, ""),
        (Candidate(SEAT.uid, 40 * GIB, (level(40),)), Load(), HOST, None, ""),
        (
            Candidate(SEAT.uid, 40 * GIB, (level(45), level(30, "its pod's"))),
            Load(),
            HOST,
            Lack.CONTAINER,
            "its pod's memory limit of 50.0 GiB leaves 30.0 GiB: raise that limit by 10.0 GiB",
        ),
        (SEAT, Load(parked=110 * GIB), HOST, None, ""),
        (SEAT, Load(parked=111 * GIB), HOST, Lack.BUDGET, "raise park_bytes"),
        (SEAT, Load(underway=59 * GIB), HOST, None, ""),
        (SEAT, Load(underway=60 * GIB), HOST, Lack.HOST, "end another parked seat"),
        (SEAT, Load(), HostMemory(200 * GIB, 100 * GIB, 9.9), None, ""),
        (SEAT, Load(), HostMemory(200 * GIB, 100 * GIB, 10.0), Lack.PRESSURE, "below 10 %"),
        (SEAT, Load(), HostMemory(200 * GIB, 100 * GIB, None), None, ""),
        (Candidate(SEAT.uid, 0, (level(0),)), Load(), HostMemory(1, 0, 99.0), None, ""),
    ],
)
def test_a_park_fits_all_its_limits_or_is_refused_with_a_choice(seat, load, host, lack, choice):
    found = refusal(seat, load, host, LIMITS)
    assert (found.lack if found else None) is lack
    assert choice in (found.sentence if found else "")


def test_a_level_that_is_over_its_limit_has_no_room():
    assert MemoryLevel("its pod's", 10, 20).room == 0


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300), st.integers(0, 60))
def test_more_room_never_hurts(need, available, parked, room):
    seat = Candidate(SEAT.uid, need * GIB, (MemoryLevel("its container's", 60 * GIB, room * GIB),))
    tight = refusals([seat], Load(parked * GIB), HostMemory(1, available * GIB), LIMITS)
    wide = refusals(
        [Candidate(seat.uid, seat.need)],
        Load(parked * GIB // 2),
        HostMemory(1, available * GIB * 2),
        LIMITS,
    )
    assert wide.keys() <= tight.keys()
