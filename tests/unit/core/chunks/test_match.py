"""Which parts of a dump are at the other node already."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.chunks.pages import BLOCK, PAGE
from kybernate.core.chunks.staged import NAME, Matcher, Run, Staged

if TYPE_CHECKING:
    from collections.abc import Sequence


def name(data: memoryview) -> bytes:
    return blake3(data).digest(NAME)


def staged(files: Sequence[bytes], sizes: Sequence[int] = (BLOCK,)) -> Staged:
    """Files, cut into blocks of these sizes in turn."""
    found = Staged(name, sum(map(len, files)))
    for number, data in enumerate(files):
        at = turn = 0
        while at < len(data):
            size = min(sizes[turn % len(sizes)], len(data) - at)
            found.add(number, at, memoryview(data)[at : at + size])
            at, turn = at + size, turn + 1
    return found


def match(there: Staged, data: bytes, step: int) -> list[Run]:
    """All of a file that grows by `step` bytes at a time."""
    matcher, runs, rest, at = Matcher(there), [], b"", 0
    while at < len(data):
        more, at = data[at : at + step], at + step
        found = matcher.runs(memoryview(rest + more), last=at >= len(data))
        runs += found
        rest = (rest + more)[sum(run.size for run in found) :]
        assert len(rest) < BLOCK
    return runs


def put_together(files: Sequence[bytes], runs: Sequence[Run], data: bytes) -> bytes:
    """What the other node makes of it."""
    found, at = b"", 0
    for run in runs:
        source = data[at:] if run.file < 0 else files[run.file][run.start :]
        found += source[: run.size]
        at += run.size
    return found


def sent(runs: Sequence[Run]) -> int:
    return sum(run.size for run in runs if run.file < 0)


def pages(count: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count * PAGE)


def test_what_did_not_change_is_one_reference() -> None:
    data = pages(160)
    assert match(staged([data]), data, len(data)) == [Run(len(data), 0, 0)]


def test_a_changed_page_costs_its_block() -> None:
    data = pages(160)
    changed = data[: 40 * PAGE] + b"x" + data[40 * PAGE + 1 :]
    runs = match(staged([data]), changed, 1 << 20)
    assert put_together([data], runs, changed) == changed
    assert sent(runs) == BLOCK


def test_what_moved_by_a_page_is_found_again() -> None:
    data = pages(160)
    grown = pages(3, 2) + data[: 80 * PAGE] + pages(1, 3) + data[80 * PAGE :]
    runs = match(staged([data]), grown, 1 << 20)
    assert put_together([data], runs, grown) == grown
    assert sent(runs) == 4 * PAGE


def test_without_anything_there_all_is_sent() -> None:
    data = pages(40)
    assert match(staged([]), data, 1 << 20) == [Run(len(data))]


def test_pages_that_begin_alike_are_not_mistaken() -> None:
    one = b"same beginning of all pages, truly"
    data = b"".join(one + pages(1, n)[len(one) :] for n in range(64))
    other = b"".join(one + pages(1, n + 100)[len(one) :] for n in range(64))
    runs = match(staged([data]), other + data, 1 << 20)
    assert put_together([data], runs, other + data) == other + data


@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.lists(st.sampled_from([PAGE, 3 * PAGE, BLOCK]), min_size=1, max_size=4),
    step=st.sampled_from([PAGE, 5 * PAGE, 1 << 20]),
    edits=st.lists(
        st.tuples(st.sampled_from(["change", "insert", "remove"]), st.integers(0, 63)), max_size=6
    ),
)
@settings(max_examples=60, deadline=None)
def test_it_is_always_put_together_as_it_was(
    seed: int, sizes: list[int], step: int, edits: list[tuple[str, int]]
) -> None:
    files = [pages(24, seed), bytes(8 * PAGE) + pages(24, seed + 1)]
    data = files[1] + files[0] + bytes(4 * PAGE)
    for kind, page in edits:
        at = min(page * PAGE, len(data))
        head, tail = data[:at], data[at:]
        if kind == "change":
            data = head + b"y" + tail[1:]
        else:
            data = head + (pages(1, page) + tail if kind == "insert" else tail[PAGE:])
    runs = match(staged(files, sizes), data, step)
    assert put_together(files, runs, data) == data
    assert sum(run.size for run in runs) == len(data)
