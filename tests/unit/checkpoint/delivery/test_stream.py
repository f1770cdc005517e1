"""A dump on its way to another node: what is sent while it grows is what is sealed there."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kybernate.checkpoint.delivery.inbox import Inbox
from kybernate.checkpoint.places import open_place, read_manifest
from kybernate.checkpoint.raw import seal
from kybernate.checkpoint.raw.stream import (
    COPY,
    Base,
    Following,
    Same,
    Seen,
    Whole,
    Written,
    staging,
    whole_files,
)
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import layout
from kybernate.core.chunks.pages import PAGE
from kybernate.errors import CorruptError, DeadlineError, RefusedError
from kybernate.lib.deadline import Deadline
from kybernate.types import PodRef, PodUid
from tests.kit.criuimages import write_pages
from tests.unit.checkpoint.kit import KEYS, draft, open_below

if TYPE_CHECKING:
    from pathlib import Path

HEAP = 0x5555_0000_3000
HERE = PodUid("1b2c")
POD = PodRef("team-a", "llama-0", PodUid("5e1f"))
LIMIT = 60.0


def memory(mib: int, seed: int = 1) -> bytearray:
    return bytearray(random.Random(seed).randbytes(mib << 20))


def dump(folder: Path, data: bytes, start: int = HEAP, pages_id: int = 1) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_pages(folder, pages_id, [(start, bytes(data))])
    (folder / "core-1.img").write_bytes(b"registers")
    (folder / "empty.img").write_bytes(b"")
    return folder


class Way:
    """From a folder of one node's into another node's local place."""

    def __init__(self, tmp_path: Path) -> None:
        self.source = open_place(str(tmp_path / "source"))
        self.target = open_place(str(tmp_path / "target"))
        self.inbox = Inbox(self.target, KEYS, Seen())
        self.base = Base()
        self.sent = 0

    def carry(self, parts, staged: str = "", until: int = -1) -> None:
        incoming = self.inbox.receiving(HERE, staged)
        try:
            for number, part in enumerate(parts):
                if number == until:
                    return
                self.sent += len(part.data) if isinstance(part, Written) else 0
                incoming.take(part)
        finally:
            incoming.close()

    def stage(self, images: Path, artifact: str = "a", until: int = -1) -> None:
        known, have = self.inbox.held(HERE)
        self.base = Base(artifact)
        have = have if known == artifact else {}
        self.carry(staging(images, self.base, have, Deadline(LIMIT)), artifact, until)

    def follow(self, images: Path, dumped: threading.Event | None = None) -> Following:
        if dumped is None:
            dumped = threading.Event()
            dumped.set()
        following = Following(images, self.base, dumped, Deadline(LIMIT))
        self.carry(following.parts())
        return following

    def sealed(self, images: Path, following: Following):
        return seal.seal(
            self.source, images, draft(), KEYS, Deadline(LIMIT), hashed=following.hashed
        )

    def signed(self, manifest) -> bytes:
        return bytes(self.source.objects.get(layout.manifest_key(manifest.id)))

    def deliver(self, manifest) -> tuple[str, ...]:
        return self.inbox.accept(POD, HERE, manifest.id, self.signed(manifest))


@pytest.fixture
def way(tmp_path: Path) -> Way:
    return Way(tmp_path)


def images(way: Way) -> Path:
    return way.source.local / ".begun" / "x"


def test_all_that_was_sent_is_sealed_there(way: Way) -> None:
    folder = dump(images(way), memory(3)[:-PAGE])
    manifest = way.sealed(folder, way.follow(folder))
    verify(way.source, manifest, KEYS, Deadline(LIMIT))
    assert way.deliver(manifest) == ()
    there = read_manifest(way.target, manifest.id, KEYS)
    assert there == manifest
    verify(way.target, there, KEYS, Deadline(LIMIT))
    way.inbox.sync(manifest.id)
    assert way.inbox.waiting() == frozenset()
    assert way.deliver(manifest) == (), "asked again"


def test_only_what_changed_since_is_sent(way: Way, tmp_path: Path) -> None:
    data = memory(8)
    way.stage(dump(tmp_path / "before", data))
    assert way.sent == len(data)
    way.sent = 0
    data[5 << 20 : (5 << 20) + 10] = b"x" * 10
    folder = dump(images(way), random.Random(3).randbytes(PAGE) + data, HEAP - PAGE)
    manifest = way.sealed(folder, way.follow(folder))
    assert way.sent < 300 << 10
    assert way.deliver(manifest) == ()
    verify(way.target, manifest, KEYS, Deadline(LIMIT))


def test_a_dump_is_followed_while_it_grows(way: Way) -> None:
    folder, data, dumped = images(way), memory(6), threading.Event()
    done = dump(folder.parent / "done", data)
    folder.mkdir()
    seen = []

    def write() -> None:
        with (folder / "pages-1.img").open("ab", buffering=0) as file:
            for at in range(0, len(data), 300_000):
                file.write(data[at : at + 300_000])
        for path in done.iterdir():
            if path.name != "pages-1.img":
                path.rename(folder / path.name)
        dumped.set()

    following = Following(folder, Base(), dumped, Deadline(LIMIT))
    parts = following.parts()
    writer = threading.Thread(target=write)
    incoming = way.inbox.receiving(HERE, "")
    for part in (writer.start(), *parts)[1:]:
        seen.append(part.file)
        incoming.take(part)
    incoming.close()
    writer.join()
    assert seen[0] == "pages-1.img"
    assert set(seen) == {"pages-1.img", "pagemap-1.img", "core-1.img", "empty.img"}
    manifest = way.sealed(folder, following)
    assert way.deliver(manifest) == ()


def test_staging_goes_on_where_it_was_cut_short(way: Way, tmp_path: Path) -> None:
    before = dump(tmp_path / "before", memory(8))
    way.stage(before, until=5)
    first = way.sent
    assert 0 < first < 8 << 20
    way.stage(before)
    assert way.sent == 8 << 20
    way.stage(before)
    assert way.sent == 8 << 20
    assert way.inbox.held(HERE)[1] == {"pages-1.img": 8 << 20}
    way.stage(dump(tmp_path / "other", memory(1, 5)), "b")
    assert way.inbox.held(HERE) == ("b", {"pages-1.img": 1 << 20})


def test_what_arrived_wrong_is_asked_for_again(way: Way, tmp_path: Path) -> None:
    data = memory(2)
    way.stage(dump(tmp_path / "before", data))
    spoilt = way.inbox._home(HERE) / "staged" / "pages-1.img"
    with spoilt.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"spoilt")
    folder = dump(images(way), data)
    manifest = way.sealed(folder, way.follow(folder))
    assert way.deliver(manifest) == ("pages-1.img",)
    assert not way.inbox._place.objects.root.joinpath(layout.manifest_key(manifest.id)).exists()
    kept = seal.images_of(way.source, manifest)
    way.carry(whole_files(kept, iter(["pages-1.img"]), Deadline(LIMIT)))
    assert way.deliver(manifest) == ()
    verify(way.target, manifest, KEYS, Deadline(LIMIT))


def test_a_stream_that_broke_leaves_all_lacking(way: Way) -> None:
    folder = dump(images(way), memory(2))
    dumped = threading.Event()
    dumped.set()
    following = Following(folder, Base(), dumped, Deadline(LIMIT))
    parts = list(following.parts())
    way.carry(parts[:2])
    manifest = way.sealed(folder, following)
    assert set(way.deliver(manifest)) == {f.name for f in manifest.files}
    names = iter([f.name for f in manifest.files])
    way.carry(whole_files(seal.images_of(way.source, manifest), names, Deadline(LIMIT)))
    assert way.deliver(manifest) == ()


def test_a_forged_manifest_keeps_nothing(way: Way) -> None:
    folder = dump(images(way), memory(1))
    manifest = way.sealed(folder, way.follow(folder))
    signed = way.signed(manifest)
    with pytest.raises(RefusedError, match="sign"):
        way.inbox.accept(POD, HERE, manifest.id, signed[:-1] + b" ")
    with pytest.raises(CorruptError):
        way.inbox.accept(POD, HERE, manifest.id[:-1] + "0", signed)
    assert not list(way.target.objects.scan("artifacts/"))


@pytest.mark.parametrize("name", ["../core.img", ".hidden", "a/b", ""])
def test_names_of_files_are_never_paths(way: Way, name: str) -> None:
    incoming = way.inbox.receiving(HERE, "")
    with pytest.raises(RefusedError):
        incoming.take(Written(name, 0, b"x"))
    with pytest.raises(RefusedError):
        way.inbox.receiving(PodUid(name), "")


def test_parts_must_follow_each_other(way: Way, tmp_path: Path) -> None:
    way.stage(dump(tmp_path / "before", memory(1)))
    incoming = way.inbox.receiving(HERE, "")
    incoming.take(Written("pages-1.img", 0, b"x" * PAGE))
    for part in (
        Written("pages-1.img", 2 * PAGE, b"x"),
        Same("pages-1.img", PAGE, "pages-1.img", 1 << 20, PAGE),
        Same("pages-1.img", PAGE, "pages-1.img", 1 << 64, PAGE),
        Same("pages-1.img", PAGE, "pages-1.img", -PAGE, PAGE),
        Same("pages-1.img", PAGE, "pages-1.img", 0, -1),
        Same("pages-1.img", PAGE, "pages-1.img", 0, COPY + 1),
        Whole("pages-1.img", -1),
        Whole("pages-2.img", 1 << 64),
    ):
        with pytest.raises(RefusedError):
            incoming.take(part)
    incoming.close()


def test_a_dump_that_changed_after_it_was_read_is_not_sealed(way: Way) -> None:
    folder = dump(images(way), memory(1))
    following = way.follow(folder)
    with (folder / "pages-1.img").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CorruptError, match="changed"):
        way.sealed(folder, following)


def test_a_deadline_ends_it(way: Way) -> None:
    folder = dump(images(way), memory(1))
    following = Following(folder, Base(), threading.Event(), Deadline(0.01))
    with pytest.raises(DeadlineError):
        list(following.parts())


def test_a_dump_may_have_more_files_than_a_process_may_have_open(way: Way) -> None:
    images = dump(way.source.local / ".begun" / "x", memory(66))
    for number in range(2, 300):
        (images / f"core-{number}.img").write_bytes(b"registers")
    dumped = threading.Event()
    dumped.set()
    following = Following(images, Base(), dumped, Deadline(LIMIT))
    most = max(open_below(images) for _ in following.parts())
    assert most <= 2
    assert open_below(images) == 0
    assert following.hashed is not None
    assert len(following.hashed.files) == len(list(images.iterdir()))


def test_memory_in_flight_is_bounded(way: Way) -> None:
    """A slow other end holds the reader up: nothing is read that is not taken."""
    folder = dump(images(way), memory(32))
    dumped = threading.Event()
    dumped.set()
    following = Following(folder, Base(), dumped, Deadline(LIMIT))
    parts = following.parts()
    for _ in range(8):
        next(parts)
    (tail,) = following._tails.values()
    assert tail.size <= 8 << 20
    assert os.fstat(tail._file).st_size == 32 << 20
    assert replace(draft(), total=1).total == 1
    parts.close()
