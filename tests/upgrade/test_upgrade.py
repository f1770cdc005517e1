"""Releases beside each other, one part new at a time and all at once, and back again.

Under requests through the proxy, with a seat in each tier: none loses its state, no request is
refused, and a pod that is made then gets its seat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.upgrade.fleet import NEEDS, PARTS
from tests.upgrade.versions import ORDER

if TYPE_CHECKING:
    from tests.upgrade.walk import Walk

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(900)]


def test_there_in_order(walk: Walk) -> None:
    rows = [walk.put(part, walk.newer) for part in PARTS]
    assert not [wrong for row in rows for wrong in row.wrong]


def test_back_in_order(walk: Walk) -> None:
    walk.fleet.put_all(walk.newer)
    walk.more_seats("new")
    rows = [walk.put(part, walk.older) for part in reversed(PARTS)]
    assert not [wrong for row in rows for wrong in row.wrong]


@pytest.mark.parametrize("part", PARTS)
def test_one_part_alone_and_back_again(walk: Walk, part: str) -> None:
    for needed in NEEDS.get(part, ()):
        walk.fleet.put(needed, walk.newer)
    rows = [walk.put(part, walk.newer), walk.put(part, walk.older)]
    assert not [wrong for row in rows for wrong in row.wrong]


def test_all_at_once_through_each_release_and_back_by_one(walk: Walk) -> None:
    later = ORDER[ORDER.index(walk.newer) :]
    there = [walk.put_all(release) for release in later]
    walk.more_seats("new")
    rows = [*there, walk.put_all(ORDER[-2])]
    assert not [wrong for row in rows for wrong in row.wrong]
