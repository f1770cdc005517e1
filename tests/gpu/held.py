"""Processes that hold GPU memory, and answer a line with a line."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.machine import SkippedError, has_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
START_LIMIT = 300.0
ANSWER_LIMIT = 60.0


class Held:
    """A program of `tests.gpu.programs` that runs. `pids`: its processes that use CUDA."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        """Wait until it has filled its memory. Raises SkippedError if it says that it can't."""
        assert running.stdin is not None
        assert running.stdout is not None
        self.pid = running.pid
        self._questions, self._answers = running.stdin, running.stdout
        first, _, rest = self._line(START_LIMIT).partition(" ")
        if first == "missing":
            raise SkippedError(rest)
        assert first == "ready", "the program did not start; it said why above"
        self.pids = [self.pid, *map(int, rest.split())]

    def answer(self) -> str:
        """What it computes from its memory."""
        self._questions.write("go\n")
        self._questions.flush()
        return self._line(ANSWER_LIMIT)

    def _line(self, limit: float) -> str:
        ready, _, _ = select.select([self._answers], [], [], limit)
        assert ready, f"process {self.pid} gave no answer within {limit:g} s"
        line = self._answers.readline()
        assert line, f"process {self.pid} has died; its words are above"
        return line.strip()


@contextlib.contextmanager
def held(uuid: str, program: str, *words: str) -> Iterator[Held]:
    """Such a program on these GPUs (UUIDs with commas between); it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", f"tests.gpu.programs.{program}", *words],
        cwd=REPOSITORY,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid, "PYTHONPATH": path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield Held(running)
        finally:
            running.kill()


def model(uuid: str, amount: int, *, toy: bool = False) -> contextlib.AbstractContextManager[Held]:
    """A model of so many bytes: PyTorch's weights, or the toy's memory."""
    if toy or not has_torch():
        return held(uuid, "hold", f"--bytes={amount}")
    return held(uuid, "weights", str(amount))


def timed(what: object, *arguments: object) -> float:
    """Seconds that a call takes."""
    assert callable(what)
    began = time.monotonic()
    what(*arguments)
    return time.monotonic() - began


def path() -> str:
    """PYTHONPATH for what is started: these sources, and what this process has been given."""
    return os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
