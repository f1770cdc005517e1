"""What other users of the machine try against a box."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.local.conftest import Box, eventually, python

STRANGER = 54321
_AS_STRANGER = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
_PRETENDS = """
import ctypes, sys, time
words = b"\\0".join(word.encode() for word in sys.argv[1:]) + b"\\0"
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = int(fields[45]), int(fields[46])
ctypes.CDLL(None).prctl(15, b"kyb-wait", 0, 0, 0)
ctypes.memmove(begin, words.ljust(end - begin, b"\\0"), end - begin)
time.sleep(1000)
"""
"""A program that shows other words than its own, and kyb-init's name."""


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user takes root")
def test_a_process_of_another_user_is_not_taken_for_a_models(box: Box):
    box.has("a")
    box.start("--keep")
    box.ask("a")
    (told,) = {Path(f"/proc/{pid}/cmdline").read_text() for pid in box.inits()}
    words = told.split("\0")[:-1]
    assert box.end() == 0
    for pid in box.inits():
        os.kill(pid, signal.SIGKILL)
    stranger = subprocess.Popen([*_AS_STRANGER, python(), "-c", _PRETENDS, *words])
    try:
        shown = Path(f"/proc/{stranger.pid}/cmdline")
        eventually(lambda: shown.read_text().startswith(told))
        box.start()
        assert box.ask("a")["counter"] == 1
    finally:
        stranger.kill()
        stranger.wait()
