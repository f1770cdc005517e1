"""Statuses of GPUNodes, of any content that their models can have."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kybernate.api import gpunodes
from kybernate.core.swap.activity import HOURS
from kybernate.types import Tier

WORD = st.text("abcXYZ019", min_size=1, max_size=8)
AMOUNT = st.integers(0, 1 << 50)
COUNT = st.integers(0, 100)
SHARE = st.integers(-1, 1000)
RATE = st.floats(-1, 1e6, allow_nan=False)
TIME = st.just("2026-01-02T03:04:05Z")


def some(*kinds: Any) -> Any:
    """A tuple with one value of each kind."""
    return st.lists(st.one_of(*kinds), max_size=3).map(tuple)


UUIDS = ("GPU-0", "GPU-1", "GPU-2")
CONDITIONS = st.builds(
    gpunodes.Condition,
    WORD,
    st.sampled_from(["True", "False"]),
    st.just("SeatsAvailable"),
    st.text(max_size=9),
    TIME,
    st.none() | COUNT,
)
GPUS = st.lists(
    st.builds(gpunodes.GpuRow, COUNT, st.sampled_from(UUIDS), WORD, AMOUNT, st.booleans(), SHARE),
    max_size=3,
    unique_by=lambda gpu: gpu.uuid,
).map(tuple)
LINKS = some(
    st.builds(
        gpunodes.LinkRow, st.just("GPU-0"), st.just("GPU-1"), st.sampled_from(["nvlink", "pcie"])
    )
)
GROUPS = st.lists(
    st.builds(
        gpunodes.GroupRow,
        WORD,
        st.just("kyb.ai/gpu-1x-seat"),
        st.sampled_from(UUIDS).map(lambda one: (one,)),
        COUNT,
        st.integers(1, 4),
    ),
    max_size=3,
    unique_by=lambda group: group.name,
).map(tuple)
ACTIVITY = st.builds(
    gpunodes.Activity,
    st.lists(SHARE, min_size=HOURS, max_size=HOURS).map(tuple),
    st.lists(RATE, min_size=HOURS, max_size=HOURS).map(tuple),
    st.integers(0, 1000),
    st.floats(0, 1e6, allow_nan=False),
)
SEATS = st.lists(
    st.builds(
        gpunodes.SeatRow,
        *(WORD, WORD, WORD, WORD, WORD),
        st.sampled_from(["active", "parked"]),
        tier=st.none() | st.sampled_from([tier.value for tier in Tier]),
        saved_bytes=st.none() | AMOUNT,
        copied_bytes=st.none() | AMOUNT,
        held_bytes=st.none() | AMOUNT,
        model=WORD,
        reason=st.text(max_size=9),
        since=st.none() | TIME,
        requests=COUNT,
        active_seconds=st.floats(0, 1e9),
        wakes=COUNT,
        last_wake_ms=st.floats(0, 1e9),
        activity=st.none() | ACTIVITY,
        operation=WORD,
        movable=st.booleans(),
        movable_reason=st.text(max_size=9),
    ),
    max_size=2,
    unique_by=lambda seat: seat.uid,
).map(tuple)
SAVED = st.lists(
    st.builds(gpunodes.ArtifactRow, WORD, WORD, st.sampled_from(["nvme", "object"]), AMOUNT),
    max_size=3,
    unique_by=lambda row: (row.artifact, row.tier),
).map(tuple)
USAGE = st.lists(
    st.builds(
        gpunodes.UseRow,
        WORD,
        st.builds(gpunodes.Use, TIME, st.floats(0, 1e9), st.floats(0, 1e9), COUNT, AMOUNT),
    ),
    max_size=2,
    unique_by=lambda row: row.namespace,
).map(tuple)
STATUSES = st.builds(
    gpunodes.Status,
    observed_generation=COUNT,
    conditions=st.lists(CONDITIONS, max_size=2, unique_by=lambda one: one.type).map(tuple),
    agent=st.none() | st.builds(gpunodes.AgentAddress, st.just("10.0.0.1:9443"), WORD),
    driver=st.none() | st.builds(gpunodes.Driver, WORD, WORD),
    device_strategy=st.sampled_from(["", "cdi", "nodes"]),
    gpus=GPUS,
    links=LINKS,
    groups=GROUPS,
    budget=st.none() | st.builds(gpunodes.Budget, st.none() | AMOUNT, AMOUNT, AMOUNT),
    tiers=st.just((gpunodes.TierRow("ram", 1, 2, 3),)) | st.just(()),
    saved=SAVED,
    seats=SEATS,
    usage=USAGE,
    summary=st.none()
    | st.builds(gpunodes.Summary, COUNT, st.just("1/2/3"), st.none() | COUNT, st.none() | COUNT),
)
