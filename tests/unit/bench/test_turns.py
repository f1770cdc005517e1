"""What the bench of turns makes of the driver's log."""

from __future__ import annotations

import pytest

from bench.node.turns import held_seconds
from tests.simgpu.log import Event, Record


def record(seconds, pod, held, event=Event.ACQUIRE):
    return Record(int(seconds * 1e9), event, "g0", pod, 7, 1, held, held, "")


def test_only_time_between_the_looks_counts_and_only_with_memory():
    records = [
        record(1.0, "a", 64),
        record(12.0, "a", 0),
        record(13.0, "b", 64),
        record(14.0, "b", 64, Event.CLOSE),
        record(15.0, "c", 64),
        record(99.0, "c", 0),
    ]
    held = held_seconds(records, 10.0, 20.0)
    assert held == pytest.approx({"a": 2.0, "b": 1.0, "c": 5.0})


def test_who_holds_all_along_holds_all_of_it():
    assert held_seconds([record(1.0, "a", 64)], 10.0, 20.0) == pytest.approx({"a": 10.0})
