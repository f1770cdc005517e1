"""The checks for a real driver, run on the simulated one: they must pass, fail and skip rightly."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.simgpu import Fault

from .conftest import MIB, REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Node

SMALL = [{"product": "small", "memory": "64MiB"}]


def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        cwd=REPOSITORY,
        env=environment | {"KYB_TEST_GPU_BYTES": str(20 * MIB)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_they_pass(make_node: Callable[..., Node]) -> None:
    node = make_node(scale=1, gpus=SMALL, links=[])
    done = run(node.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      toy_model" in done.stdout
    assert "ok      two_models_alternate" in done.stdout
    assert re.search(r"^(ok|SKIPPED) +cuda_process_on_disk", done.stdout, re.MULTILINE)
    assert "SKIPPED pytorch" in done.stdout


def test_they_fail(make_node: Callable[..., Node]) -> None:
    node = make_node(scale=1, gpus=SMALL, links=[])
    node.faults.inject(Fault.CHECKPOINT_FAILS)
    done = run(node.environment())
    assert done.returncode == 1
    assert "FAILED  toy_model" in done.stdout
    assert "304" in done.stdout


def test_they_skip_loudly(node: Node) -> None:
    done = run(node.environment([]))
    assert done.returncode == 0
    assert "SKIPPED" in done.stderr
