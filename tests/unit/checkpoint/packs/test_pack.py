"""Pack and fetch: identical bytes, nothing stored twice, nothing but what changed."""

from __future__ import annotations

import os
import random
import threading
import tracemalloc
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.adapters.container.criuimages import page_maps
from kybernate.checkpoint.cipher import Cipher
from kybernate.checkpoint.packs import fetch, pack
from kybernate.checkpoint.packs.blocks import raw_sources
from kybernate.checkpoint.places import PACK, read_manifest
from kybernate.core.artifacts import layout
from kybernate.core.chunks.leaf import OVERHEAD, Chunk
from kybernate.core.chunks.pages import BLOCK, PAGE
from kybernate.errors import CorruptError, DeadlineError, RefusedError
from kybernate.lib.deadline import Deadline
from tests.kit.criuimages import write_pages
from tests.unit.checkpoint.kit import (
    KEYS,
    contents,
    draft,
    fetched,
    make_dump,
    pack_dump,
    place,
    stored_bytes,
)


def test_what_is_packed_comes_back_byte_by_byte(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    made = pack_dump(dump, where)
    assert fetched(where, made.id, tmp_path / "back") == contents(dump)
    assert made.total == sum(map(len, contents(dump).values()))


memory = st.lists(
    st.tuples(
        st.integers(0, 600), st.integers(1, 40), st.sampled_from(["random", "zeros", "text"])
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(memory, st.integers(1, 50), st.integers(0, 5))
def test_any_sparse_memory_comes_back(tmp_path_factory, spans, entry_pages, seed):
    folder, rng = tmp_path_factory.mktemp("any"), random.Random(seed)
    fill = {
        "random": rng.randbytes,
        "zeros": bytes,
        "text": lambda size: (b"%d " % seed * size)[:size],
    }
    (folder / "dump").mkdir()
    runs = [(at * PAGE, fill[kind](pages * PAGE)) for at, pages, kind in sorted(spans)]
    write_pages(folder / "dump", 1, runs, entry_pages)
    assert "pages-1.img" in page_maps(folder / "dump")
    where = place(folder / "place")
    made = pack_dump(folder / "dump", where)
    assert fetched(where, made.id, folder / "back") == contents(folder / "dump")


def test_zeros_cost_nothing_and_come_back_as_holes(tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    write_pages(dump, 1, [(0, bytes(512 * PAGE))])
    where = place(tmp_path / "place")
    made = pack_dump(dump, where)
    assert stored_bytes(where) < 2000
    fetched(where, made.id, tmp_path / "back")
    assert (tmp_path / "back" / "pages-1.img").stat().st_blocks == 0


def test_what_compresses_is_stored_smaller(tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    write_pages(dump, 1, [(0, b"The same again. " * (64 * PAGE // 16))])
    where = place(tmp_path / "place")
    pack_dump(dump, where)
    assert stored_bytes(where) < 64 * PAGE / 10


def test_only_changed_blocks_are_stored_again_though_offsets_move(tmp_path):
    rng = random.Random(3)
    heap = bytearray(rng.randbytes(400 * BLOCK))
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    write_pages(before, 1, [(0x1000, rng.randbytes(3 * PAGE)), (0x100000, bytes(heap))], 300)
    for block in (5, 77, 200):
        heap[block * BLOCK + 4097] ^= 255
    # The first run grows: every later page lies elsewhere in the file, in other entries.
    write_pages(after, 1, [(0x1000, rng.randbytes(6 * PAGE)), (0x100000, bytes(heap))], 177)
    where = place(tmp_path / "place")
    pack_dump(before, where, 1)
    first = stored_bytes(where)
    made = pack_dump(after, where, 2)
    new = stored_bytes(where) - first
    assert new == made.stored
    # The three changed blocks, the run that grew, the leaf; no block besides.
    assert 3 * BLOCK + 6 * PAGE < new < 3 * BLOCK + 6 * PAGE + 40_000
    assert fetched(where, made.id, tmp_path / "back") == contents(after)


def test_an_unchanged_dump_stores_nothing_at_all(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    pack_dump(dump, where, 1)
    before = stored_bytes(where)
    assert pack_dump(dump, where, 2).stored == 0
    assert stored_bytes(where) == before


def test_namespaces_share_no_chunk_nor_name(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    mine = pack_dump(dump, where, 1)
    before = stored_bytes(where)
    theirs = pack_dump(dump, where, 1, namespace="team-b")
    assert stored_bytes(where) == pytest.approx(2 * before, rel=0.01)
    names = [{leaf.name for file in m.files for leaf in file.leaves} for m in (mine, theirs)]
    assert not names[0] & names[1]


def test_nothing_readable_is_stored(tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    secret = b"hf_THE-TOKEN-OF-A-TENANT"
    (dump / "core-1.img").write_bytes(secret + random.Random(1).randbytes(40_000))
    where = place(tmp_path / "place")
    pack_dump(dump, where)
    for info in where.objects.scan(layout.PACKS):
        assert secret not in bytes(where.objects.get(info.key))


def test_packs_are_large(tmp_path):
    dump = make_dump(tmp_path / "dump", blocks=400)
    where = place(tmp_path / "place")
    pack_dump(dump, where)
    sizes = sorted(info.size for info in where.objects.scan(layout.PACKS))
    assert len(sizes) == 4
    assert all(size >= PACK for size in sizes[1:])


def test_two_packs_of_one_artifact_at_once_end_as_one(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    made = []
    threads = [threading.Thread(target=lambda: made.append(pack_dump(dump, where))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] == made[1]
    assert fetched(where, made[0].id, tmp_path / "back") == contents(dump)


def test_a_fetch_goes_on_from_what_is_there(tmp_path):
    dump, where = make_dump(tmp_path / "dump", blocks=300), place(tmp_path / "place")
    made = pack_dump(dump, where)
    back = tmp_path / "back"
    fetched(where, made.id, back)
    pages = back / "pages-1.img"
    with pages.open("r+b") as file:
        file.seek(100 * BLOCK)
        file.write(b"torn")
        file.truncate(280 * BLOCK)
    counting = place(tmp_path / "place", at=0, match=layout.PACKS)
    assert fetched(counting, made.id, back) == contents(dump)
    leaves = sum(len(file.leaves) for file in made.files)
    # The torn block, and the end that was cut off, which is one range or two.
    assert counting.objects.calls - leaves <= 3


def test_a_fetch_puts_zeros_over_what_should_be_none(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    made = pack_dump(dump, where)
    back = tmp_path / "back"
    back.mkdir()
    (back / "pages-1.img").write_bytes(b"x" * (45 * BLOCK))
    assert fetched(where, made.id, back) == contents(dump)


def test_progress_ends_with_all_bytes(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    told = []
    made = pack.pack(raw_sources(dump), draft(), where, KEYS, Deadline(60), told.append)
    assert told == sorted(told)
    assert told[-1] == made.total


def test_a_deadline_ends_a_pack_and_a_fetch(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    with pytest.raises(DeadlineError):
        pack.pack(raw_sources(dump), draft(), where, KEYS, Deadline(0.0))
    assert not list(where.objects.scan(layout.ARTIFACTS))
    made = pack_dump(dump, where)
    late = Deadline(60)
    late.cancel()
    with pytest.raises(DeadlineError):
        fetch.fetch(where, made, tmp_path / "back", KEYS, late)


class TestHostileDumps:
    def test_a_link_is_never_followed(self, tmp_path):
        dump = make_dump(tmp_path / "dump")
        (dump / "evil.img").symlink_to("/etc/passwd")
        with pytest.raises(RefusedError, match=r"evil\.img can't be saved"):
            pack_dump(dump, place(tmp_path / "place"))

    @pytest.mark.parametrize("name", [".hidden", "a b", "ä.img"])
    def test_odd_names_are_refused(self, tmp_path, name):
        dump = make_dump(tmp_path / "dump")
        (dump / name).write_bytes(b"x")
        with pytest.raises(RefusedError, match="can't be saved"):
            pack_dump(dump, place(tmp_path / "place"))

    def test_a_page_map_that_lies_costs_only_room(self, tmp_path):
        dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
        (dump / "pagemap-1.img").write_bytes((dump / "pagemap-1.img").read_bytes()[:-3])
        made = pack_dump(dump, where)
        assert fetched(where, made.id, tmp_path / "back") == contents(dump)


def test_a_leaf_of_another_artifact_is_not_taken(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    made = read_manifest(where, pack_dump(dump, where).id, KEYS)
    file = made.files[-1]
    swapped = fetch.ChunkReader(where, made, KEYS)
    wrong = replace(file, leaves=tuple(replace(x, covers=x.covers + 1) for x in file.leaves))
    with pytest.raises(CorruptError, match="covers too little"):
        list(swapped.chunks(wrong))


def test_who_has_built_upon_a_pack_that_was_replaced_notices(tmp_path):
    """Even if whoever replaced it has the namespace's key, and seals other bytes by it."""
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    pack_dump(dump, where, 1)
    built = pack_dump(dump, where, 2)
    assert built.stored == 0
    made = read_manifest(where, built.id, KEYS)
    reader = fetch.ChunkReader(where, made, KEYS)
    chunk = next(
        placed.chunk
        for file in made.files
        for placed in reader.chunks(file)
        if placed.chunk.pack and placed.chunk.stored == placed.chunk.size + OVERHEAD
    )
    key = f"{layout.PACKS}{made.facts.namespace}/{chunk.pack}"
    replaced = bytearray(where.objects.get(key))
    at = slice(chunk.offset, chunk.offset + chunk.stored)
    other = os.urandom(chunk.size)
    sealed = memoryview(replaced)[at]
    reader.cipher.seal_into(chunk.pack, chunk.offset, chunk.name, other, sealed)
    where.objects.put(key, replaced)
    with pytest.raises(CorruptError, match=chunk.pack):
        fetched(where, made.id, tmp_path / "back")


def test_after_many_chunks_that_do_not_compress_those_that_do_are_found_again():
    cipher = Cipher(bytes(32))
    dull = [memoryview(os.urandom(BLOCK)) for _ in range(40)]
    text = memoryview((b"compress me " * BLOCK)[:BLOCK])
    assert all(cipher.squeezed(data) is data for data in dull)
    squeezed = [len(cipher.squeezed(text)) < BLOCK for _ in range(20)]
    # A few are stored as they are, until one is tried; then every one is.
    assert squeezed.index(True) < 8
    assert all(squeezed[squeezed.index(True) :])
    cipher = Cipher(bytes(32))
    for data in (*dull[:15], text):
        assert (len(cipher.squeezed(data)) < BLOCK) == (data is text)


@pytest.mark.parametrize(
    "payload",
    [
        zstandard.ZstdCompressor(write_content_size=True).compress(bytes(64 << 20)),
        zstandard.FRAME_HEADER + b"\xe0" + (1 << 45).to_bytes(8, "little") + b"\x01\0\0",
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20)),
        zstandard.FRAME_HEADER,
        2 * zstandard.ZstdCompressor(write_content_size=False).compress(bytes(BLOCK)),
    ],
    ids=["large", "larger than memory", "of no said size", "no head", "two"],
)
def test_a_chunk_that_would_be_larger_than_it_is_said_to_be_is_damaged(payload):
    """Whoever has the namespace's key seals what it likes. No more memory is taken than a chunk
    has."""
    cipher, pack_id, name = Cipher(bytes(32)), "ab" * 16, bytes(32)
    sealed = bytearray(len(payload) + OVERHEAD)
    cipher.seal_into(pack_id, 0, name, payload, memoryview(sealed))
    chunk = Chunk(name, pack_id, 0, len(sealed), BLOCK)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError, match="is not what was written"):
            cipher.opened(chunk, memoryview(sealed))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
