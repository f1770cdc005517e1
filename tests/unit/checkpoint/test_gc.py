"""Sweeps of a real place: nothing that is needed goes, and what isn't goes in the end."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from kybernate.checkpoint import catalogue, gc, vault
from kybernate.checkpoint.packs.known import lease, read_lease
from kybernate.checkpoint.places import time_of
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import layout
from kybernate.lib.deadline import Deadline

from .kit import KEYS, attempt, contents, draft, fetched, make_dump, pack_dump, place, stored_bytes

DAY = 86400.0


def sweep(where, days, *, dry_run=False):
    return gc.sweep(where, KEYS, dry_run=dry_run, clock=lambda at: time_of(at) + days * DAY)


def objects(where):
    return sorted(info.key for kind in ("packs/", "index/", "condemned/", "leases/")
                  for info in where.objects.scan(kind))  # fmt: skip


def test_packs_that_nobody_names_go_in_two_sweeps(tmp_path):
    where = place(tmp_path / "place")
    kept = pack_dump(make_dump(tmp_path / "a", 1), where, 1)
    gone = pack_dump(make_dump(tmp_path / "b", 2), where, 2)
    vault.drop(where, gone)
    both = stored_bytes(where)
    before = objects(where)
    assert sweep(where, 2, dry_run=True).plans["team-a"].condemn == (gone.packs[0].id,)
    assert objects(where) == before
    sweep(where, 2)
    assert stored_bytes(where) == both
    swept = sweep(where, 4).plans["team-a"]
    assert swept.delete == (gone.packs[0].id,)
    assert stored_bytes(where) == both - swept.free
    assert objects(where) == [
        f"index/team-a/{kept.packs[0].id}",
        f"packs/team-a/{kept.packs[0].id}",
    ]
    verify(where, kept, KEYS, Deadline(60))


@pytest.mark.parametrize("names", [{"pod": "images"}, {"namespace": "images"}], ids=str)
def test_what_a_pod_called_images_needs_is_kept(tmp_path, names):
    where, dump = place(tmp_path / "place"), make_dump(tmp_path / "a")
    saved = pack_dump(dump, where, 1, **names)
    assert [found.id for found in catalogue.manifests(where, KEYS)] == [saved.id]
    for days in (2, 4):
        sweep(where, days)
    assert fetched(where, saved.id, tmp_path / "back") == contents(dump)


def test_what_is_condemned_is_not_built_upon(tmp_path):
    where, dump = place(tmp_path / "place"), make_dump(tmp_path / "a")
    first = pack_dump(dump, where, 1)
    vault.drop(where, first)
    sweep(where, 2)
    second = pack_dump(dump, where, 2)
    assert {pack.id for pack in second.packs}.isdisjoint(pack.id for pack in first.packs)
    sweep(where, 4)
    assert fetched(where, second.id, tmp_path / "back") == contents(dump)


def test_a_save_game_outlives_every_state_that_it_shares_chunks_with(tmp_path):
    """No sweep removes an artifact: nobody but who deletes a save game ends it."""
    where, dump = place(tmp_path / "place"), make_dump(tmp_path / "a")
    before = pack_dump(dump, where, 1)
    save_game = pack_dump(dump, where, 2)
    after = pack_dump(dump, where, 3)
    assert {pack.id for pack in before.packs} & {pack.id for pack in save_game.packs}
    for state in (before, after):
        vault.drop(where, state)
    for days in (2, 4, 400, 800):
        swept = sweep(where, days).plans["team-a"]
        assert not {*swept.condemn, *swept.delete} & {pack.id for pack in save_game.packs}
    assert fetched(where, save_game.id, tmp_path / "back") == contents(dump)
    vault.drop(where, save_game)
    sweep(where, 802)
    sweep(where, 804)
    assert stored_bytes(where) == 0


def test_a_writer_that_built_upon_it_in_time_spares_it(tmp_path):
    where, dump = place(tmp_path / "place"), make_dump(tmp_path / "a")
    first = pack_dump(dump, where, 1)
    vault.drop(where, first)
    second = pack_dump(dump, where, 2)
    mark = f"{layout.CONDEMNED}team-a/{first.packs[0].id}"
    where.objects.put(mark, b"1")
    assert sweep(where, 4).plans["team-a"].spare == (first.packs[0].id,)
    assert not list(where.objects.scan(layout.CONDEMNED))
    verify(where, second, KEYS, Deadline(60))


def test_a_lease_from_before_holds_what_was_condemned(tmp_path):
    where = place(tmp_path / "place")
    first = pack_dump(make_dump(tmp_path / "a"), where, 1)
    vault.drop(where, first)
    with lease(where, "team-a", Deadline(5 * DAY)):
        mark = f"{layout.CONDEMNED}team-a/{first.packs[0].id}"
        where.objects.put(mark, b"1")
        os.utime(tmp_path / "place" / mark, (time.time() + 100,) * 2)
        assert sweep(where, 4).plans["team-a"].delete == ()
    assert sweep(where, 6).plans["team-a"].delete == (first.packs[0].id,)


def test_a_namespace_with_a_manifest_that_is_not_believed_is_left_alone(tmp_path):
    where = place(tmp_path / "place")
    made = pack_dump(make_dump(tmp_path / "a"), where, 1)
    (tmp_path / "place" / layout.manifest_key(made.id)).write_bytes(b"forged")
    for days in (2, 4):
        swept = sweep(where, days)
        assert "is not signed" in swept.held["team-a"]
        assert "team-a" not in swept.plans
    assert stored_bytes(where)


def test_leftovers_of_crashes_go_once_they_are_old(tmp_path):
    where = place(tmp_path / "place")
    kept = pack_dump(make_dump(tmp_path / "a"), where, 1)
    folder = tmp_path / "place" / layout.folder(draft(2).id) / layout.IMAGES
    make_dump(folder)
    half = tmp_path / "place" / "packs" / "team-a" / ".new-0123"
    half.write_bytes(b"half")
    assert sweep(where, 0).leftovers == ()
    assert len(sweep(where, 2, dry_run=True).leftovers) == 2
    assert half.exists()
    sweep(where, 2)
    assert not half.exists()
    assert not folder.exists()
    verify(where, kept, KEYS, Deadline(60))


def test_a_sweep_that_dies_anywhere_loses_nothing_and_can_be_repeated(tmp_path):
    for at in range(1, 60):
        root = tmp_path / f"place-{at}"
        where = place(root)
        kept = pack_dump(make_dump(tmp_path / f"a-{at}", 1, blocks=6), where, 1)
        gone = pack_dump(make_dump(tmp_path / f"b-{at}", 2, blocks=6), where, 2)
        vault.drop(where, gone)
        dying = place(root, at=at, how="kill-after")
        died = attempt(lambda: [sweep(dying, days) for days in (2, 4)])  # noqa: B023
        verify(where, kept, KEYS, Deadline(60))
        for days in (6, 8):
            sweep(where, days)
        assert stored_bytes(where) == sum(pack.size for pack in kept.packs)
        if died is None:
            break
    else:
        raise AssertionError("the sweep makes more calls than were tried")


class Dated:
    """A place whose clock is `ahead` of this node's by so many seconds."""

    def __init__(self, inner, ahead):
        self._inner = inner
        self._ahead = ahead

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def head(self, key):
        found = self._inner.head(key)
        return replace(found, modified=found.modified + self._ahead)

    def scan(self, prefix):
        for found in self._inner.scan(prefix):
            yield replace(found, modified=found.modified + self._ahead)


