"""A wall clock that jumps, for processes that were started with the preloaded library.

The host's clock is left alone: agent, plugin, helpers and workloads of the node read their time
through `clock.c`, which adds what the node's file says. Static programs don't.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
FOLDER = "/run/simgpu"
"""Where nodes and containers see the simulated driver's folder."""

ENV = {"LD_PRELOAD": f"{FOLDER}/lib/libclock.so", "TEST_WALL_CLOCK": f"{FOLDER}/clock"}
"""The environment of a process whose clock shall jump."""

_OFFSET = struct.Struct("<q")


class WallClock:
    """The wall clock of one node. `root` is its simulated driver's folder."""

    def __init__(self, root: Path) -> None:
        self._file = root / "clock"
        self._library = root / "lib" / "libclock.so"

    def install(self) -> None:
        """Compile the library into the folder; processes started from now on have the clock."""
        self._file.write_bytes(_OFFSET.pack(0))
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
        fresh = self._library.with_suffix(".new")
        subprocess.run(["gcc", *flags, "-o", str(fresh), str(SOURCE)], check=True, timeout=60)
        fresh.rename(self._library)

    def jump(self, seconds: float) -> None:
        """Set it to the real time plus `seconds`."""
        with self._file.open("r+b") as file:
            file.write(_OFFSET.pack(round(seconds * 1e9)))
