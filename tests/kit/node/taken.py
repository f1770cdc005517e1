"""A process with much memory, of which a driver takes some more when it is parked.

The script plays the driver's part, too: told to park it gets memory as a checkpoint does, next to
what it has, below or above; told to read, it reads that, as a driver does before the first answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from kybernate.adapters.kernel.procfs import Procfs
from nodeagent.offload.helper import Noting
from nodeagent.offload.images.dumper import AgentDumper
from nodeagent.offload.images.first import Marks
from tests.kit.node.containers import wait_for
from tests.kit.node.parking import LIMIT
from tests.kit.node.programs import python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.node.parking import Seat

MIB = 1 << 20
PAGE = 4096

_SCRIPT = """
import ctypes, hashlib, mmap, os, time
PAGE, PRIVATE = 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
def memory(size):
    one = mmap.mmap(-1, size << 20, flags=PRIVATE)
    piece = os.urandom(PAGE)
    for at in range(0, len(one), PAGE):
        one[at:at + PAGE] = at.to_bytes(8, "little") + piece[8:]
    return one
def told():
    return [hashlib.sha256(part).hexdigest() for part in (rest, taken)]
def at(part):
    return ctypes.addressof(ctypes.c_char.from_buffer(part))
def asked(what):
    if os.path.exists("/app/" + what):
        os.remove("/app/" + what)
        return True
def answer(what, text):
    with open("/app/part", "w") as file:
        file.write(text)
    os.rename("/app/part", "/app/" + what)
hole = mmap.mmap(-1, %(taken)d + 8 << 20, flags=PRIVATE, prot=0)
if not %(highest)d:
    hole.close()
rest = memory(%(rest)d)
print("ready", flush=True)
while True:
    time.sleep(0.0005)
    if asked("park"):
        hole.close()
        taken = memory(%(taken)d)
        before = told()
        answer("parked", f"{at(taken)} {at(rest)}")
    if asked("read"):
        for start in range(0, len(taken), 1 << 20):
            taken[start:start + (1 << 20)]
        answer("done", "")
    if asked("look"):
        answer("seen", str(told() == before))
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """MiB that the driver takes, and that the process has; `highest`: these have the lower ones of
    their addresses."""

    taken: int
    rest: int
    highest: bool = False


class Taking:
    """The container's tree. `taken` and `rest`: their addresses."""

    def __init__(self, seat: Callable[..., Seat], folder: Path, notes: Path, sizes: Sizes) -> None:
        self._folder, self._notes = folder, notes
        self.seat = python(seat, folder, _SCRIPT % asdict(sizes))
        # Of a driver, and of a freezer, no more is called than what there is.
        Noting(cast("Any", self), notes).checkpoint(self.pid)
        (self.note,) = (note.read_text() for note in notes.iterdir())
        self.taken, self.rest = map(int, (folder / "parked").read_text().split())
        assert (self.taken > self.rest) is sizes.highest, "the kernel puts it elsewhere"
        marks = Marks(self.seat.freezer.pids, Procfs(), notes)
        dumper = AgentDumper(self.seat.criu, lambda _: None, marks=marks)
        self.seat.criu = cast("Any", dumper)

    def checkpoint(self, pid: int) -> None:
        """As a driver's: it has its memory when this returns."""
        self.ask("park", "parked")

    @property
    def pid(self) -> int:
        """The process that runs the script; its parent is kyb-tree."""
        seat = self.seat
        (pid,) = (pid for pid in seat.freezer.pids(seat.handle) if pid != seat.container.tree)
        return pid

    def note_again(self, *, known: bool = True) -> None:
        """It was restored, and parked anew: whether anybody knows what the driver took."""
        for note in self._notes.iterdir():
            note.unlink()
        if known:
            (self._notes / f"{self.pid}-{Procfs().start_time(self.pid)}").write_text(self.note)

    def ask(self, what: str, answer: str) -> str:
        """What it says when that is done."""
        told = self._folder / answer
        told.unlink(missing_ok=True)
        (self._folder / what).touch()
        wait_for(told.exists, f"it doesn't {what}", LIMIT)
        return told.read_text()

    def is_right(self) -> bool:
        """Whether all its memory is as it was."""
        return self.ask("look", "seen") == "True"

    def present(self, address: int, size: int) -> int:
        """How many of so many MiB are in memory, in pages."""
        with open(f"/proc/{self.pid}/pagemap", "rb", buffering=0) as file:
            file.seek(address // PAGE * 8)
            words = file.read(size * MIB // PAGE * 8)
        return sum(words[at] >> 7 for at in range(7, len(words), 8))
