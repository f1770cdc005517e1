"""A pod whose last state was packed has its next one named when it is sealed: what the place has
already is not read again."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts import layout
from kybernate.errors import CorruptError
from kybernate.types import PodUid, Tier
from tests.unit.checkpoint.kit import FACTS, KEYS, contents, fetched, make_dump, place

UID = PodUid("5e1f")


@pytest.fixture
def places(tmp_path):
    return {tier: place(tmp_path / tier.value) for tier in (Tier.NVME, Tier.OBJECT)}


@pytest.fixture
def vault(places):
    made = Vault(places, Tier.NVME, KEYS)
    yield made
    made.close()


async def sealed(vault, seed=1, uid=UID, **facts):
    images = make_dump(await vault.begin(uid), seed)
    before = contents(images)
    return await vault.seal(images, {**FACTS, "pod_uid": uid, **facts}, 60), before


async def packed(vault, seed=1, uid=UID, **facts):
    artifact, before = await sealed(vault, seed, uid, **facts)
    await vault.pack(artifact, Tier.OBJECT, 60)
    return artifact, before


def spoil(places, artifact):
    """What NVMe has of its memory is other than what was sealed: whoever reads it is told so."""
    file = places[Tier.NVME].local / layout.folder(artifact) / layout.IMAGES / "pages-1.img"
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)


def test_of_what_the_place_has_nothing_is_read_again(vault, places, tmp_path):
    async def story():
        await packed(vault)
        artifact, before = await sealed(vault)
        spoil(places, artifact)
        await vault.pack(artifact, Tier.OBJECT, 60)
        assert fetched(places[Tier.OBJECT], artifact, tmp_path / "back") == before

    asyncio.run(story())


def test_what_is_new_is_read_and_what_was_sealed(vault, places, tmp_path):
    async def story():
        await packed(vault, 1)
        second, before = await packed(vault, 2)
        assert fetched(places[Tier.OBJECT], second, tmp_path / "back") == before
        third, _ = await sealed(vault, 3)
        spoil(places, third)
        with pytest.raises(CorruptError, match="is not what was sealed"):
            await vault.pack(third, Tier.OBJECT, 60)

    asyncio.run(story())


def test_the_first_state_of_a_pod_is_not_named(vault, places):
    async def story():
        await packed(vault, uid=PodUid("another"))
        artifact, _ = await sealed(vault)
        spoil(places, artifact)
        with pytest.raises(CorruptError, match="is not what was sealed"):
            await vault.pack(artifact, Tier.OBJECT, 60)

    asyncio.run(story())


def test_of_the_pods_that_were_packed_the_newest_are_named(vault, places):
    async def story():
        for number in range(5):
            await packed(vault, uid=PodUid(f"uid-{number}"))
        for number, named in ((0, False), (4, True)):
            artifact, _ = await sealed(vault, uid=PodUid(f"uid-{number}"))
            spoil(places, artifact)
            try:
                await vault.pack(artifact, Tier.OBJECT, 60)
            except CorruptError:
                assert not named
            else:
                assert named

    asyncio.run(story())


def test_names_of_another_key_are_none_of_this_place(vault, places, tmp_path):
    async def story():
        await packed(vault)
        artifact, before = await sealed(vault)
        shutil.rmtree(places[Tier.OBJECT].local)
        places[Tier.OBJECT].local.mkdir()
        await vault.pack(artifact, Tier.OBJECT, 60)
        assert fetched(places[Tier.OBJECT], artifact, tmp_path / "back") == before

    asyncio.run(story())


def test_what_went_from_the_place_since_is_put_again(vault, places, tmp_path):
    async def story():
        await packed(vault)
        artifact, before = await sealed(vault)
        for info in list(places[Tier.OBJECT].objects.scan(layout.PACKS)):
            places[Tier.OBJECT].objects.delete([info.key])
        await vault.pack(artifact, Tier.OBJECT, 60)
        assert fetched(places[Tier.OBJECT], artifact, tmp_path / "back") == before

    asyncio.run(story())


def test_an_older_state_that_is_packed_later_leaves_the_names_of_the_newest(vault, places):
    async def story():
        oldest, _ = await sealed(vault, 1)
        await packed(vault, 1)
        newest, _ = await sealed(vault, 1)
        await vault.pack(oldest, Tier.OBJECT, 60)
        spoil(places, newest)
        await vault.pack(newest, Tier.OBJECT, 60)

    asyncio.run(story())


def test_a_pod_whose_states_are_packed_no_more_is_not_named(vault, places):
    async def story():
        await packed(vault, 1)
        await sealed(vault, 1)
        artifact, _ = await sealed(vault, 1)
        spoil(places, artifact)
        with pytest.raises(CorruptError, match="is not what was sealed"):
            await vault.pack(artifact, Tier.OBJECT, 60)

    asyncio.run(story())
