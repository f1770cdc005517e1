"""CI tells of its run in one line that can be kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from images.cache import REPOSITORY
from tests.slices import head

if TYPE_CHECKING:
    from pathlib import Path

RUN = (REPOSITORY / ".ci" / "run").read_text()


def said(logs: Path, *words: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.ci", str(logs), "1234", "3", *words]
    out = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True)
    (one,) = out.stdout.splitlines()
    found: dict[str, object] = json.loads(one)
    return found


def test_a_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text(
        "check 80 0\nbench-smoke 200 2\nbench-smoke-again 190 0\ntest 300 2\ne2e 400 2\n"
    )
    (tmp_path / "test-again").write_text("tests/unit/test_x.py::test_a\n")
    words = ("--unsteady", "bench-smoke", "test", "--failed", "e2e", "--left_out", "test-upgrade")
    found = said(tmp_path, *words)
    assert found["commit"] == head()[:8]
    assert (found["seconds"], found["slice"]) == (1234, "3")
    assert found["steps"] == {
        "check": 80,
        "bench-smoke": 200,
        "bench-smoke-again": 190,
        "test": 300,
        "e2e": 400,
    }
    assert found["unsteady"] == {"bench-smoke": [], "test": ["tests/unit/test_x.py::test_a"]}
    assert (found["failed"], found["left_out"]) == (["e2e"], ["test-upgrade"])


def test_a_run_of_which_nothing_is_told_has_no_such_names(tmp_path: Path) -> None:
    found = said(tmp_path, "--unsteady", "--failed", "--left_out")
    assert (found["steps"], found["unsteady"], found["failed"]) == ({}, {}, [])


def test_the_script_tells_of_its_run_whatever_becomes_of_it(tmp_path: Path) -> None:
    """The functions of .ci/run, with steps that end as they are told."""
    made = re.search(r"(?ms)^logs=.*?^case ", RUN)
    assert made is not None
    functions = made[0].removesuffix("case ").replace("build/ci", str(tmp_path / "ci"))
    steps = 'make() { [ "$1" != no ]; }\nmust step yes\nmust step no\nleft+=(later)\ntold\n'
    script = f"set -euo pipefail\nSLICE=3\n{functions}\n{steps}"
    ran = subprocess.run(
        ["bash", "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False
    )
    assert ran.returncode == 1
    found = json.loads((tmp_path / "ci" / "run.json").read_text())
    assert ran.stdout.splitlines()[-1] == json.dumps(found)
    assert found["steps"].keys() == {"yes", "no"}
    assert (found["failed"], found["left_out"]) == (["no"], ["later"])
