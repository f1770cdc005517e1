"""A fetch whose images are restored while they come: what is told of memory, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.checkpoint import marks
from kybernate.checkpoint.packs import fetch, files
from kybernate.checkpoint.places import Place, read_manifest
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts.into import Into
from kybernate.core.artifacts.manifest import PIECE, content
from kybernate.errors import CorruptError, RetryableError
from kybernate.lib.deadline import Deadline
from kybernate.types import PodUid, Tier
from tests.unit.checkpoint.kit import FACTS, KEYS, NOW, contents, make_dump, place

UID = PodUid("5e1f")
INTO = Into("team-a", UID)


class Scene:
    """An artifact in a store alone, of which a file of memory has several pieces. `told`: what was
    there when a restore might begin, and what was said of memory; `spoils` is raised by what comes
    after."""

    def __init__(self, root, monkeypatch):
        self.store, self.folder = place(root / "store"), root / "back"
        self.nvme = place(root / "nvme")
        self.vault = Vault(
            {Tier.NVME: self.nvme, Tier.OBJECT: self.store}, Tier.NVME, KEYS, lambda: NOW
        )
        self.artifact, self.before = asyncio.run(self._saved())
        self.manifest = read_manifest(self.store, self.artifact, KEYS)
        self.told, self.spoils = [], None
        bring = files._Fetching.bring

        def brought(work, group):
            if self.told and self.spoils is not None:
                raise self.spoils
            return bring(work, group)

        monkeypatch.setattr(files._Fetching, "bring", brought)

    async def _saved(self):
        images = make_dump(await self.vault.begin(UID), blocks=60)
        before = contents(images)
        artifact = await self.vault.seal(images, FACTS, 60)
        await self.vault.pack(artifact, Tier.OBJECT, 60)
        await self.vault.drop(artifact, Tier.NVME)
        return artifact, before

    def laid_out(self):
        self.told.append((self.there(), self.states()))

    def states(self):
        return {
            path.name: bytes(marks.Marks(path).states()) for path in marks.pages_of(self.folder)
        }

    def there(self):
        found = contents(self.folder)
        return {name for name, data in self.before.items() if found.get(name) == data}

    def fetch(self, recorded="", manifest=None):
        given = KEYS, Deadline(60), recorded, None, self.laid_out
        fetch.fetch(self.store, manifest or self.manifest, self.folder, *given)


@pytest.fixture
def scene(tmp_path, monkeypatch):
    found = Scene(tmp_path, monkeypatch)
    yield found
    found.vault.close()


@pytest.fixture(params=[True, False], ids=["recorded", "signed"])
def recorded(request, scene):
    return content(scene.manifest.files) if request.param else ""


def test_a_restore_may_begin_once_all_but_memory_is_there(scene, recorded):
    scene.fetch(recorded)
    ((there, states),) = scene.told
    assert {"core-1.img", "empty.img"} <= there
    assert set(states) == {"pages-1.img", "pages-2.img"}
    assert len(states["pages-1.img"]) > 2
    assert set(b"".join(states.values())) == {marks.COMES}
    assert contents(scene.folder) == scene.before, "and no marks: all of it is there"


def test_memory_is_told_of_as_it_comes_and_last_of_all_what_shows_that_it_is_right(
    scene, recorded, monkeypatch
):
    """Whoever has read a whole file has read what was recorded."""
    said, say = [], marks.Marks.say

    def told(self, piece, state):
        said.append((piece, state))
        say(self, piece, state)

    monkeypatch.setattr(marks.Marks, "say", told)
    scene.fetch(recorded)
    pieces = -(-len(scene.before["pages-1.img"]) // PIECE)
    assert said == [(number, marks.THERE) for number in (*range(pieces), 0)]


def test_of_memory_that_never_comes_whoever_waits_is_told(scene, recorded):
    scene.spoils = RetryableError("the store doesn't answer")
    with pytest.raises(RetryableError):
        scene.fetch(recorded)
    assert set(b"".join(scene.states().values())) == {marks.LOST}


def test_what_was_signed_and_is_not_what_was_recorded_is_never_there_as_a_whole(scene, tmp_path):
    """The node that packed it has another state's memory under the right hashes."""
    other = asyncio.run(_packed(scene, make_dump, seed=7))
    mine = {one.name: one for one in scene.manifest.files}
    spoilt = tuple(
        replace(one, pieces=mine[one.name].pieces) if marks.is_pages(one.name) else one
        for one in other.files
    )
    with pytest.raises(CorruptError, match="recorded when it was saved"):
        scene.fetch(content(spoilt), replace(other, files=spoilt))
    states = scene.states()["pages-1.img"]
    assert (states[0], states[-1]) == (marks.THERE, marks.LOST)


async def _packed(scene, dump, seed):
    images = dump(await scene.vault.begin(UID), seed=seed, blocks=60)
    artifact = await scene.vault.seal(images, FACTS, 60)
    await scene.vault.pack(artifact, Tier.OBJECT, 60)
    return read_manifest(scene.store, artifact, KEYS)


def test_one_of_which_files_tell_nothing_by_themselves_comes_as_a_whole(scene):
    """As 0.2.0 has packed."""
    plain = replace(
        scene.manifest, files=tuple(replace(f, pieces="") for f in scene.manifest.files)
    )
    scene.fetch(content(scene.manifest.files), plain)
    assert scene.told == []
    assert contents(scene.folder) == scene.before


def test_once_a_restore_reads_one_copy_no_other_one_takes_its_place(scene, tmp_path):
    """It would have read the first one's memory."""
    beside = Place("beside", scene.store.objects, scene.store.root)
    places = {Tier.NVME: scene.nvme, Tier.OBJECT: scene.store}
    vault = Vault(places, Tier.NVME, KEYS, lambda: NOW, beside=beside)
    scene.spoils = CorruptError("a pack has lost a bit")

    async def story():
        with pytest.raises(CorruptError):
            await vault.fetch(scene.artifact, scene.folder, 60, INTO, None, scene.laid_out)
        assert len(scene.told) == 1
        scene.spoils = None
        await vault.fetch(scene.artifact, tmp_path / "again", 60, INTO, None, scene.laid_out)

    asyncio.run(story())
    assert contents(tmp_path / "again") == scene.before
    vault.close()
