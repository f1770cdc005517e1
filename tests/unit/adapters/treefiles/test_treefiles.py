"""Files that travel with a tree: what is taken, and what is laid out into a hostile container."""

from __future__ import annotations

import json
import os
import tarfile
import threading
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.treefiles import ARCHIVE, NOTE, gather, gathering, lay_out
from kybernate.errors import DeadlineError, NotFoundError, RestoreError

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
LIMIT = 60.0
NFS = "nfs4 server:/export rw"
DISK = "ext4 /dev/sda1 rw"
ROOTS = {DISK: "/var/lib/kubelet/pods/5e1f/volumes/kubernetes.io~empty-dir/scratch"}


class Box:
    """A container as /proc shows it: process 1 is number 7."""

    def __init__(self, base: Path, start: int = 5) -> None:
        self.proc, self.root, self.upper = base / "proc", base / "root", base / "upper"
        for folder in (self.proc / "7", self.root / "tmp", self.root / "dev" / "shm", self.upper):
            folder.mkdir(parents=True)
        (self.proc / "7" / "root").symlink_to(self.root)
        words = ["7", "(kyb-run)", *(["0"] * 19), str(start)]
        (self.proc / "7" / "stat").write_text(" ".join([*words[:2], *words[3:], words[-1]]))
        (self.proc / "1").mkdir()
        (self.proc / "1" / "mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
        self.mounted("/tmp", "/dev/shm")

    def mounted(self, *places: str, options: str = "rw", **volumes: str) -> None:
        """Each place a tmpfs of its own; `volumes`: what is mounted in a folder of the root."""
        root = (
            f"1 0 0:1 / / {options},relatime - overlay overlay rw,upperdir={self.upper},lowerdir=x"
        )
        others = [f"2 1 0:2 / {place} rw - tmpfs tmpfs rw" for place in places]
        others += [
            f"3 1 0:9 {ROOTS.get(what, '/')} /{at} rw - {what}" for at, what in volumes.items()
        ]
        (self.proc / "7" / "mountinfo").write_text("\n".join([root, *others]) + "\n")

    def gather(self, images: Path, limit: int = MIB, deadline: float = LIMIT):
        return gather(7, images, limit, deadline, str(self.proc))

    def lay_out(self, images: Path, limit: int = MIB, deadline: float = LIMIT) -> int:
        return lay_out(7, images, limit, deadline, str(self.proc))


@pytest.fixture
def boxes(tmp_path: Path) -> tuple[Box, Box, Path]:
    images = tmp_path / "images"
    images.mkdir()
    return Box(tmp_path / "a", 5), Box(tmp_path / "b", 6), images


def archive(images: Path, *entries: tarfile.TarInfo, data: bytes = b"evil") -> None:
    """As a tenant with a changed engine might have made it."""
    with tarfile.open(images / ARCHIVE, "w:") as made:
        for entry in entries:
            entry.size = len(data) if entry.isreg() else 0
            made.addfile(entry, BytesIO(data))
    (images / NOTE).write_text(json.dumps({"home": "elsewhere"}))


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    entry.uid, entry.gid, entry.mode = os.getuid(), os.getgid(), 0o644
    return entry


def test_what_was_changed_is_there_again(boxes) -> None:
    old, new, images = boxes
    (old.upper / "var").mkdir()
    (old.upper / "var" / "state").write_bytes(b"x" * 5000)
    (old.upper / "var" / "state").chmod(0o4640)
    os.utime(old.upper / "var" / "state", (1000, 1000))
    (old.root / "tmp" / "link").symlink_to("/etc/passwd")
    (old.root / "dev" / "shm" / "ring").write_bytes(b"ring")
    os.mkfifo(old.root / "tmp" / "pipe")
    note = old.gather(images)
    assert (note.files, note.size, note.missing) == (4, 5004, "")
    assert new.lay_out(images) == 4
    state = new.root / "var" / "state"
    assert (state.read_bytes(), state.stat().st_mtime) == (b"x" * 5000, 1000)
    assert state.stat().st_mode & 0o7777 == 0o640
    assert os.readlink(new.root / "tmp" / "link") == "/etc/passwd"
    assert (new.root / "dev" / "shm" / "ring").read_bytes() == b"ring"
    assert (new.root / "tmp" / "pipe").is_fifo()
    assert new.lay_out(images) == 4, "a second try changes nothing"


def test_in_its_own_container_nothing_is_laid_out(boxes) -> None:
    old, _, images = boxes
    (old.root / "tmp" / "x").write_text("before")
    old.gather(images)
    (old.root / "tmp" / "x").write_text("since")
    assert old.lay_out(images) == 0
    assert (old.root / "tmp" / "x").read_text() == "since"


def test_other_mounts_and_sockets_stay(boxes) -> None:
    old, _, images = boxes
    old.mounted("/tmp", "/dev/shm", "/etc/hosts", "/tmp/volume")
    (old.upper / "etc").mkdir()
    (old.upper / "etc" / "hosts").write_text("")
    (old.root / "tmp" / "volume").mkdir()
    (old.root / "tmp" / "volume" / "big").write_text("not ours")
    assert old.gather(images).files == 0


def test_a_volume_at_tmp_is_left_where_it_is_and_that_is_told(boxes) -> None:
    old, new, images = boxes
    old.mounted("/dev/shm", tmp=NFS)
    new.mounted("/dev/shm", tmp=NFS)
    (old.root / "tmp" / "others").write_text("of many pods")
    (old.root / "dev" / "shm" / "ring").write_bytes(b"ring")
    note = old.gather(images)
    assert (note.files, note.volumes, note.missing) == (1, ("/tmp",), "")
    assert json.loads((images / NOTE).read_text())["volumes"] == ["/tmp"]
    assert new.lay_out(images) == 1
    assert not list((new.root / "tmp").iterdir()), "its successor has the same volume"


def test_an_empty_dir_at_tmp_travels(boxes) -> None:
    old, new, images = boxes
    for one in (old, new):
        one.mounted("/dev/shm", tmp=DISK)
    (old.root / "tmp" / "mine").write_text("mine")
    assert old.gather(images).volumes == ()
    assert new.lay_out(images) == 1
    assert (new.root / "tmp" / "mine").read_text() == "mine"


def test_who_had_a_volume_at_tmp_does_not_go_on_without_one(boxes) -> None:
    old, new, images = boxes
    old.mounted("/dev/shm", tmp=NFS)
    old.gather(images)
    for places in (("/dev/shm", "/tmp"), ("/dev/shm",)):
        new.mounted(*places)
        with pytest.raises(RestoreError, match="mount the same volume"):
            new.lay_out(images)
    assert old.lay_out(images) == 0, "in its own container it has what it had"


def test_nothing_is_laid_into_a_volume(boxes) -> None:
    old, new, images = boxes
    (old.root / "tmp" / "mine").write_text("mine")
    old.gather(images)
    new.mounted("/dev/shm", tmp=NFS)
    (new.root / "tmp" / "mine").write_text("another pod's")
    with pytest.raises(RestoreError, match=r"has a volume \(/tmp\)"):
        new.lay_out(images)
    assert (new.root / "tmp" / "mine").read_text() == "another pod's"


def test_a_folder_that_is_a_volume_here_stays_as_it_is(boxes) -> None:
    old, new, images = boxes
    (old.upper / "data").mkdir(mode=0o700)
    new.mounted("/tmp", "/dev/shm", data=NFS)
    (new.root / "data").mkdir(mode=0o755)
    (old.upper / "seen").write_text("x")
    old.gather(images)
    assert new.lay_out(images) == 1
    assert (new.root / "data").stat().st_mode & 0o777 == 0o755


def test_who_has_no_volume_there_is_understood_by_agents_of_before(boxes) -> None:
    old, _, images = boxes
    old.gather(images)
    assert set(json.loads((images / NOTE).read_text())) == {"home", "files", "size", "missing"}


def test_what_is_late_is_told_and_leaves_no_note(boxes) -> None:
    old, new, images = boxes
    (old.root / "tmp" / "x").write_text("x")
    with pytest.raises(DeadlineError):
        old.gather(images, deadline=0.0)
    assert not (images / NOTE).exists()
    old.gather(images)
    with pytest.raises(DeadlineError):
        new.lay_out(images, deadline=0.0)
    assert not (new.root / "tmp" / "x").exists()


def test_what_is_late_in_the_midst_of_a_file_goes_no_further(boxes, monkeypatch) -> None:
    old, _, images = boxes
    (old.root / "tmp" / "big").write_bytes(b"x" * (8 * MIB))
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Slow(gathering._Whole):
        def read(self, size: int = -1) -> bytes:
            now[0] += LIMIT / 3
            return super().read(size)

    monkeypatch.setattr(gathering, "_Whole", Slow)
    with pytest.raises(DeadlineError):
        old.gather(images, limit=8 * MIB)
    assert now[0] < 2 * LIMIT
    assert not (images / NOTE).exists()


class After(threading.Event):
    """Is set once it was looked at so many times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_what_nobody_waits_for_any_more_ends_at_the_next_file_or_piece(boxes) -> None:
    old, new, images = boxes
    (old.root / "tmp" / "big").write_bytes(b"x" * MIB)
    for number in range(8):
        (old.root / "tmp" / f"z{number}").write_text("x")
    old.gather(images, 2 * MIB)
    whole = (images / ARCHIVE).stat().st_size
    (images / NOTE).unlink()
    for looks in (3, 30):
        with pytest.raises(DeadlineError, match="given up"):
            gather(7, images, 2 * MIB, LIMIT, str(old.proc), After(looks))
        assert not (images / NOTE).exists()
        assert (images / ARCHIVE).stat().st_size < whole
    old.gather(images, 2 * MIB)
    with pytest.raises(DeadlineError, match="given up"):
        lay_out(7, images, 2 * MIB, LIMIT, str(new.proc), After(3))
    assert not (new.root / "tmp" / "z7").exists()


def test_a_read_only_root_has_no_layer(boxes) -> None:
    old, _, images = boxes
    old.mounted("/tmp", "/dev/shm", options="ro")
    (old.upper / "x").write_text("x")
    assert old.gather(images).files == 0


def test_too_much_stays_and_is_told(boxes) -> None:
    old, new, images = boxes
    (old.root / "tmp" / "big").write_bytes(b"x" * (MIB + 1))
    assert "carry_bytes" in old.gather(images).missing
    assert not (images / ARCHIVE).exists()
    assert new.lay_out(images) == 0


def test_folders_in_each_other_without_end_stay_and_are_told(boxes) -> None:
    old, _, images = boxes
    os.makedirs(old.root / "tmp" / "/".join("x" * 600))
    note = old.gather(images)
    assert "folders in each other" in note.missing
    assert (note.files, (images / ARCHIVE).exists()) == (0, False)


def test_folders_count_as_files_do(boxes, monkeypatch) -> None:
    old, _, images = boxes
    monkeypatch.setattr(gathering, "MOST_FILES", 10)
    for number in range(11):
        (old.root / "tmp" / str(number)).mkdir()
    assert "10 files" in old.gather(images).missing


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a//b", "."])
def test_paths_that_lead_out_are_refused(boxes, name) -> None:
    _, new, images = boxes
    archive(images, named(name))
    with pytest.raises(RestoreError):
        new.lay_out(images)
    assert not (new.root.parent / "x").exists()


def test_links_on_the_way_are_not_followed(boxes, tmp_path) -> None:
    _, new, images = boxes
    outside = tmp_path / "host"
    outside.mkdir()
    (outside / "victim").write_text("safe")
    (new.root / "tmp" / "out").symlink_to(outside)
    (new.root / "tmp" / "file").symlink_to(outside / "victim")
    archive(images, named("tmp/out/victim"))
    with pytest.raises(RestoreError):
        new.lay_out(images)
    archive(images, named("tmp/file"))
    assert new.lay_out(images) == 1
    assert (outside / "victim").read_text() == "safe"
    assert (new.root / "tmp" / "file").read_bytes() == b"evil"


def test_devices_and_hard_links_are_left_out(boxes, tmp_path) -> None:
    _, new, images = boxes
    device = named("tmp/disk", tarfile.BLKTYPE)
    archive(images, device, named("tmp/hard", tarfile.LNKTYPE, "../../host"))
    new.lay_out(images)
    assert not list((new.root / "tmp").iterdir())


def test_a_time_that_no_float_has_becomes_the_last_that_one_has(boxes) -> None:
    _, new, images = boxes
    entry = named("tmp/late")
    entry.mtime = float(2**63)  # as of a tmpfs, whose last second is one less
    archive(images, entry)
    assert new.lay_out(images) == 1
    assert (new.root / "tmp" / "late").read_bytes() == b"evil"


@pytest.mark.parametrize(
    "odd",
    [{"mtime": "nan"}, {"uid": str(1 << 40)}, {"path": "tmp/a\0b"}],
    ids=("time", "user", "name"),
)
def test_what_no_file_can_have_is_refused(boxes, odd) -> None:
    _, new, images = boxes
    entry = named("tmp/odd")
    entry.pax_headers = odd
    archive(images, entry)
    with pytest.raises(RestoreError, match="can't be laid out"):
        new.lay_out(images)


def test_more_than_may_travel_is_refused(boxes) -> None:
    _, new, images = boxes
    archive(images, named("tmp/big"), data=b"x" * (MIB + 1))
    with pytest.raises(RestoreError, match="carry_bytes"):
        new.lay_out(images)


def test_what_became_a_link_or_a_device_since_it_was_looked_at_is_not_opened(
    boxes, tmp_path, monkeypatch
) -> None:
    old, _, images = boxes
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    (old.root / "tmp" / "x").write_text("plain")
    real = os.stat

    def swapped(path, *rest, **more):
        found = real(path, *rest, **more)
        if path == "x":
            (old.root / "tmp" / "x").unlink()
            (old.root / "tmp" / "x").symlink_to(secret)
        return found

    monkeypatch.setattr(os, "stat", swapped)
    old.gather(images)
    assert b"the host's" not in (images / ARCHIVE).read_bytes()


@pytest.mark.parametrize("text", ["{", "[]", '{"home": 1, "x": 2}'])
def test_a_note_that_is_none_is_refused(boxes, text) -> None:
    _, new, images = boxes
    (images / NOTE).write_text(text)
    with pytest.raises(RestoreError):
        new.lay_out(images)


def test_what_only_a_newer_release_notes_is_passed_over(boxes) -> None:
    old, new, images = boxes
    (old.root / "tmp" / "x").write_text("x")
    old.gather(images)
    note = json.loads((images / NOTE).read_text())
    (images / NOTE).write_text(json.dumps({**note, "compressed": False}))
    assert new.lay_out(images) == 1
    assert (new.root / "tmp" / "x").read_text() == "x"


def test_images_of_before_have_no_files(boxes) -> None:
    _, new, images = boxes
    assert new.lay_out(images) == 0


def test_a_container_that_is_gone_is_told(tmp_path) -> None:
    (tmp_path / "proc").mkdir()
    with pytest.raises(NotFoundError):
        gather(7, tmp_path, MIB, LIMIT, str(tmp_path / "proc"))
