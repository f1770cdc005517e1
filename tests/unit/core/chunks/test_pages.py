"""Cuts: they follow addresses, and cover the file exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.chunks.pages import BLOCK, PAGE, PageMap, cut, cut_plain

runs = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 70)), max_size=30)


def page_map(pairs):
    pages = PageMap(1)
    for number, count in pairs:
        pages.add(number * PAGE, count)
    return pages


@given(runs)
def test_blocks_cover_any_page_map_exactly(pairs):
    pages = page_map(pairs)
    sizes = list(cut(pages))
    assert sum(sizes) == pages.size
    assert all(0 < size <= BLOCK and size % PAGE == 0 for size in sizes)


def test_entries_that_join_are_cut_as_one():
    whole = page_map([(3, 64)])
    split = page_map([(3, 10), (13, 1), (14, 53)])
    assert list(cut(whole)) == list(cut(split)) == [13 * PAGE, BLOCK, BLOCK, BLOCK, 3 * PAGE]


def test_a_heap_that_grows_in_front_moves_no_other_cut():
    before = list(cut(page_map([(16, 5), (160, 64)])))
    after = list(cut(page_map([(13, 8), (160, 64)])))
    assert before == [5 * PAGE, BLOCK, BLOCK, BLOCK, BLOCK]
    assert after == [3 * PAGE, 5 * PAGE, BLOCK, BLOCK, BLOCK, BLOCK]


def test_pages_of_one_block_with_holes_between_are_one_block():
    assert list(cut(page_map([(16, 2), (20, 1), (31, 1), (32, 1)]))) == [4 * PAGE, PAGE]


@given(st.integers(0, 10 * BLOCK))
def test_other_files_are_cut_by_offset(size):
    sizes = list(cut_plain(size))
    assert sum(sizes) == size
    assert all(each == BLOCK for each in sizes[:-1])
