"""The day's time and its JSON, with parts that answer at once, hang, or die."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.gpu import luggage
from tests.gpu.day import NO_GPU, OUT_OF_TIME, Outcome, ask, limit_of, read, report
from tests.gpu.held import held
from tests.gpu.here import Here
from tests.gpu.machine import SkippedError, is_gvisor
from tests.gpu.questions import PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.gpu.questions import Part

WHOLE = 525.0


class Runner:
    """Parts that take a share of their planned time, on a clock of their own."""

    def __init__(self, share: float, outcome: str = "done") -> None:
        self.share, self.outcome, self.now = share, outcome, 0.0
        self.planned: dict[str, float] = {}
        self.known: list[Mapping[str, Any]] = []

    def __call__(
        self, part: Part, planned: float, limit: float, known: Mapping[str, Any]
    ) -> Outcome:
        assert planned <= limit
        self.planned[part.name] = planned
        self.known.append(dict(known))
        self.now += min(limit, planned * self.share)
        answers = {part.questions[0].name: (1, "")}
        return Outcome(self.outcome, "why", answers=answers)


def asked(runner: Runner, limit: float) -> dict[str, Outcome]:
    *_, found = ask(runner, PARTS, limit, lambda: runner.now)
    return found


def test_a_whole_day_gives_each_part_its_share() -> None:
    runner = Runner(1.0)
    asked(runner, WHOLE)
    assert runner.now <= WHOLE
    assert runner.planned["local"] > 180
    assert all(runner.planned[part.name] > 0.8 * part.share for part in PARTS)


def test_what_a_part_leaves_is_the_later_ones() -> None:
    runner = Runner(0.1)
    asked(runner, WHOLE)
    assert runner.planned["disk"] > 3 * PARTS[-1].share


def test_parts_that_hang_take_no_more_than_the_day() -> None:
    runner = Runner(100.0)
    found = asked(runner, WHOLE)
    assert runner.now <= WHOLE
    assert set(found) == {part.name for part in PARTS}


def test_a_part_that_does_not_fit_is_not_begun() -> None:
    runner = Runner(1.0)
    found = asked(runner, 14)
    assert "local" not in runner.planned
    assert found["local"].ended == "skipped"
    assert found["local"].why.startswith("it needs 15 s, and")


def test_a_part_that_needs_more_than_its_share_gets_that() -> None:
    assert limit_of(PARTS[-1], PARTS[-1:], PARTS[-1].least) == PARTS[-1].least
    assert limit_of(PARTS[0], PARTS, 60) == PARTS[0].least
    assert limit_of(PARTS[0], PARTS, 1) == 0.0


def test_later_parts_know_what_earlier_ones_answered() -> None:
    runner = Runner(0.1)
    asked(runner, WHOLE)
    assert runner.known[3] == {part.questions[0].name: 1 for part in PARTS[:3]}


def test_without_a_gpu_the_first_part_is_the_last() -> None:
    runner = Runner(0.0, NO_GPU)
    found = asked(runner, WHOLE)
    assert list(found) == ["machine"]
    told = report(found, WHOLE, 1.0)
    assert told["skipped"] == "why"
    assert told["failed"] == []
    assert told["answers"]["disk.bytes"]["says"] == "why"


def test_what_was_answered_before_a_part_hung_counts() -> None:
    told = '{"name": "kinds.pool", "value": true, "says": "it parks"}\n{"name": "kinds.nc'
    one = read(told, None, 12.0)
    assert (one.ended, one.answers) == (OUT_OF_TIME, {"kinds.pool": (True, "it parks")})
    whole = report({"kinds": one}, WHOLE, 1.0)
    assert whole["failed"] == [f"kinds: {one.why}"]
    assert whole["answers"]["kinds.nccl"]["says"] == one.why


LEAVES = """
import subprocess, sys, time
from tests.gpu import day
day.adopt_orphans()
shell = "unshare --pid --fork sleep 300 & sleep 0.5; read p _ < /proc/$!/task/$!/children; "
shell += "nsenter --target $p --pid sh -c 'sleep 300; true' & setsid sleep 300 & sleep 300"
part = subprocess.Popen(["sh", "-c", shell], start_new_session=True)
time.sleep(2)
began = time.monotonic()
day._end(part)
print(len(day._children()), time.monotonic() - began < day._GRACE)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes PID namespaces")
def test_what_a_part_leaves_behind_is_ended() -> None:
    """A namespace's process 1 ends after those that entered it, and they are ours to reap."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVES],
        cwd=luggage.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "0 True\n", done.stderr


def test_a_part_that_died_is_told() -> None:
    assert read("", -11, 12.0).why == "its process ended with status -11 and did not say why"


def test_an_answer_that_differs_fails_the_day_only_if_it_must_not() -> None:
    answers: dict[str, tuple[Any, str]] = {
        "park.answers_equal": (False, "it answered b instead of a"),
        "park.listed": (True, "NVML lists it"),
        "park.added_found": (True, ""),
    }
    told = report({"park": Outcome("done", answers=answers)}, WHOLE, 1.0)
    assert told["failed"] == ["park.answers_equal: it answered b instead of a"]
    assert told["differs"] == ["park.answers_equal", "park.listed"]
    assert told["answers"]["local.swaps"]["says"] == "this part wasn't asked"


def test_names_are_of_their_parts_and_are_answered_in_them() -> None:
    for part in PARTS:
        source = (Path(luggage.REPOSITORY) / f"tests/gpu/parts/{part.name}.py").read_text()
        assert source
        assert all(one.name.startswith(f"{part.name}.") for one in part.questions)
    names = [one.name for part in PARTS for one in part.questions]
    assert len(names) == len(set(names))


def test_gvisor_is_known_by_its_log_or_its_version() -> None:
    assert is_gvisor("[    0.000000] Starting gVisor...\n", "Linux version 6.1")
    assert is_gvisor("", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016")
    assert not is_gvisor("", "Linux version 6.18.44")


def test_rounds_end_by_time_or_by_count() -> None:
    late = Here(("GPU-1",), time.monotonic() - 1)
    assert late.another(late.until)(0)
    assert not late.another(late.until)(1)
    assert late.another(late.until, least=3)(2)
    few = Here(("GPU-1",), time.monotonic() + 1000, rounds=2)
    assert few.another(few.until)(1)
    assert not few.another(few.until)(2)


def test_what_is_too_big_to_travel_is_named(tmp_path: Path) -> None:
    small, big = tmp_path / "small", tmp_path / "big"
    small.write_bytes(b"x" * 1000)
    big.write_bytes(b"x" * (2 << 20))
    assert luggage.too_big([small], 1 << 20) is None
    said = luggage.too_big([small, big], 1 << 20)
    assert said is not None
    assert f"{big} (2.0 MiB), {small}" in said
    assert "2.0 MiB travel, and 1 MiB may" in said


def test_the_sources_alone_may_travel() -> None:
    assert luggage.too_big(luggage.sources(), 32 << 20) is None


def test_what_was_brought_is_found_by_what_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, packed = tmp_path / "build" / "gpu", tmp_path / "packed"
    for made in (folder, packed):
        made.mkdir(parents=True)
    (packed / "brought.py").touch()
    shutil.make_archive(str(folder / "packages"), "zip", packed)
    (folder / "kyb-init").touch()
    (folder / "criu").touch()
    monkeypatch.setattr(luggage, "FOLDER", folder)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(os, "environ", {**os.environ, "PYTHONPATH": "/theirs"})
    os.environ.pop("KYB_CRIU", None)
    luggage.use()
    assert os.environ["PYTHONPATH"].split(":")[1:] == [str(folder / "site"), "/theirs"]
    assert os.environ["KYB_CRIU"] == str(folder / "criu")
    assert (folder / "site" / "brought.py").exists()
    assert (tmp_path / "build" / "kyb-init").exists()


def test_a_program_that_can_not_run_here_says_why() -> None:
    with pytest.raises(SkippedError, match="PyTorch"), held("", "kinds", "cudnn"):
        pass
