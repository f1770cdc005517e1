"""Places for objects: a folder and obstore's own store behave alike; keys are never paths out."""

from __future__ import annotations

import stat
import threading

import pytest
from obstore.store import MemoryStore

from kybernate.adapters.objects.objects import (
    LocalObjects,
    PacedObjects,
    StoreObjects,
    open_objects,
)
from kybernate.checkpoint.places import PACK
from kybernate.core.artifacts.layout import manifest_key
from kybernate.errors import ConfigError, ConflictError, NotFoundError, RefusedError

MANIFEST = manifest_key("team-a/llama-0@20260131T120000Z-00c0ffee")


@pytest.fixture(params=["folder", "store"])
def objects(request, tmp_path):
    return (
        LocalObjects(tmp_path / "x") if request.param == "folder" else StoreObjects(MemoryStore())
    )


def test_what_is_put_is_there(objects):
    objects.put("packs/a/1", b"0123456789")
    assert bytes(objects.get("packs/a/1")) == b"0123456789"
    assert bytes(objects.get("packs/a/1", 3, 4)) == b"3456"
    assert bytes(objects.get("packs/a/1", 7)) == b"789"
    assert bytes(objects.get("packs/a/1", 8, 100)) == b"89"
    assert objects.head("packs/a/1").size == 10


def test_a_put_replaces_unless_told_to_create(objects):
    objects.put("k/1", b"first", create=True)
    with pytest.raises(ConflictError, match="there already"):
        objects.put("k/1", b"second", create=True)
    assert bytes(objects.get("k/1")) == b"first"
    objects.put("k/1", b"third")
    assert bytes(objects.get("k/1")) == b"third"


def test_what_is_not_there_is_not_found(objects):
    for ask in (objects.get, objects.head, lambda key: objects.get(key, 0, 10)):
        with pytest.raises(NotFoundError):
            ask("k/none")
    objects.delete(["k/none"])
    objects.delete([])
    assert list(objects.scan("k/")) == []


def test_a_scan_tells_of_all_below_and_nothing_beside(objects):
    for key in ("a/x/1", "a/x/2", "a/y/1", "ab/1"):
        objects.put(key, key.encode())
    assert sorted(info.key for info in objects.scan("a/")) == ["a/x/1", "a/x/2", "a/y/1"]
    assert {info.size for info in objects.scan("a/x/")} == {5}
    objects.delete(["a/x/1", "a/y/1"])
    assert [info.key for info in objects.scan("a/")] == ["a/x/2"]


def test_of_many_who_create_one_wins(objects):
    won = []

    def create(number):
        try:
            objects.put("k/1", b"%d" % number, create=True)
            won.append(number)
        except ConflictError:
            pass

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes(objects.get("k/1")) == b"%d" % won[0]
    assert len(won) == 1


@pytest.mark.parametrize(
    "key", ["../x", "a/../../x", "/etc/passwd", "a//b", "a/.hidden", "", "a\0"]
)
def test_no_key_leads_out(objects, key):
    for ask in (lambda: objects.put(key, b"x"), lambda: objects.get(key),
                lambda: objects.delete([key])):  # fmt: skip
        with pytest.raises(RefusedError, match="can't be the key"):
            ask()


class TestFolder:
    def test_files_are_the_owners_alone(self, tmp_path):
        LocalObjects(tmp_path / "x").put("a/b/c", b"1")
        assert stat.S_IMODE((tmp_path / "x" / "a" / "b" / "c").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "x" / "a" / "b").stat().st_mode) == 0o700

    def test_a_put_that_fails_leaves_nothing_behind(self, tmp_path):
        folder = LocalObjects(tmp_path / "x")
        folder.put("a/1", b"old")
        (tmp_path / "x" / "a" / "2").mkdir()
        with pytest.raises(OSError, match="directory"):
            folder.put("a/2", b"new")
        assert sorted(p.name for p in (tmp_path / "x" / "a").iterdir()) == ["1", "2"]

    def test_half_written_files_are_not_listed_and_can_be_found(self, tmp_path):
        folder = LocalObjects(tmp_path / "x")
        folder.put("a/1", b"1")
        half = tmp_path / "x" / "a" / ".new-7"
        half.write_bytes(b"1")
        assert [info.key for info in folder.scan("a/")] == ["a/1"]
        assert folder.leftovers(half.stat().st_mtime + 1) == [half]
        assert folder.leftovers(half.stat().st_mtime) == []


