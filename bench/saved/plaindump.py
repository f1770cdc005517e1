"""What a plain dump to tmpfs takes: `criu dump` of one process, which goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.report import say
from bench.saved.barecriu import Bare
from images import criu
from kybernate.adapters.criu import Tools
from kybernate.adapters.criu.features import learn
from tests.cluster.layout import REPOSITORY
from tests.kit.node.containers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOLDS = """
import os, pathlib, sys, time
kept = bytearray(os.urandom(int(sys.argv[1]) << 20))
pathlib.Path(sys.argv[2]).touch()
while True:
    time.sleep(3600)
"""


@contextmanager
def process(mib: int, shm: Path) -> Iterator[Callable[[], float]]:
    """A process with so much random memory; what is given dumps it and returns the seconds."""
    tools = Tools(REPOSITORY / "build" / "kyb-enter", criu.for_this_machine(say))
    tools.check()
    learn(tools)
    ready = shm / "ready"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(mib), str(ready)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    try:
        wait_for(ready.exists, "the process to be dumped doesn't start")
        bare = Bare(tools, os.getpid(), lambda: child.pid, shm / "dump")

        def dump() -> float:
            seconds = bare.dump(goes_on=True)
            for path in bare.images.iterdir():
                path.unlink()
            return seconds

        yield dump
    finally:
        child.kill()
        child.wait()
