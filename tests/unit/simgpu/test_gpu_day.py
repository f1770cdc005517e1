"""The GPU day on the simulated driver: every question has its answer, or says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.gpu.questions import PARTS
from tests.simgpu import Fault

from .conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Node

NAMES = [question.name for part in PARTS for question in part.questions]
SMALL = [{"product": "small", "memory": "64MiB"}]
NOT_SIMULATED = {
    *("bus.pin_small_gb_s", "bus.pin_huge_gb_s", "machine.torch"),
    *("kinds.cublas", "kinds.cudnn", "kinds.nccl", "kinds.graphs", "kinds.vmm"),
    *("kinds.ipc", "kinds.managed", "kinds.unharmed"),
}
"""What has no answer, since the simulated driver lacks it. What the disk needs may lack, too."""


def day(
    out: Path, *words: str, environment: dict[str, str] | None = None, limit: float = 280
) -> tuple[int, dict[str, Any], str]:
    """The exit status, the JSON, and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", f"--out={out / 'day.json'}", *words],
        cwd=REPOSITORY,
        env=environment or dict(os.environ),
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == json.loads((out / "day.json").read_text())
    assert list(told["answers"]) == NAMES
    assert all(one["value"] is not None or one["says"] for one in told["answers"].values())
    return done.returncode, told, done.stderr


@pytest.mark.slow
def test_the_whole_day_is_asked_of_the_simulated_driver(tmp_path: Path) -> None:
    """Few rounds of each part, within half of the nine minutes."""
    status, told, said = day(tmp_path, "--simulate", "--rounds=2", "--seconds=270")
    assert (status, told["failed"], told["simulated"]) == (0, [], True), said
    answers = {name: one["value"] for name, one in told["answers"].items()}
    asked = {name for name in answers if told["parts"][name.split(".")[0]]["ended"] == "done"}
    assert {"machine", "calls", "bus", "park", "local"} <= {name.split(".")[0] for name in asked}
    missing = {name for name in asked if answers[name] is None}
    assert missing - {"calls.same_user"} == NOT_SIMULATED & asked
    assert told["differs"] == []
    assert answers["local.swaps"] >= 3
    assert answers["park.bytes"] > 64 << 20


def test_what_does_not_fit_into_the_time_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    _, told, _ = day(tmp_path, "--simulate", "--rounds=1", "--seconds=9")
    assert told["parts"]["local"]["ended"] == "skipped"
    assert "it needs 15 s, and" in told["answers"]["local.swaps"]["says"]
    assert told["answers"]["local.swaps"]["value"] is None


def test_it_fails_with_the_driver(make_node: Callable[..., Node], tmp_path: Path) -> None:
    node = make_node(scale=1, gpus=SMALL, links=[])
    node.faults.inject(Fault.CHECKPOINT_FAILS)
    words = ("--only", "park", "remap", "--seconds=200")
    status, told, said = day(tmp_path, *words, environment=node.environment())
    assert status == 1
    assert [line.partition(":")[0] for line in told["failed"]] == ["park", "remap"]
    assert "304" in told["answers"]["park.park_gb_s"]["says"]
    assert "FAILED" in said


def test_without_a_gpu_it_is_skipped_loudly(node: Node, tmp_path: Path) -> None:
    status, told, said = day(tmp_path, environment=node.environment([]))
    assert status == 0
    assert "SKIPPED" in said
    assert "there is no usable NVIDIA GPU" in told["skipped"]
    assert {one["value"] for one in told["answers"].values()} == {None}
    assert told["answers"]["park.park_gb_s"]["says"] == told["skipped"]
