"""Bits that change where a saved state lies: told, or nothing is different.

All bits of what is small, a sample of what is large. Where another copy is, that one is used.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from random import Random

import pytest

from kybernate.adapters.keys.artifactkeys import WrapKeys
from kybernate.checkpoint import gc
from kybernate.checkpoint.packs import known
from kybernate.checkpoint.places import data_key, read_manifest, time_of
from kybernate.checkpoint.vault import Vault
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import codec, layout
from kybernate.core.artifacts.into import Into
from kybernate.errors import CorruptError, KybernateError, RefusedError
from kybernate.lib.deadline import Deadline
from kybernate.types import PodUid, Tier

from .kit import FACTS, KEYS, NOW, contents, fetched, make_dump, pack_dump, place

UID = PodUid("5e1f")
INTO = Into("team-a", UID)
SAMPLE = 24


class Places:
    """A node with one state, raw in its own place and packed in the other."""

    def __init__(self, folder):
        self.folder = folder
        self.near, self.far = place(folder / "near"), place(folder / "far", 300 << 10)
        vault = self.vault()

        async def story():
            images = make_dump(await vault.begin(UID), blocks=16)
            self.saved = contents(images)
            self.id = await vault.seal(images, FACTS, 60)
            await vault.pack(self.id, Tier.OBJECT, 60)

        asyncio.run(story())
        vault.close()

    def vault(self):
        return Vault({Tier.RAM: self.near, Tier.OBJECT: self.far}, Tier.RAM, KEYS, now=lambda: NOW)

    def files(self, where, prefix):
        return sorted(p for p in (where.root / prefix).rglob("*") if p.is_file())


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return Places(tmp_path_factory.mktemp("places"))


def flipped(path, *, most=SAMPLE):
    """Once for each bit, or for so many of them, the file is changed; then it is as it was."""
    before = path.read_bytes()
    bits = range(8 * len(before))
    for bit in bits if len(bits) <= most else Random(path.name).sample(bits, most):
        data = bytearray(before)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(bytes(data))
        yield bit
    path.write_bytes(before)


def test_a_changed_manifest_is_seen(places):
    for where in (places.near, places.far):
        path = where.root / layout.manifest_key(places.id)
        for _ in flipped(path, most=400):
            with pytest.raises((CorruptError, RefusedError)):
                read_manifest(where, places.id, KEYS)
    verify(places.near, read_manifest(places.near, places.id, KEYS), KEYS, Deadline(60))


def resumed(places, folder):
    """What a wake gets, whatever happened to one copy."""
    shutil.rmtree(folder, ignore_errors=True)
    vault = places.vault()

    async def story():
        try:
            return await vault.images(places.id, 60, INTO)
        except (CorruptError, RefusedError):
            await vault.fetch(places.id, folder, 60, INTO)
            return folder

    try:
        return contents(asyncio.run(story()))
    finally:
        vault.close()


def test_of_a_raw_one_no_changed_byte_is_restored_and_the_other_copy_is_taken(places, tmp_path):
    home = layout.folder(places.id)
    for path in places.files(places.near, home):
        for _ in flipped(path):
            assert resumed(places, tmp_path / "back") == places.saved


def test_of_a_packed_one_no_changed_byte_is_restored(places, tmp_path):
    made = read_manifest(places.far, places.id, KEYS)
    for path in places.files(places.far, layout.PACKS):
        index = places.far.root / layout.INDEX / "team-a" / path.name
        kept = index.read_bytes()
        for _ in flipped(path):
            with pytest.raises(CorruptError):
                verify(places.far, made, KEYS, Deadline(60))
            with pytest.raises(CorruptError):
                fetched(places.far, places.id, tmp_path / "back")
            shutil.rmtree(tmp_path / "back", ignore_errors=True)
            index.write_bytes(kept)


def test_a_changed_index_costs_room_and_nothing_else(places, tmp_path):
    dump = make_dump(tmp_path / "dump", blocks=16)
    for path in places.files(places.far, layout.INDEX):
        for bit in flipped(path, most=8):
            made = pack_dump(dump, places.far, 0x10000 + bit)
            assert fetched(places.far, made.id, tmp_path / str(bit)) == contents(dump)
            places.far.objects.delete([layout.manifest_key(made.id)])


def test_a_changed_data_key_is_passed_over(places, tmp_path):
    (path,) = places.files(places.far, layout.KEYS)
    whole = data_key(places.far, "team-a", KEYS)[1]
    others = 0
    for _ in flipped(path, most=20_000):
        secret = data_key(places.far, "team-a", KEYS)[1]
        others += secret != whole
    assert others > 0
    dump = make_dump(tmp_path / "dump", blocks=16)
    for bit in flipped(path, most=4):
        made = pack_dump(dump, places.far, 0x20000 + bit)
        assert fetched(places.far, made.id, tmp_path / str(bit)) == contents(dump)
        # Each manifest has the key that it needs with it.
        assert fetched(places.far, places.id, tmp_path / f"{bit}-old") == places.saved
        places.far.objects.delete([layout.manifest_key(made.id)])


def refused(*_):
    raise RefusedError("the registry gives none")


def test_a_key_that_we_may_not_open_is_passed_over_and_kept_for_who_may(places):
    others = replace(KEYS, kms=WrapKeys((b"o" * 32,)))
    first = data_key(places.far, "team-o", others)[1]
    assert data_key(places.far, "team-o", KEYS)[1] != first
    assert data_key(places.far, "team-o", others)[1] == first


def test_where_no_key_may_be_made_one_refusal_is_told_as_it_is(places, monkeypatch):
    asked = []
    monkeypatch.setattr(WrapKeys, "wrap", lambda *a: refused(asked.append(a)))
    monkeypatch.setattr(WrapKeys, "unwrap", refused)
    with pytest.raises(RefusedError, match="gives none"):
        data_key(places.far, "team-a", KEYS)
    assert len(asked) == 1


@pytest.mark.slow
def test_a_changed_lease_or_mark_deletes_nothing_that_is_needed(places):
    needed = {one.id for one in read_manifest(places.far, places.id, KEYS).packs}
    lease = places.far.root / layout.LEASES / "team-a" / "writer"
    mark = places.far.root / layout.CONDEMNED / "team-a" / min(needed)
    now = time_of(places.far)
    for path, said in (
        (lease, codec.encode(known._Lease(round(now) + 60, round(now)))),
        (mark, b"1"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(said)
        for bit in flipped(path, most=4000):
            found = gc.sweep(places.far, KEYS, dry_run=True, grace=0.0).plans["team-a"]
            assert not needed & {*found.delete, *found.condemn}, bit
            data = path.read_bytes()
            until = known.read_lease(data, now).until if path == lease else 0.0
            assert until <= now + known.LONGEST, bit
        path.unlink()


def test_a_listing_tells_what_it_cannot_believe(places):
    vault = places.vault()
    path = places.near.root / layout.manifest_key(places.id)
    for _ in flipped(path, most=10):
        (entry,) = asyncio.run(vault.ls(Tier.RAM))
        assert (entry.id, entry.verified) == (places.id, False)
        with pytest.raises(KybernateError):
            asyncio.run(vault.drop(places.id, Tier.RAM))
    vault.close()
