"""The bench for a real GPU, run on the simulated one: its figures are of no use, its ways are."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.simgpu import Fault

from .conftest import MIB, REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Node

SMALL = [{"product": "small", "memory": "64MiB"}]


def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    options = ("--toy", f"--bytes={20 * MIB}", "--cycles=3", "--starts=2", "--json")
    return subprocess.run(
        [sys.executable, "-m", "bench.node.gpu", *options],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_it_measures_both_ways(make_node: Callable[..., Node]) -> None:
    done = run(make_node(scale=1, gpus=SMALL, links=[]).environment())
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    metrics = {name: one["value"] for name, one in line["metrics"].items()}
    assert metrics["cycles"] == 3
    assert metrics["bytes"] >= 20 * MIB
    assert metrics["cuda_ratio_bare"] > 0
    assert line["baseline"]["to_gpu_gb_s"] > 0
    if "SKIPPED" not in done.stderr:
        assert metrics["disk_bytes"] >= 20 * MIB
        assert metrics["template_start_p50_s"] > 0
        assert metrics["cold_start_p50_s"] > 0


def test_it_fails_with_the_driver(make_node: Callable[..., Node]) -> None:
    node = make_node(scale=1, gpus=SMALL, links=[])
    node.faults.inject(Fault.CHECKPOINT_FAILS)
    done = run(node.environment())
    assert done.returncode != 0
    assert "cuCheckpointProcessCheckpoint" in done.stderr


def test_it_says_that_there_is_no_gpu(node: Node) -> None:
    done = run(node.environment([]))
    assert done.returncode == 0
    assert "SKIPPED" in done.stderr
    assert json.loads(done.stdout)["skipped"]