class TestUrls:
    def test_a_path_and_a_file_url_are_folders(self, tmp_path):
        for url in (str(tmp_path), f"file://{tmp_path}"):
            assert open_objects(url).root == tmp_path

    @pytest.mark.parametrize("url", ["here/below", "ftp://x/y", "file://x", ""])
    def test_what_names_no_place_says_how_one_is_named(self, url):
        with pytest.raises(ConfigError, match="place"):
            open_objects(url)

    @pytest.mark.parametrize("url", ["s3://bucket/prefix", "gs://bucket", "memory:///"])
    def test_stores_are_opened_without_asking_them(self, url, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        monkeypatch.setenv("AWS_REGION", "x")
        assert isinstance(open_objects(url), StoreObjects)


def test_a_rate_is_kept_by_reads_and_writes_together():
    now, waited = [100.0], []

    def sleep(seconds):
        waited.append(seconds)
        now[0] += seconds

    paced = PacedObjects(StoreObjects(MemoryStore()), 1000.0, clock=lambda: now[0], sleep=sleep)
    paced.put("a/1", bytes(1000))
    paced.get("a/1", 0, 1000)
    paced.get("a/1")
    paced.put("a/2", b"x")
    assert sum(waited) == pytest.approx(3.0 - 0.1, abs=0.02)


class TestBehindPacks:
    """At 5 MB/s, while four packs of 8 MiB have taken the next seven seconds."""

    @pytest.fixture
    def waited(self):
        return []

    @pytest.fixture
    def paced(self, waited):
        inner = StoreObjects(MemoryStore())
        inner.put(MANIFEST, bytes(1_000_000))
        inner.put("keys/a/1", bytes(200))
        paced = PacedObjects(inner, 5e6, clock=lambda: 100.0, sleep=waited.append)
        for number in range(4):
            paced.put(f"packs/a/{number}", bytes(PACK))
        waited.clear()
        return paced

    @pytest.mark.parametrize("key", ["keys/a/1", MANIFEST])
    def test_what_is_small_and_manifests_come_at_once(self, paced, waited, key):
        assert len(paced.get(key)) in (200, 1_000_000)
        paced.put("index/a/1", bytes(1 << 10))
        assert sum(waited) <= 0.2

    def test_what_is_large_waits_for_them_too(self, paced, waited):
        paced.get(MANIFEST)
        paced.get("packs/a/1")
        assert waited == [pytest.approx((4 * PACK + 1_000_000) / 5e6 - 0.1)]


class TestUnsigned:
    """Of what is sealed and read back anyway the bytes aren't signed once more."""

    def test_packs_alone_go_that_way(self):
        signed, unsigned = MemoryStore(), MemoryStore()
        objects = StoreObjects(signed, unsigned)
        objects.put("index/a/1", b"x")
        objects.put("packs/a/1", b"y")
        keys = [[info.key for info in StoreObjects(one).scan("")] for one in (signed, unsigned)]
        assert keys == [["index/a/1"], ["packs/a/1"]]

    def test_a_store_is_opened_so_unless_a_person_has_decided(self, monkeypatch):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "x")
        opened = open_objects("s3://bucket/x")
        assert "unsigned_payload" not in opened._store.config
        assert opened._unsigned.config["unsigned_payload"] == "true"
        monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "false")
        decided = open_objects("s3://bucket/x")
        assert decided._unsigned is decided._store
