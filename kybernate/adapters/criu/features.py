"""What CRIU knows of the kernel: it tries that once, and keeps it until the node is booted again.

In the first container it would judge for all by that one: where a network has no `lo` it gives up,
where one has no IPv6 it would take the kernel for one without. So it is tried here.
"""

from __future__ import annotations

import logging
import os
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kybernate.adapters.criu import running

if TYPE_CHECKING:
    from kybernate.adapters.criu.running import Tools

log = logging.getLogger(__name__)

FILE = "criu.kdat"
_DEADLINE = 30.0


def learn(tools: Tools) -> None:
    """Unless it is known. If it can't be found out here the first container's CRIU tries it."""
    if (tools.cache / FILE).exists():
        return
    try:
        done = _tried(tools)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("CRIU can't try what this kernel can: %s", error)
        return
    if not (tools.cache / FILE).exists():
        log.warning("CRIU didn't find out what this kernel can: %s", done.stdout.strip()[-500:])


def _tried(tools: Tools) -> subprocess.CompletedProcess[str]:
    with ExitStack() as stack:

        def opened(path: str, flags: int) -> int:
            found = os.open(path, flags | os.O_CLOEXEC)
            stack.callback(os.close, found)
            return found

        program = opened(str(tools.criu), os.O_PATH)
        cache = opened(str(tools.cache), os.O_RDONLY | os.O_DIRECTORY)
        argv = [str(tools.enter), "--here", "--run", str(program)]
        argv += ["--keep", f"{cache}={running.CACHE}", "--", "criu", "check", "--no-default-config"]
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(program, cache),
            env={},
            cwd="/",
            text=True,
            timeout=_DEADLINE,
            check=False,
        )
