"""Memory that is verified while a restore waits for it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import struct
import threading

import pytest

from kybernate.adapters.objects.objects import LocalObjects
from kybernate.checkpoint import marks, pieces
from kybernate.checkpoint.packs import pack as packing
from kybernate.checkpoint.packs.blocks import raw_sources
from kybernate.checkpoint.packs.target import held
from kybernate.checkpoint.places import Place
from kybernate.checkpoint.raw import filling, lending, mending
from kybernate.checkpoint.raw.mending import Mender
from kybernate.checkpoint.raw.seal import pieces_of
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.into import Into
from kybernate.core.artifacts.manifest import PIECE
from kybernate.errors import CorruptError, DeadlineError, RefusedError, RetryableError
from kybernate.lib.deadline import Deadline
from kybernate.types import PodUid, Tier
from tests.unit.checkpoint.kit import (
    FACTS,
    KEYS,
    NOW,
    KilledError,
    contents,
    draft,
    make_dump,
    place,
)

UID, OTHER = PodUid("5e1f"), PodUid("77aa")
INTO = Into("team-a", UID)
BLOCKS = 100
"""Of 64 KiB: seven pieces."""


@pytest.fixture
def vault(tmp_path):
    places = {tier: place(tmp_path / tier) for tier in (Tier.NVME, Tier.OBJECT)}
    return Vault(places, Tier.NVME, KEYS, now=lambda: NOW)


async def sealed(vault):
    images = make_dump(await vault.begin(UID), blocks=BLOCKS)
    before = contents(images)
    return await vault.seal(images, FACTS, 60), before


def spoil(folder, piece, name="pages-1.img"):
    data = bytearray((folder / name).read_bytes())
    data[piece * PIECE + 5] ^= 1
    with (folder / name).open("r+b") as file:
        file.write(data)


def states(folder, number=1):
    return (folder / f"filled-{number}").read_bytes()[8:]


def of_dump(folder):
    return {name: data for name, data in contents(folder).items() if "filled" not in name}


def run(work):
    return asyncio.run(work)


class TestLend:
    def test_all_is_there_and_of_memory_nothing_is_said_to_be(self, vault):
        async def story():
            artifact, before = await sealed(vault)
            lent = await vault.lend(artifact, UID, 60, INTO)
            assert of_dump(lent) == before
            assert states(lent) == bytes(7)
            assert states(lent, 2) == bytes(1)
            await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1" * 7
            assert states(lent, 2) == b"\1"
            assert of_dump(lent) == before

        run(story())

    def test_its_marks_have_room_on_a_disk_that_is_full_later(self, vault):
        """In a hole the kernel would look for room, and kill who writes if there is none."""

        async def story():
            artifact, _ = await sealed(vault)
            lent = await vault.lend(artifact, UID, 60, INTO)
            with (lent / "filled-1").open("rb") as file:
                assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 8 + 7

        run(story())

    def test_what_goes_with_it_is_not_the_state(self, vault):
        async def story():
            artifact, before = await sealed(vault)
            for uid in (UID, OTHER):
                await vault.lend(artifact, uid, 60, INTO)
                await vault.abandon(uid)
            await vault.fill(artifact, UID, 60)
            assert contents(await vault.images(artifact, 60, INTO)) == before

        run(story())

    def test_what_was_lent_before_is_gone(self, vault):
        async def story():
            artifact, _ = await sealed(vault)
            lent = await vault.lend(artifact, UID, 60, INTO)
            await vault.fill(artifact, UID, 60)
            assert await vault.lend(artifact, UID, 60, INTO) == lent
            assert states(lent) == bytes(7)

        run(story())

    @pytest.mark.parametrize("change", [b"y" * 700, b"short"])
    def test_what_is_no_memory_is_verified_first(self, vault, change):
        async def story():
            artifact, _ = await sealed(vault)
            images = await vault.images(artifact, 60, INTO)
            (images / "core-1.img").write_bytes(change)
            with pytest.raises(CorruptError, match=r"core-1\.img"):
                await vault.lend(artifact, UID, 60, INTO)
            assert not (await vault.ls(Tier.NVME))[0].verified

        run(story())

    def test_memory_that_was_cut_short_is_noticed_at_once(self, vault):
        async def story():
            artifact, _ = await sealed(vault)
            images = await vault.images(artifact, 60, INTO)
            with (images / "pages-1.img").open("r+b") as file:
                file.truncate(3 * PIECE)
            with pytest.raises(CorruptError, match=r"pages-1\.img has"):
                await vault.lend(artifact, UID, 60, INTO)

        run(story())

    @pytest.mark.parametrize("why", [errno.EPERM, errno.EMLINK])
    def test_where_files_cannot_be_linked_all_is_verified_first(self, vault, monkeypatch, why):
        def refused(*_, **__):
            raise OSError(why, "no links here")

        async def story():
            artifact, before = await sealed(vault)
            monkeypatch.setattr(lending.os, "link", refused)
            lent = await vault.lend(artifact, UID, 60, INTO)
            assert contents(lent) == before
            await vault.fill(artifact, UID, 60)
            spoil(lent, 3)
            with pytest.raises(CorruptError, match="piece 3"):
                await vault.lend(artifact, UID, 60, INTO)

        run(story())

    def test_a_disk_that_is_full_is_told(self, vault, monkeypatch):
        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        async def story():
            artifact, _ = await sealed(vault)
            monkeypatch.setattr(lending.os, "link", full)
            with pytest.raises(OSError, match="No space"):
                await vault.lend(artifact, UID, 60, INTO)

        run(story())

    def test_it_is_refused_to_whom_it_is_not_for(self, vault):
        async def story():
            artifact, _ = await sealed(vault)
            with pytest.raises(RefusedError):
                await vault.lend(artifact, UID, 60, Into("team-b", UID))

        run(story())


class TestFill:
    def test_a_wrong_piece_comes_from_another_place_and_is_put_right(self, vault):
        async def story():
            artifact, before = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            lent = await vault.lend(artifact, UID, 60, INTO)
            spoil(lent, 3)
            spoil(lent, 6)
            await vault.fill(artifact, UID, 60)
            assert of_dump(lent) == before
            assert states(lent) == b"\1" * 7
            assert contents(await vault.images(artifact, 60, INTO)) == before

        run(story())

    def test_a_piece_that_no_place_has_is_told_and_the_rest_is_there(self, vault):
        async def story():
            artifact, _ = await sealed(vault)
            lent = await vault.lend(artifact, UID, 60, INTO)
            spoil(lent, 2)
            with pytest.raises(CorruptError, match="no other place has it"):
                await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1\1\2\1\1\1\1"
            assert not (await vault.ls(Tier.NVME))[0].verified

        run(story())

    def test_the_other_place_is_not_believed_either(self, vault, tmp_path):
        async def story():
            artifact, _ = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            for pack in (tmp_path / "object" / layout.PACKS).glob("*/*"):
                pack.write_bytes(bytes(byte ^ 1 for byte in pack.read_bytes()))
            lent = await vault.lend(artifact, UID, 60, INTO)
            spoil(lent, 0)
            with pytest.raises(CorruptError, match="no other place has it"):
                await vault.fill(artifact, UID, 60)
            assert states(lent)[0] == marks.LOST

        run(story())

    @pytest.mark.parametrize("copied", [False, True])
    def test_a_piece_that_the_disk_cannot_read_is_not_given_up(self, vault, monkeypatch, copied):
        async def story():
            artifact, before = await sealed(vault)
            if copied:
                await vault.pack(artifact, Tier.OBJECT, 60)
            lent = await vault.lend(artifact, UID, 60, INTO)
            read, written = pieces.PieceReader.read, []

            def broken(self, path, number):
                if number == 4 and path.name not in written:
                    raise OSError(errno.EIO, "Input/output error")
                return read(self, path, number)

            write = filling._write
            monkeypatch.setattr(pieces.PieceReader, "read", broken)
            monkeypatch.setattr(
                filling,
                "_write",
                lambda path, *more: (written.append(path.name), write(path, *more)),
            )
            if copied:
                await vault.fill(artifact, UID, 60)
                assert states(lent) == b"\1" * 7
            else:
                with pytest.raises(OSError, match="Input/output"):
                    await vault.fill(artifact, UID, 60)
                assert states(lent) == b"\1\1\1\1\0\1\1"
            assert of_dump(lent) == before

        run(story())

    def test_a_place_that_is_away_is_asked_again(self, tmp_path):
        broken = place(tmp_path / "object", at=1, how="down", match="artifacts/")
        steady = place(tmp_path / "object")
        nvme = place(tmp_path / "nvme")

        async def story():
            vault = Vault({Tier.NVME: nvme, Tier.OBJECT: steady}, Tier.NVME, KEYS, now=lambda: NOW)
            artifact, before = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            lent = await vault.lend(artifact, UID, 60, INTO)
            spoil(lent, 1)
            vault = Vault({Tier.NVME: nvme, Tier.OBJECT: broken}, Tier.NVME, KEYS, now=lambda: NOW)
            with pytest.raises(RetryableError):
                await vault.fill(artifact, UID, 60)
            assert states(lent)[1] == marks.COMES
            await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1" * 7
            assert of_dump(lent) == before

        run(story())

    def test_a_copy_that_can_not_be_read_hides_none_behind_it(self, vault, tmp_path):
        """As a placed copy, which lies on the same disk."""

        class Unreadable(LocalObjects):
            def get(self, key, start=0, length=None):
                raise OSError(errno.EIO, "Input/output error", key)

        async def story():
            artifact, before = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            vault._beside = Place("placed", Unreadable(tmp_path))
            lent = await vault.lend(artifact, UID, 60, INTO)
            spoil(lent, 3)
            await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1" * 7
            assert of_dump(lent) == before

        run(story())

    def test_nor_is_one_whose_file_ends_before_it_has_one(self, vault, tmp_path, monkeypatch):
        async def story():
            artifact, _ = await sealed(vault)
            lent = await vault.lend(artifact, UID, 60, INTO)
            short = make_dump(tmp_path / "short", blocks=20)
            made = packing.pack(
                raw_sources(short), draft(9), place(tmp_path / "b"), KEYS, Deadline(60)
            )
            monkeypatch.setattr(mending, "read_manifest", lambda *_: made)
            vault._beside = place(tmp_path / "b")
            spoil(lent, 3)
            with pytest.raises(CorruptError, match="no other place has it"):
                await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1\1\1\2\1\1\1"

        run(story())

    def test_what_may_yet_be_had_is_asked_for_though_other_is_lost(self, vault, monkeypatch):
        async def story():
            artifact, _ = await sealed(vault)
            lent = await vault.lend(artifact, UID, 60, INTO)
            spoil(lent, 1)
            read = pieces.PieceReader.read

            def away(self, path, number):
                if number == 4:
                    raise OSError(errno.EREMOTEIO, "Remote I/O error")
                return read(self, path, number)

            with monkeypatch.context() as patch:
                patch.setattr(pieces.PieceReader, "read", away)
                with pytest.raises(OSError, match="Remote I/O"):
                    await vault.fill(artifact, UID, 60)
                assert states(lent) == b"\1\2\1\1\0\1\1"
            await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1\2\1\1\1\1\1"

        run(story())

    def test_one_that_was_cut_short_goes_on(self, vault):
        async def story():
            artifact, _ = await sealed(vault)
            lent = await vault.lend(artifact, UID, 60, INTO)
            with pytest.raises(DeadlineError):
                await vault.fill(artifact, UID, 0.0)
            assert states(lent) == bytes(7)
            with (lent / "filled-1").open("r+b") as file:
                file.seek(8 + 5)
                file.write(b"\1")
            await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1" * 7

        run(story())

    def test_one_that_was_given_up_writes_into_nothing_that_came_in_its_place(self, vault):
        """A place that answers late, when the seat's next dump is being written already."""

        async def story():
            artifact, _ = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            lent = await vault.lend(artifact, UID, 60, INTO)
            spoil(lent, 3)
            new = bytes(BLOCKS << 16)

            class Late(Mender):
                def piece(self, name, number, pieces):
                    found = super().piece(name, number, pieces)
                    shutil.rmtree(lent)
                    lent.mkdir()
                    (lent / name).write_bytes(new)
                    return found

            manifest = await vault.manifest(artifact, 60)
            hashes = pieces_of(vault._local, manifest)
            mender = Late(artifact, [vault._places[Tier.OBJECT]], KEYS)
            until = Deadline(60)
            with held(lent, until) as own, pytest.raises(FileNotFoundError):
                filling.fill(own, hashes, mender, until)
            assert (lent / "pages-1.img").read_bytes() == new

        run(story())

    def test_where_nothing_was_lent_nothing_is_to_be_done(self, vault):
        async def story():
            artifact, _ = await sealed(vault)
            await vault.fill(artifact, UID, 60)
            await vault.begin(UID)
            await vault.fill(artifact, UID, 60)

        run(story())

    def test_it_goes_on_though_the_state_was_dropped(self, vault):
        async def story():
            artifact, before = await sealed(vault)
            assert await vault.lent(UID) == ""
            lent = await vault.lend(artifact, UID, 60, INTO)
            assert await vault.begun() == (UID,)
            await vault.drop(artifact, Tier.NVME, forget="a test")
            assert await vault.lent(UID) == artifact
            await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1" * 7
            assert of_dump(lent) == before

        run(story())

    @pytest.mark.parametrize("what", [layout.MANIFEST, layout.PIECES])
    def test_of_what_cannot_be_verified_any_more_nothing_is_waited_for(self, vault, what):
        async def story():
            artifact, _ = await sealed(vault)
            lent = await vault.lend(artifact, UID, 60, INTO)
            (told,) = lent.rglob(what)
            told.unlink()
            told.write_bytes(b"damaged")
            with pytest.raises(CorruptError):
                await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\2" * 7

        run(story())


