"""Where a parked process has what was on its GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.swap.drivermemory import Grown, grown, read, split, without

BEFORE = """\
00400000-00500000 r-xp 00000000 08:01 11 /usr/bin/python3
00600000-00601000 rw-p 00000000 08:01 11 /usr/bin/python3
01000000-01400000 rw-p 00000000 00:00 0 [heap]
7f0000400000-7f0000500000 rw-p 00000000 00:00 0
7f0001000000-7f0009000000 ---p 00000000 00:00 0
7f000a000000-7f000a100000 rw-s 00000000 00:05 5 /dev/nvidia0
"""
AFTER = """\
00400000-00500000 r-xp 00000000 08:01 11 /usr/bin/python3
00600000-00601000 rw-p 00000000 08:01 11 /usr/bin/python3
01000000-01600000 rw-p 00000000 00:00 0 [heap]
7f0000200000-7f0000500000 rw-p 00000000 00:00 0
7f0001000000-7f0002000000 rw-p 00000000 00:00 0
7f0002000000-7f0009000000 ---p 00000000 00:00 0
7f000b000000-7f000b001000 rw-p 00000000 08:01 12 /lib/libcuda.so.1
7f000c000000-7f000c300000 rw-s 00000000 00:01 99 /memfd:cuda checkpoint (deleted)
7f000d000000-7f000d300000 rw-s 00000000 08:01 98 /tmp/somebody's file
"""


def test_what_has_come_is_the_drivers_also_where_mappings_became_one():
    assert grown(BEFORE.encode(), AFTER.encode()) == Grown(
        private=(
            (0x1400000, 0x1600000),
            (0x7F0000200000, 0x7F0000400000),
            (0x7F0001000000, 0x7F0002000000),
        ),
        shared=0x300000,
    )


def test_what_was_there_is_not():
    assert grown(AFTER.encode(), AFTER.encode()) == Grown()
    assert grown(AFTER.encode(), BEFORE.encode()) == Grown()


PAGE = 4096
pages = st.integers(0, 60)


@st.composite
def spans(draw):
    """Sorted and disjoint."""
    cuts = sorted(draw(st.sets(pages, max_size=12)))
    return tuple((a * PAGE, b * PAGE) for a, b in zip(cuts[::2], cuts[1::2], strict=False))


def inside(some):
    return {page for start, end in some for page in range(start // PAGE, end // PAGE)}


@given(pages, pages, spans())
def test_a_range_is_cut_into_what_it_was(one, other, some):
    start, end = sorted((one * PAGE, other * PAGE))
    parts = list(split(start, end, some))
    assert [(a, b) for a, b, _ in parts] == list(
        zip([start, *(b for _, b, _ in parts)], (b for _, b, _ in parts), strict=False)
    )
    assert (parts[-1][1] if parts else start) == end
    assert all(a < b for a, b, _ in parts)
    found = inside((a, b) for a, b, first in parts if first)
    assert found == inside([(start, end)]) & inside(some)


@given(spans(), spans())
def test_what_is_taken_away_is_away(some, others):
    assert inside(without(some, others)) == inside(some) - inside(others)


@given(spans(), st.integers(0, 1 << 40))
def test_a_note_is_read_as_it_was_written(some, shared):
    found = read(Grown(some, shared).text())
    assert found is not None
    assert inside(found.private) == inside(some)
    assert found.shared == shared


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"private": [[1]], "shared": 0}', '"x"'])
def test_half_a_note_is_none(text):
    assert read(text) is None