@pytest.mark.parametrize("ahead", [-40 * DAY, 40 * DAY], ids=["behind", "ahead"])
def test_what_a_sweep_takes_for_old_is_old_by_the_places_clock(tmp_path, ahead):
    """The node's clock is wrong by more than any grace."""
    sound = place(tmp_path / "place")
    where = replace(sound, objects=Dated(sound.objects, ahead))
    vault.drop(where, pack_dump(make_dump(tmp_path / "a", 1), where, 1))
    (pack,) = (info.key for info in where.objects.scan("packs/"))

    def swept(days):
        clock = (lambda at: time_of(at) + days * DAY) if days else time_of
        return gc.sweep(where, KEYS, dry_run=False, clock=clock).plans["team-a"]

    assert not swept(0).condemn
    assert not swept(0).delete
    assert swept(2).condemn
    assert not swept(0).delete
    with lease(where, "team-a", Deadline(60)):
        (info,) = (i for i in where.objects.scan("leases/") if not swept(0).ended)
        found = read_lease(bytes(where.objects.get(info.key)), info.modified)
        assert abs(found.began - time_of(where)) < 5
        assert 0 < found.until - time_of(where) < 3600
    where.objects.put("clocks/of-one-that-was-killed", b"1")
    assert swept(4).delete == (pack.rpartition("/")[2],)
    assert not list(where.objects.scan("clocks/"))
