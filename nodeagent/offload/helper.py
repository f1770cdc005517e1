"""The helpers' process where seats are offloaded: notes which memory the driver takes.

A checkpoint puts what a process had on its GPUs into memory of the process. Which that is must be
known when the process is restored from a disk, where it is to come first: see
`nodeagent.offload.images.first`. A note is a file by the process's PID and start time, so that it
is there for the next agent, too; it goes before the memory may be another. What can't be noted
costs time at a restore, and no more.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.cuda import helper as cuda_helper
from kybernate.adapters.kernel import smallfile
from kybernate.core.swap.drivermemory import grown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.adapters.cuda.helper import Driver, Pairs
    from kybernate.settings.agent import AgentSettings

_PIECE = 1 << 20


def notes_of(settings: AgentSettings) -> Path:
    """The folder of the notes."""
    return settings.state_dir / "driver"


def command(settings: AgentSettings) -> tuple[str, ...]:
    """What `CudaHelpers` is to start."""
    if settings.criu is None:
        return (sys.executable, "-m", "kybernate.adapters.cuda.helper")
    own = ("kybernate.programs", "nodeagent.offload.helper")
    return (sys.executable, "-m", *own, str(notes_of(settings)))


class Noting:
    """Implements `cuda_helper.Driver` by another one. `proc`: where processes are seen."""

    def __init__(self, driver: Driver, folder: Path, proc: str = "/proc") -> None:
        self._driver, self._folder, self._proc = driver, folder, proc
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def init(self) -> None:
        """As the driver's."""
        self._driver.init()

    def gpus(self) -> Sequence[bytes]:
        """As the driver's."""
        return self._driver.gpus()

    def state(self, pid: int) -> int:
        """As the driver's."""
        return self._driver.state(pid)

    def lock(self, pid: int, timeout_ms: int) -> None:
        """As the driver's."""
        self._driver.lock(pid, timeout_ms)

    def checkpoint(self, pid: int) -> None:
        """As the driver's, and the note of what came to the process."""
        note, before = self._forget(pid), b""
        if note is not None:
            with suppress(OSError):
                before = self._maps(pid)
        self._driver.checkpoint(pid)
        if note is not None and before:
            with suppress(OSError, ValueError):
                text = grown(before, self._maps(pid)).text()
                with open(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                    file.write(text)

    def restore(self, pid: int, pairs: Pairs) -> None:
        """As the driver's; what the note says is no more."""
        self._forget(pid)
        self._driver.restore(pid, pairs)

    def unlock(self, pid: int) -> None:
        """As the driver's."""
        self._driver.unlock(pid)

    def _forget(self, pid: int) -> Path | None:
        """Where its note is to be; None if it can't be told."""
        with suppress(OSError, IndexError):
            stat = smallfile.read(f"{self._proc}/{pid}/stat").rpartition(")")[2].split()
            note = self._folder / f"{pid}-{stat[19]}"
            note.unlink(missing_ok=True)
            return note
        return None

    def _maps(self, pid: int) -> bytes:
        with open(f"{self._proc}/{pid}/maps", "rb", buffering=0) as file:
            return b"".join(iter(lambda: file.read(_PIECE), b""))


def main() -> None:
    """The mother's process: the folder of the notes, then its end of the control socket."""
    folder = Path(sys.argv.pop(1))
    cuda_helper.main(lambda: Noting(cuda_helper.CudaDriver(), folder))


if __name__ == "__main__":
    main()
