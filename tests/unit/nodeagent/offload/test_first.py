"""What was on the GPUs is marked in the images, as far as somebody has noted where it is."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.container.criuimages import read_page_map
from kybernate.adapters.criu.record import Record
from kybernate.adapters.cuda.helper import CallError, Engine, State
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.core.swap.drivermemory import Grown, read
from kybernate.gen.criuimages_pb2 import MapHead
from kybernate.settings.agent import AgentSettings
from nodeagent.offload.helper import Noting, command, notes_of
from nodeagent.offload.images.dumper import AgentDumper
from nodeagent.offload.images.first import Marks, first_of
from tests.kit.criuimages import entry, write_page_map
from tests.unit.adapters.cuda.fake_driver import FakeDriver

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
AT = 0x7F0000000000
LAZY = 6


class Taking(FakeDriver):
    """Gets memory of this process as it checkpoints it, as a driver does."""

    def __init__(self) -> None:
        super().__init__({os.getpid(): State.RUNNING})
        self.memory: list[mmap.mmap] = []

    def checkpoint(self, pid: int) -> None:
        super().checkpoint(pid)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.memory.append(mmap.mmap(-1, 64 * MIB, flags=flags))


def note_of(pid: int, folder: Path) -> Path:
    return folder / f"{pid}-{Procfs().start_time(pid)}"


def test_what_a_checkpoint_takes_is_noted_until_it_is_restored(tmp_path):
    driver, pid = Taking(), os.getpid()
    engine = Engine(Noting(driver, tmp_path / "notes"))
    engine.park([pid], 100)
    note = note_of(pid, tmp_path / "notes")
    found = read(note.read_text())
    # Some of where it lies may have been other memory, which somebody gave back meanwhile.
    assert 60 * MIB <= sum(end - start for start, end in found.private) < 80 * MIB
    engine.wake([pid], {})
    assert not note.exists()


def test_a_checkpoint_that_fails_is_not_noted_nor_one_of_before_believed(tmp_path):
    driver, pid = Taking(), os.getpid()
    note_of(pid, tmp_path).write_text(Grown(((0, 4096),)).text())
    driver.fail("checkpoint", pid, 304)
    with pytest.raises(CallError):
        Engine(Noting(driver, tmp_path)).park([pid], 100)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_noted_it_is_parked_all_the_same(tmp_path):
    (tmp_path / "notes").write_text("a file")
    driver, pid = Taking(), os.getpid()
    Engine(Noting(driver, tmp_path / "notes")).park([pid], 100)
    assert driver.states == {pid: State.CHECKPOINTED}
    gone = FakeDriver({999_999_999: State.RUNNING})
    Engine(Noting(gone, tmp_path)).park([999_999_999], 100)
    assert gone.states == {999_999_999: State.CHECKPOINTED}


def test_helpers_note_where_seats_are_parked_below_ram(tmp_path):
    there = AgentSettings(node="n1", state_dir=tmp_path, criu=tmp_path / "criu")
    assert command(there)[-2:] == ("nodeagent.offload.helper", str(notes_of(there)))
    assert "nodeagent.offload.helper" not in command(AgentSettings(node="n1", state_dir=tmp_path))


class Dumper:
    """Writes the images of one process, the test's own; `entries` are its memory's."""

    def __init__(self, *entries: bytes) -> None:
        self.entries = entries
        self.record = Record(tree=2, highest=9, stdio=())

    async def dump(self, init, handle, images, deadline, *, continues=False):
        head = MapHead(pages_id=1).SerializeToString()
        inner = Procfs().pid_in_container(os.getpid())
        write_page_map(images / f"pagemap-{inner}.img", [head, *self.entries])
        if self.record:
            self.record.write(images)
        return {"criu": 1.0}


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    return folder


def dumped(dumper: Dumper, images: Path, notes: Path) -> int:
    marks = Marks(lambda _: (os.getpid(), 999_999_999), Procfs(), notes)
    marking = AgentDumper(dumper, lambda _: None, marks=marks)
    phases = asyncio.run(marking.dump(1, "handle", images, 5.0))
    assert set(phases) == {"criu", "mark"}
    return first_of(images)


def note(notes: Path, text: str) -> None:
    notes.mkdir(exist_ok=True)
    note_of(os.getpid(), notes).write_text(text)


def test_the_pages_noted_come_first_and_the_images_say_how_much(tmp_path, images):
    note(tmp_path / "notes", Grown(((AT + 4096, AT + 8192),), shared=MIB).text())
    assert dumped(Dumper(entry(AT, 3, LAZY)), images, tmp_path / "notes") == 4096 + MIB
    (path,) = images.glob("pagemap-*")
    assert list(read_page_map(path).counts) == [1, 1, 1]
    found = Record.read(images)
    assert (found.tree, found.highest, found.first) == (2, 9, 4096 + MIB)
    assert {one.name for one in images.iterdir()} == {path.name, "kybernate.json"}


@pytest.mark.parametrize("text", ["", "{", Grown(((0, 4096),)).text()])
def test_without_a_note_that_fits_nothing_comes_first(tmp_path, images, text):
    note(tmp_path / "notes", text)
    assert dumped(Dumper(entry(AT, 3, LAZY)), images, tmp_path / "notes") == 0
    (path,) = images.glob("pagemap-*")
    assert list(read_page_map(path).counts) == [3]


def test_without_the_folder_either(tmp_path, images):
    assert dumped(Dumper(entry(AT, 3, LAZY)), images, tmp_path / "notes") == 0


def test_what_can_not_be_marked_is_told_and_dumped_all_the_same(tmp_path, images, caplog):
    note(tmp_path / "notes", Grown(((AT, AT + 4096),)).text())
    with caplog.at_level(logging.WARNING):
        assert dumped(Dumper(b"\xff"), images, tmp_path / "notes") == 0
    assert "can't be put first" in caplog.text


def test_images_without_a_record_say_nothing(tmp_path, images, caplog):
    note(tmp_path / "notes", Grown(((AT, AT + 4096),)).text())
    dumper = Dumper(entry(AT, 3, LAZY))
    dumper.record = None
    with caplog.at_level(logging.WARNING):
        assert dumped(dumper, images, tmp_path / "notes") == 0
    assert "nobody knows what comes first" in caplog.text


def test_notes_of_the_dead_go(tmp_path, images):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        dead = note_of(process.pid, tmp_path)
        dead.write_text("{}")
        process.communicate()
    (tmp_path / "notes").mkdir()
    dead = dead.rename(tmp_path / "notes" / dead.name)
    other = tmp_path / "notes" / "no-note"
    other.touch()
    note(tmp_path / "notes", Grown().text())
    dumped(Dumper(), images, tmp_path / "notes")
    assert set((tmp_path / "notes").iterdir()) == {other, note_of(os.getpid(), tmp_path / "notes")}
