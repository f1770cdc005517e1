"""Page maps come from somebody's processes: they are read as data, or not used."""

from __future__ import annotations

import logging
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kybernate.adapters.container.criuimages import _messages, page_maps, put_first, read_page_map
from kybernate.core.chunks.pages import MAP_MAGICS, PAGE
from kybernate.errors import CorruptError
from kybernate.gen.criuimages_pb2 import MapEntry, MapHead
from tests.kit.criuimages import entry, write_page_map, write_pages


def test_entries_are_read_in_their_order(tmp_path):
    write_pages(tmp_path, 7, [(0x5000, b"a" * 3 * PAGE), (0x9000, b"b" * PAGE)], entry_pages=2)
    pages = page_maps(tmp_path)["pages-7.img"]
    assert list(zip(pages.starts, pages.counts, strict=True)) == [
        (0x5000, 2),
        (0x7000, 1),
        (0x9000, 1),
    ]


def test_pages_that_are_not_in_the_file_are_left_out(tmp_path):
    old = MapEntry(address=0x3000, pages_32=2).SerializeToString()
    parent = MapEntry(address=0x8000, pages_32=2, in_parent=True).SerializeToString()
    messages = [
        MapHead(pages_id=1).SerializeToString(),
        *(old, parent, entry(0x20000, 5, flags=2), entry(0x30000, 1, flags=4 | 2)),
    ]
    write_page_map(tmp_path / "pagemap-1.img", messages)
    assert list(read_page_map(tmp_path / "pagemap-1.img").starts) == [0x3000, 0x30000]


def head(pages_id=1):
    return MapHead(pages_id=pages_id).SerializeToString()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is no page map"),
        (b"x" * 8, "is no page map"),
        (struct.pack("<III", *MAP_MAGICS, 1 << 31), "too long"),
        (struct.pack("<II", *MAP_MAGICS) + b"\1\0", "within a message"),
        (struct.pack("<III", *MAP_MAGICS, 5) + b"\xff\xff\xff\xff\xff", "can't be read"),
    ],
)
def test_what_is_no_page_map_says_so(tmp_path, data, said):
    path = tmp_path / "pagemap-1.img"
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=said):
        read_page_map(path)


@pytest.mark.parametrize("made", [entry(5, 1), entry(0xFFFFFFFFFFFFF000, 2), entry(0, 1 << 60)])
def test_pages_where_none_can_be_are_refused(tmp_path, made):
    write_page_map(tmp_path / "pagemap-1.img", [head(), made])
    with pytest.raises(CorruptError, match="where none can be"):
        read_page_map(tmp_path / "pagemap-1.img")


def test_a_map_that_does_not_fit_its_file_is_left_out_and_told(tmp_path, caplog):
    write_pages(tmp_path, 1, [(0, bytes(4 * PAGE))])
    with (tmp_path / "pages-1.img").open("ab") as file:
        file.write(b"more")
    with caplog.at_level(logging.WARNING):
        assert page_maps(tmp_path) == {}
    assert "tells of 16384 bytes, pages-1.img has 16388" in caplog.text


def test_a_map_of_a_file_that_is_not_there_is_left_out(tmp_path):
    write_page_map(tmp_path / "pagemap-1.img", [head(99), entry(0, 1)])
    assert page_maps(tmp_path) == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_page_map_or_corrupt(tmp_path, tail):
    path = tmp_path / "pagemap-1.img"
    path.write_bytes(struct.pack("<II", *MAP_MAGICS) + tail)
    try:
        read_page_map(path)
    except CorruptError:
        return


PRESENT, LAZY = 4, 2


def written(number, count, flags):
    """As CRIU writes it: a field that it requires and never fills in."""
    made = MapEntry(address=number * PAGE, flags=flags, pages=count).SerializeToString()
    return made + b"\x10\0"


def entries(path):
    """What CRIU would read: page, its place in the pages file, whether it comes later."""
    with path.open("rb") as file:
        messages = list(_messages(file, path.name))[1:]
    found, place = [], 0
    for message in messages:
        assert b"\x10" in message, "CRIU requires this field"
        one = MapEntry.FromString(message)
        for page in range(one.address // PAGE, one.address // PAGE + one.pages):
            found.append((page, place, one.flags))
            place += bool(one.flags & PRESENT)
    return found


runs = st.lists(
    st.tuples(
        st.integers(1, 9), st.integers(1, 12), st.sampled_from([PRESENT, PRESENT | LAZY, LAZY])
    ),
    max_size=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(runs, st.sets(st.integers(0, 120), max_size=14))
def test_putting_pages_first_changes_nothing_but_when_they_come(tmp_path, gaps, cuts):
    path, at, messages = tmp_path / "pagemap-1.img", 0, [head()]
    for gap, count, flags in gaps:
        messages.append(written(at + gap, count, flags))
        at += gap + count
    write_page_map(path, messages)
    before, ordered = entries(path), sorted(cuts)
    spans = tuple(zip(ordered[::2], ordered[1::2], strict=False))
    size = put_first(path, [(start * PAGE, end * PAGE) for start, end in spans])
    asked = {page for start, end in spans for page in range(start, end)}
    assert entries(path) == [
        (page, place, flags & ~LAZY if page in asked else flags) for page, place, flags in before
    ]
    assert size == PAGE * sum(page in asked and bool(flags & LAZY) for page, _, flags in before)
    assert put_first(path, [(start * PAGE, end * PAGE) for start, end in spans]) == 0
    assert list(tmp_path.iterdir()) == [path]


def test_what_can_not_be_read_is_left_as_it_is(tmp_path):
    path = tmp_path / "pagemap-1.img"
    write_page_map(path, [head(), written(0, 4, PRESENT | LAZY), b"\xff"])
    before = path.read_bytes()
    with pytest.raises(CorruptError):
        put_first(path, [(0, 2 * PAGE)])
    assert path.read_bytes() == before
