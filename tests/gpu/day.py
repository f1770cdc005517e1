"""The day: its parts one after the other, each in a process of its own, and the JSON of all.

A driver call may hang for ever, so a part is ended when its time is over; what it had answered by
then counts. Time that a part leaves is the later ones'.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.machine import simulated
from tests.gpu.questions import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.gpu.questions import Part, Question

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 525.0
"""Seconds of a whole day: nine minutes, less what make and the end take."""
VERSION = 1
NO_GPU = "no gpu"
OUT_OF_TIME = "out of time"
_PR_SET_CHILD_SUBREAPER = 36
_GRACE = 5.0
_PLANNED = 0.9
"""Share of the time that parts plan with: what they begin takes longer than what they began."""


@dataclass
class Outcome:
    """What became of a part. `ended`: done, skipped, failed, `OUT_OF_TIME`, or `NO_GPU`."""

    ended: str
    why: str = ""
    seconds: float = 0.0
    limit: float = 0.0
    answers: dict[str, tuple[Any, str]] = field(default_factory=dict)


def limit_of(part: Part, rest: Sequence[Part], left: float) -> float:
    """Seconds that a part may plan with. `rest`: the part and those after it; 0: none are left."""
    share = _PLANNED * left * part.share / sum(one.share for one in rest)
    found = max(part.least, share)
    return found if found <= left else 0.0


def ask(
    run: Callable[[Part, float, float, Mapping[str, Any]], Outcome],
    parts: Sequence[Part],
    limit: float,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, Outcome]]:
    """Run the parts, by `run` with the seconds to plan with and those after which it is ended; tell
    after each what is found by then."""
    until, found = now() + limit, dict[str, Outcome]()
    known: dict[str, Any] = {}
    for number, part in enumerate(parts):
        left = until - now()
        planned = limit_of(part, parts[number:], left)
        if not planned:
            why = f"it needs {part.least:g} s, and {max(0.0, left):.0f} s of {limit:g} are left"
            found[part.name] = Outcome("skipped", why)
            yield found
            continue
        found[part.name] = one = run(part, planned, min(left, 1.5 * planned + _GRACE), known)
        known |= {name: value for name, (value, _) in one.answers.items()}
        yield found
        if one.ended == NO_GPU:
            return
        print(_line(part, one), file=sys.stderr, flush=True)


def _line(part: Part, one: Outcome) -> str:
    answered = sum(value is not None for value, _ in one.answers.values())
    said = f"{part.name:8} {answered:2} of {len(part.questions)} in {one.seconds:5.1f} s"
    return f"{said}, {one.ended}{': ' if one.why else ''}{one.why}"


def run(rounds: int, part: Part, planned: float, limit: float, known: Mapping[str, Any]) -> Outcome:
    """Run a part in a process of its own, and end all that it leaves behind."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kyb-gpu-") as folder:
        told, given = Path(folder) / "told", Path(folder) / "known"
        given.write_text(json.dumps(dict(known)))
        words = [sys.executable, "-m", "tests.gpu.part", part.name]
        words += [str(planned), str(rounds), str(given)]
        with told.open("wb") as out:
            process = subprocess.Popen(words, cwd=REPOSITORY, stdout=out, start_new_session=True)
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
        one = read(told.read_text(), status, limit)
    one.seconds, one.limit = time.monotonic() - began, planned
    return one


def read(told: str, status: int | None, limit: float) -> Outcome:
    """What a part's process told, line by line; `status` is None if it was ended."""
    out_of_time = f"it was ended after {limit:.0f} s: something hangs, or needs more time"
    died = f"its process ended with status {status} and did not say why"
    one = Outcome(OUT_OF_TIME, out_of_time) if status is None else Outcome("failed", died)
    for line in told.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if "ended" in found:
                one.ended, one.why = found["ended"], found["why"]
            else:
                one.answers[found["name"]] = (found["value"], found["says"])
    return one


def _end(process: subprocess.Popen[bytes]) -> None:
    """The part's process and what it has started; the kernel gives us those whose parent died."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + _GRACE
    while (children := _children()) and time.monotonic() < until:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.01)


def _reap() -> None:
    """All that have ended. None is waited for: process 1 of a namespace ends after all others in
    it, and some of those are our children, too."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def adopt_orphans() -> None:
    """Be the parent of every process below this one whose parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    found.append(int(entry.name))
    return found


def report(found: Mapping[str, Outcome], limit: float, seconds: float) -> dict[str, Any]:
    """The JSON: every question has its answer, or the sentence why it has none."""
    skipped = next((one.why for one in found.values() if one.ended == NO_GPU), None)
    answers = {
        question.name: _answer(question, found.get(part.name), skipped)
        for part in PARTS
        for question in part.questions
    }
    return {
        "test": "gpu",
        "version": VERSION,
        "skipped": skipped,
        "simulated": simulated(),
        "seconds": round(seconds, 1),
        "limit_s": limit,
        "failed": list(_failed(found)),
        "differs": [name for name, one in answers.items() if one.get("differs")],
        "parts": {
            name: {"ended": one.ended, "why": one.why, "seconds": round(one.seconds, 1),
                   "limit_s": round(one.limit, 1)}
            for name, one in found.items()
        },
        "answers": answers,
    }  # fmt: skip


def _answer(question: Question, one: Outcome | None, skipped: str | None) -> dict[str, Any]:
    if one is not None and question.name in one.answers:
        value, says = one.answers[question.name]
    else:
        value, says = None, skipped or (one.why if one is not None else "this part wasn't asked")
        says = says or "this part came to its end without it"
    told = {"value": value, "unit": question.unit, "asks": question.asks, "says": says}
    if question.expected is not None:
        told["expected"] = question.expected
        told["differs"] = value is not None and value != question.expected
    return told


def _failed(found: Mapping[str, Outcome]) -> Iterator[str]:
    """What must not be: a part that came to no end, or an answer that must be another."""
    for part in PARTS:
        one = found.get(part.name)
        if one is None:
            continue
        if one.ended in ("failed", OUT_OF_TIME):
            yield f"{part.name}: {one.why}"
        for question in part.questions:
            value, says = one.answers.get(question.name, (None, ""))
            if question.must and value is not None and value != question.expected:
                yield f"{question.name}: {says}"
