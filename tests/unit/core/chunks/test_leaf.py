"""Leaves and indexes: what is written is read, and nothing else is."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.artifacts import manifest
from kybernate.core.chunks import chunkindex, leaf
from kybernate.core.chunks.chunkindex import ChunkTable, Stored
from kybernate.core.chunks.leaf import Chunk
from kybernate.core.chunks.pages import BLOCK
from kybernate.errors import CorruptError

packs = st.binary(min_size=16, max_size=16).map(bytes.hex)


@st.composite
def chunks(draw):
    size = draw(st.integers(1, BLOCK))
    if draw(st.booleans()):
        return leaf.zeros(size)
    stored = draw(st.integers(16, size + leaf.OVERHEAD))
    name = draw(st.binary(min_size=32, max_size=32))
    return Chunk(name, draw(packs), draw(st.integers(0, (1 << 32) - 1)), stored, size)


@given(st.lists(chunks(), max_size=20))
def test_a_leaf_is_read_as_it_was_written(listed):
    assert leaf.decode(leaf.encode(listed)) == listed


def test_the_largest_leaf_is_no_larger_than_a_chunk():
    listed = [Chunk(bytes(31) + b"1", f"{n:032x}", 0, 16, BLOCK) for n in range(leaf.MOST)]
    assert len(leaf.encode(listed)) <= BLOCK


def test_their_form_is_that_of_version_1_of_manifests():
    """Neither has a number of its own: who changes one of them raises `manifest.VERSION`, so that
    no older release takes for damaged what it can't read."""
    names = [bytes([at]) * 32 for at in range(2)]
    listed = [Chunk(names[0], "0f" * 16, 7, 116, 100), leaf.zeros(BLOCK)]
    index = chunkindex.encode([(names[0], 7, 116, 100), (names[1], 123, 80, 64)], 203)
    assert manifest.VERSION == 1
    assert hashlib.sha256(leaf.encode(listed)).hexdigest()[:16] == "93bcbd80f677406d"
    assert hashlib.sha256(index).hexdigest()[:16] == "0dff6d7841d7497d"


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda tail: b"KYBL" + tail))
def test_any_bytes_are_a_leaf_or_corrupt(data):
    try:
        leaf.decode(data)
    except CorruptError:
        return


@given(st.lists(chunks(), min_size=1, max_size=4), st.data())
def test_a_leaf_with_a_changed_byte_raises_nothing_else(listed, data):
    raw = bytearray(leaf.encode(listed))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        leaf.decode(bytes(raw))
    except CorruptError:
        return


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"KYBI" + tail))
def test_any_bytes_are_an_index_or_corrupt(data):
    try:
        ChunkTable().add_index(0, data)
    except CorruptError:
        return


@given(st.dictionaries(st.binary(min_size=32, max_size=32), st.integers(0, 1 << 20), max_size=300))
def test_a_table_finds_what_was_added_and_nothing_else(named):
    table = ChunkTable()
    for name, offset in named.items():
        table.add(name, Stored(1, offset, 100, 84))
    assert {name: table.find(name).offset for name in named} == named
    assert len(table) == len(named)
    assert table.find(bytes(31) + b"\x07") is None or bytes(31) + b"\x07" in named


def test_a_table_grows_over_many_and_stays_within_its_limit():
    table = ChunkTable(most=90_000)
    names = [number.to_bytes(32, "little") for number in range(90_001)]
    for number, name in enumerate(names):
        table.add(name, Stored(0, number, 1, 1))
    assert table.full
    assert table.find_all(names) == [(0, number, 1, 1) for number in range(90_000)] + [None]


def test_names_that_meet_in_one_slot_are_kept_apart():
    table = ChunkTable()
    names = [bytes(8) + bytes([n]) * 24 for n in range(50)]
    for number, name in enumerate(names):
        table.add(name, Stored(0, number, 1, 1))
    assert [table.find(name).offset for name in names] == list(range(50))


@given(st.lists(st.integers(0, 40), max_size=60))
def test_many_are_found_in_any_order_as_each_is_alone(asked):
    table = ChunkTable()
    for number in range(0, 40, 2):
        table.add(bytes([number]) * 32, Stored(number, number, 1, 1))
    names = [bytes([number]) * 32 for number in asked]
    assert table.find_all(names) == [table.find(name) for name in names]
    assert [bool(found) for found in table.find_all(names)] == [
        number < 40 and number % 2 == 0 for number in asked
    ]


def test_an_index_says_where_each_chunk_of_its_pack_is():
    table = ChunkTable()
    name = bytes(range(32))
    table.add_index(7, chunkindex.encode([(name, 16, 100, 84)], 4096))
    assert table.find(name) == Stored(7, 16, 100, 84)


def test_an_index_that_points_beyond_its_pack_is_corrupt():
    index = chunkindex.encode([(bytes(32), 4000, 100, 84)], 4096)
    with pytest.raises(CorruptError, match="beyond the end"):
        ChunkTable().add_index(0, index)


def index_of(names, first=0):
    rows = [(name, 100 * (first + n), 100, 84) for n, name in enumerate(names)]
    return chunkindex.encode(rows, 100 * (first + len(names)))


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=8), st.data())
def test_of_many_indexes_and_chunks_each_name_is_found_in_a_pack_that_has_it(listed, data):
    """Several packs may hold one chunk; any of them will do."""
    table, where = ChunkTable(), {}
    for pack, numbers in enumerate(listed):
        names = [bytes([number]) * 32 for number in numbers]
        if data.draw(st.booleans()):
            table.add_index(pack, index_of(names))
        else:
            for at, name in enumerate(names):
                table.add(name, Stored(pack, 100 * at, 100, 84))
        for at, name in enumerate(names):
            where.setdefault(name, set()).add(Stored(pack, 100 * at, 100, 84))
    asked = [bytes([n]) * 32 for n in data.draw(st.lists(st.integers(0, 40), max_size=60))]
    for name, found in zip(asked, table.find_all(asked), strict=True):
        assert found in where[name] if name in where else found is None
        assert table.find(name) in where[name] if name in where else table.find(name) is None


def test_indexes_beyond_what_a_table_takes_are_cut_there():
    names = [number.to_bytes(32, "little") for number in range(120_000)]
    table = ChunkTable(most=100_000)
    table.add_index(1, index_of(names[:70_000]))
    table.add_index(2, index_of(names[70_000:]))
    assert (table.full, len(table)) == (True, 100_000)
    found = table.find_all(names)
    assert [one[0] for one in found[:100_000]] == [1] * 70_000 + [2] * 30_000
    assert found[100_000:] == [None] * 20_000


def test_after_a_block_that_has_changed_the_next_are_found_without_looking_for_them(monkeypatch):
    names = [number.to_bytes(32, "little") for number in range(1, 101)]
    table = ChunkTable()
    table.add_index(0, index_of(names))
    looked = []
    slot = ChunkTable._slot
    monkeypatch.setattr(
        ChunkTable, "_slot", lambda self, name: looked.append(name) or slot(self, name)
    )
    changed = [b"\xff" * 32 if number % 10 == 5 else name for number, name in enumerate(names)]
    assert [found is None for found in table.find_all(changed)].count(True) == 10
    assert set(looked) <= {b"\xff" * 32}
