"""What namespaces have used, by windows, and when that is too much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.policy.shares import NOTHING, Share, ShareReason, Used, add_up, judge

NOW = 1_767_225_600.0
HOUR = 3600.0
GIB = 1 << 30
ONE = Share("research", window=HOUR, gpu_seconds=100.0, parked_bytes=10 * GIB)
BEGINS = ONE.begins(NOW + 1)


def used(seconds=0.0, parked=0, begins=BEGINS):
    return Used(begins, seconds, 0.5, 2, parked)


@given(window=st.floats(60, 31 * 86400), now=st.floats(1e9, 4e9), later=st.floats(0, 31 * 86400))
def test_windows_follow_each_other_without_a_gap(window, now, later):
    one = Share("n", window=window)
    begins = one.begins(now)
    # Begins are whole seconds, as statuses have them.
    assert begins == int(begins)
    assert begins <= now < begins + window + 1
    assert one.begins(now + later) >= begins


def test_what_was_used_in_another_window_is_over():
    assert ONE.spent(used(100), NOW + 1)
    assert not ONE.spent(used(99), NOW + 1)
    assert not ONE.spent(used(1000), NOW + 1 + HOUR)
    assert not Share("research").spent(used(1e9), NOW)


def test_what_all_nodes_had_counted_holds_and_so_does_what_this_one_has():
    told = Share("n", window=HOUR, gpu_seconds=100.0, used=used(150))
    assert told.spent(NOTHING, NOW + 1)
    assert told.spent(used(0), NOW + 1)
    assert not told.spent(used(0, begins=BEGINS + HOUR), NOW + 1 + HOUR)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6), st.integers(0, 1 << 40)), max_size=9))
def test_nodes_parts_are_added_up_whatever_their_order(parts):
    rows = [used(s, b, BEGINS if this else BEGINS - HOUR) for this, s, b in parts]
    found, other = add_up(ONE, rows, NOW + 1), add_up(ONE, rows[::-1], NOW + 1)
    assert abs(found.gpu_seconds - other.gpu_seconds) <= 1e-6 * (1 + found.gpu_seconds)
    assert found.wakes == 2 * sum(this for this, _, _ in parts)
    assert found.parked_bytes == sum(size for _, _, size in parts)
    assert found.begins == BEGINS


def test_a_share_says_how_it_stands():
    def reason(nodes, *, seats=True):
        found = judge(ONE, nodes, NOW + 1, seats=seats)
        return found.reason, found.message

    assert reason({})[0] is ShareReason.WITHIN
    assert reason({}, seats=False)[0] is ShareReason.NO_SEATS
    spent, words = reason({"a": used(60), "b": used(40)})
    assert spent is ShareReason.SPENT
    assert "100 of 100" in words
    crowded, words = reason({"a": used(1, 11 * GIB), "b": used(1, 10 * GIB)})
    assert crowded is ShareReason.CROWDED
    assert "on a" in words
    assert not spent.holds
    assert not crowded.holds