def test_what_is_waited_for_comes_first_and_then_what_follows(vault, monkeypatch):
    """Threads that are stopped before each piece."""
    monkeypatch.setattr(filling, "AHEAD", 1)
    seen, go, comes = [], threading.Semaphore(0), threading.Semaphore(0)
    read = pieces.PieceReader.read

    def slow(self, path, number):
        if path.name == "pages-1.img":
            seen.append(number)
            comes.release()
            go.acquire()
        return read(self, path, number)

    async def story():
        artifact, _ = await sealed(vault)
        lent = await vault.lend(artifact, UID, 60, INTO)
        monkeypatch.setattr(pieces.PieceReader, "read", slow)
        done = asyncio.ensure_future(vault.fill(artifact, UID, 60))
        await asyncio.to_thread(comes.acquire)
        assert states(lent) == bytes(7), "it is said to be there before it was looked at"
        with (lent / "filled-1").open("r+b") as file:
            file.write(struct.pack("<I", 4 + 1))
        await asyncio.to_thread(comes.acquire)
        go.release(7)
        await done
        assert seen == [0, 4, 5, 6, 1, 2, 3]
        assert states(lent) == b"\1" * 7

    run(story())


def test_each_kill_leaves_marks_of_nothing_that_was_not_looked_at(vault, monkeypatch, tmp_path):
    """An agent that dies at any piece says no more; the next one fills the rest."""
    monkeypatch.setattr(filling, "AHEAD", 1)
    read = pieces.PieceReader.read

    async def story():
        artifact, before = await sealed(vault)
        for at in range(8):
            lent = await vault.lend(artifact, UID, 60, INTO)
            seen = []

            def dying(self, path, number, at=at, seen=seen):
                if len(seen) == at:
                    raise KilledError
                seen.append((path.name, number))
                return read(self, path, number)

            monkeypatch.setattr(pieces.PieceReader, "read", dying)
            manifest = await vault.manifest(artifact, 60)
            hashes = pieces_of(place(tmp_path / "nvme"), manifest)
            with pytest.raises(KilledError):
                filling.fill(lent, hashes, Mender(artifact, (), KEYS), Deadline(60))
            monkeypatch.setattr(pieces.PieceReader, "read", read)
            said = [("pages-1.img", n) for n, one in enumerate(states(lent)) if one == marks.THERE]
            said += [("pages-2.img", n) for n, one in enumerate(states(lent, 2)) if one]
            assert set(said) <= set(seen)
            await vault.fill(artifact, UID, 60)
            assert states(lent) == b"\1" * 7
            assert of_dump(lent) == before

    run(story())
