from __future__ import annotations

import io
from xml.etree import ElementTree as Xml

import pytest
from rich.console import Console

from tests.demo.observe import GpuRow, SeatRow, Snapshot, seat_rows
from tests.demo.screen import Screen

SNAPSHOT = Snapshot(
    elapsed=12.3,
    planned=540,
    statuses={200: 80, 429: 1, 502: 2},
    swaps=9,
    seats=[
        SeatRow("n1", "G0", "G0-seat-1", "birch-x", "birch", "active", 0, 1, 3, 41.0),
        SeatRow("n1", "G01", "G01-seat-1", "ember-x", "ember", "parked", 5, 0, 0, 0.0),
    ],
    gpus=[
        GpuRow("n1", 0, 80 << 30, {"birch": 47 << 30}),
        GpuRow("n1", 1, 80 << 30, {}),
    ],
)


def shown(*, terminal, snapshots=(SNAPSHOT,)):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=110, color_system=None)
    with Screen(console, ("birch", "ember")) as screen:
        for snapshot in snapshots:
            screen.show(snapshot)
    return out.getvalue()


def test_a_terminal_gets_the_table_and_the_bars():
    text = shown(terminal=True)
    for part in (
        "G01-seat-1",
        "birch-x",
        "active",
        "parked",
        "41 ms",
        "47 of 80 GiB",
        "█",
        "9 swaps",
    ):
        assert part in text


def test_without_a_terminal_there_is_a_line_every_few_seconds():
    lines = shown(terminal=False, snapshots=[SNAPSHOT, SNAPSHOT]).splitlines()
    assert len(lines) == 1
    assert "83 of 540 requests answered, 5 waiting, 9 swaps, 1 refused (429), 2 FAILED" in lines[0]
    assert "n1/0: birch  n1/1: empty" in lines[0]


def test_a_picture_is_an_svg_file_that_needs_nothing_from_elsewhere(tmp_path):
    file = tmp_path / "screen.svg"
    Screen(Console(file=io.StringIO()), ("birch", "ember")).picture(SNAPSHOT, file)
    text = file.read_text()
    assert Xml.fromstring(text).tag.endswith("svg")  # noqa: S314 - made just now
    assert "https:" not in text


@pytest.mark.parametrize("state", ["active", "parked"])
def test_seats_are_read_as_the_proxy_lists_them(state):
    listed = {
        "node": "n1",
        "group": "G0",
        "seat": "G0-seat-1",
        "pod": "default/birch-x",
        "state": state,
        "waiting": 2,
        "in_flight": 0,
        "wakes": 1,
        "last_wake_ms": 5.0,
    }
    (row,) = seat_rows({"data": [{"id": "birch", "kyb": {"seats": [listed]}}]})
    assert (row.pod, row.model, row.state, row.waiting) == ("birch-x", "birch", state, 2)
