"""Whatever breaks, at whatever call: no artifact or a whole one, and the next try gets there."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import pytest

from kybernate.adapters.keys import artifactkeys
from kybernate.checkpoint import gc
from kybernate.checkpoint.packs import fetch, known, pack
from kybernate.checkpoint.packs.blocks import raw_sources
from kybernate.checkpoint.places import read_manifest, time_of
from kybernate.checkpoint.raw import seal
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.chunks import chunkindex
from kybernate.errors import CorruptError, DeadlineError, LockedError, RefusedError, RetryableError
from kybernate.lib.deadline import Deadline

from .kit import (
    KEYS,
    attempt,
    contents,
    draft,
    exists,
    fetched,
    make_dump,
    pack_dump,
    place,
    stored_bytes,
)

SMALL = 300 << 10
"""Bytes of a pack, so that a small dump has several."""


def calls_of(tmp_path, work):
    """How many calls the work makes on a place on which nothing breaks."""
    where = place(tmp_path / "counted", SMALL, at=0)
    work(where)
    return where.objects.calls


@pytest.mark.parametrize("how", ["kill-before", "kill-after", "full", "down", "truncate", "lose"])
def test_a_pack_that_breaks_anywhere_leaves_none_or_a_whole_one(tmp_path, how):
    dump = make_dump(tmp_path / "dump", blocks=16)
    steps = calls_of(tmp_path, lambda where: pack_dump(dump, where, 2))
    assert steps > 15
    broke = 0
    for at in range(1, steps + 1):
        root = tmp_path / f"place-{at}"
        error = attempt(lambda: pack_dump(dump, place(root, SMALL, at=at, how=how), 2))  # noqa: B023
        broke += error is not None
        where, artifact = place(root), draft(2).id
        if exists(where, artifact):
            verify(where, read_manifest(where, artifact, KEYS), KEYS, Deadline(60))
        # The next try, of another process, gets there over whatever lies about.
        assert fetched(where, pack_dump(dump, where, 2).id, tmp_path / f"back-{at}") == contents(
            dump
        )
    assert broke >= (0 if how == "lose" else steps // 5)


@pytest.mark.parametrize("how", ["kill-after", "full"])
def test_a_pack_over_an_older_one_breaks_no_other_artifact(tmp_path, how):
    before, after = make_dump(tmp_path / "a", 1), make_dump(tmp_path / "b", 2)
    for at in range(1, 20, 2):
        root = tmp_path / f"place-{at}"
        first = pack_dump(before, place(root), 1)
        attempt(lambda: pack_dump(after, place(root, SMALL, at=at, how=how), 2))  # noqa: B023
        verify(place(root), first, KEYS, Deadline(60))


@pytest.mark.parametrize("how", ["truncate", "lie", "down"])
def test_a_fetch_from_a_store_that_breaks_is_told_and_can_be_tried_again(tmp_path, how):
    dump, whole = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    artifact = pack_dump(dump, whole).id
    manifest = read_manifest(whole, artifact, KEYS)
    counted = place(tmp_path / "place", at=0)
    fetch.fetch(counted, manifest, tmp_path / "first", KEYS, Deadline(60))
    for at in range(1, counted.objects.calls + 1):
        broken, back = place(tmp_path / "place", at=at, how=how), tmp_path / f"back-{at}"
        with pytest.raises((CorruptError, RetryableError)):
            fetch.fetch(broken, manifest, back, KEYS, Deadline(60))
        assert fetched(whole, artifact, back) == contents(dump)


def test_a_slow_store_ends_at_the_deadline_and_the_next_try_goes_on_from_there(tmp_path):
    dump = make_dump(tmp_path / "dump", blocks=60)
    steps = calls_of(tmp_path, lambda where: pack_dump(dump, where))
    deadline = Deadline(60)
    slow = place(tmp_path / "place", SMALL, at=steps // 2, how="slow", deadline=deadline)
    with pytest.raises(DeadlineError):
        pack.pack(raw_sources(dump), draft(), slow, KEYS, deadline)
    where = place(tmp_path / "place")
    assert not exists(where, draft().id)
    done = stored_bytes(where)
    made = pack_dump(dump, where)
    # What got there before the deadline is not sent again.
    assert 0 < done <= stored_bytes(where) - made.stored
    assert fetched(where, made.id, tmp_path / "back") == contents(dump)


def test_lists_that_are_behind_cost_room_and_nothing_else(tmp_path):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    pack_dump(dump, where, 1)
    for number, at in ((2, 1), (3, 2)):
        behind = place(tmp_path / "place", at=at, how="lose", match=layout.INDEX)
        made = pack_dump(dump, behind, number)
        assert fetched(where, made.id, tmp_path / f"back-{number}") == contents(dump)


def test_a_pack_that_is_gone_meanwhile_is_noticed_before_the_manifest(tmp_path):
    where = place(tmp_path / "place")
    made = pack_dump(make_dump(tmp_path / "dump"), where)
    where.objects.delete([f"{layout.PACKS}team-a/{made.packs[0].id}"])
    with pytest.raises(RetryableError, match="has lost"):
        known.check_there(where, "team-a", made.packs)
    # What the index says is not believed either: all is stored anew.
    again = pack_dump(make_dump(tmp_path / "dump"), where, 2)
    assert fetched(where, again.id, tmp_path / "back") == contents(tmp_path / "dump")


def test_an_index_of_a_newer_release_costs_room_and_nothing_else(tmp_path, monkeypatch, caplog):
    dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
    with monkeypatch.context() as newer:
        newer.setattr(chunkindex, "_MAGIC", b"KYBJ")
        made = pack_dump(dump, where)
    index = tmp_path / "place" / layout.INDEX / "team-a" / made.packs[0].id
    before = index.read_bytes()
    again = pack_dump(dump, where, 2)
    assert "is not built upon: an index is not of its form" in caplog.text
    assert index.read_bytes() == before
    assert not {one.id for one in made.packs} & {one.id for one in again.packs}
    for artifact in (made, again):
        assert fetched(where, artifact.id, tmp_path / artifact.id[-8:]) == contents(dump)


class TestSpoiled:
    """Bytes that change where they lie."""

    def spoil(self, path, at=None):
        data = bytearray(path.read_bytes())
        data[len(data) // 2 if at is None else at] ^= 0x10
        path.write_bytes(data)

    def test_a_changed_chunk_is_corrupt_and_not_built_upon(self, tmp_path):
        dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
        made = pack_dump(dump, where)
        pack = tmp_path / "place" / layout.PACKS / "team-a" / made.packs[0].id
        self.spoil(pack)
        with pytest.raises(CorruptError, match="not what was written"):
            verify(where, made, KEYS, Deadline(60))
        with pytest.raises(CorruptError):
            fetched(where, made.id, tmp_path / "back")
        again = pack_dump(dump, where, 2)
        assert fetched(where, again.id, tmp_path / "again") == contents(dump)

    def test_a_pack_cut_short_is_corrupt(self, tmp_path):
        where = place(tmp_path / "place")
        made = pack_dump(make_dump(tmp_path / "dump"), where)
        pack = tmp_path / "place" / layout.PACKS / "team-a" / made.packs[0].id
        os.truncate(pack, pack.stat().st_size // 2)
        with pytest.raises(CorruptError, match="cut short"):
            verify(where, made, KEYS, Deadline(60))

    def test_a_spoiled_index_is_not_built_upon(self, tmp_path, caplog):
        dump, where = make_dump(tmp_path / "dump"), place(tmp_path / "place")
        made = pack_dump(dump, where)
        self.spoil(tmp_path / "place" / layout.INDEX / "team-a" / made.packs[0].id)
        again = pack_dump(dump, where, 2)
        assert "is not built upon" in caplog.text
        assert fetched(where, again.id, tmp_path / "back") == contents(dump)

    def test_a_changed_manifest_is_refused(self, tmp_path):
        where = place(tmp_path / "place")
        made = pack_dump(make_dump(tmp_path / "dump"), where)
        path = tmp_path / "place" / layout.manifest_key(made.id)
        path.write_bytes(path.read_bytes().replace(b'"uids":[0]', b'"uids":[1]'))
        with pytest.raises(RefusedError, match="changed after it was signed"):
            read_manifest(where, made.id, KEYS)

    def test_an_unsigned_and_a_strangers_manifest_are_refused(self, tmp_path):
        where = place(tmp_path / "place")
        made = pack_dump(make_dump(tmp_path / "dump"), where)
        path = tmp_path / "place" / layout.manifest_key(made.id)
        path.write_bytes(manifests.encode(made))
        with pytest.raises(RefusedError, match="is not signed"):
            read_manifest(where, made.id, KEYS)
        path.write_bytes(artifactkeys.generated().sign(manifests.encode(made)))
        with pytest.raises(LockedError, match="not trusted here"):
            read_manifest(where, made.id, KEYS)

    def test_a_manifest_under_anothers_name_is_refused(self, tmp_path):
        where = place(tmp_path / "place")
        made = pack_dump(make_dump(tmp_path / "dump"), where)
        other = draft(9).id
        signed = where.objects.get(layout.manifest_key(made.id))
        where.objects.put(layout.manifest_key(other), signed)
        with pytest.raises(CorruptError, match="is that of"):
            read_manifest(where, other, KEYS)


def test_a_seal_that_is_killed_leaves_no_artifact_or_a_whole_one(tmp_path):
    step, killed = 0, True
    while killed:
        step += 1
        root = tmp_path / f"place-{step}"
        where, dump = place(root), make_dump(root / ".begun" / "uid", blocks=5)
        before, blank = contents(dump), draft(step)
        killed = killed_at(
            step,
            lambda: seal.seal(where, dump, blank, KEYS, Deadline(60)),  # noqa: B023
        )
        if exists(where, blank.id):
            manifest = read_manifest(where, blank.id, KEYS)
            verify(where, manifest, KEYS, Deadline(60))
            assert contents(seal.images_of(where, manifest)) == before
        else:
            gc.sweep(where, KEYS, dry_run=False, clock=lambda at: time_of(at) + 1e6)
            assert not list((root / "artifacts").glob("*/*/*"))
    assert step > 15


@pytest.mark.parametrize("step", [1, 3, 5, 8, 12])
def test_a_fetch_that_is_killed_is_finished_by_the_next(tmp_path, step):
    dump, where, back = make_dump(tmp_path / "dump"), place(tmp_path / "place"), tmp_path / "back"
    made = pack_dump(dump, where)
    assert killed_at(step, lambda: fetch.fetch(where, made, back, KEYS, Deadline(60)))
    assert fetched(where, made.id, back) == contents(dump)


def killed_at(step, work):
    """Whether the work came to its system call number `step`, and was killed there.

    It runs in a process of its own; only calls that Python tells of are counted.
    """
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _die_at(step)
            work()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def _die_at(step):
    seen = [0]
    watched = ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")

    def hook(event, args):
        if event in watched:
            seen[0] += 1
            if seen[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
