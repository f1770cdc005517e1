"""CI tells of its run in one line that can be kept."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from images.cache import REPOSITORY
from tests import ci
from tests.slices import head

if TYPE_CHECKING:
    from pathlib import Path

RUN = (REPOSITORY / ".ci" / "run").read_text()


def told(*words: str) -> str:
    ran = CliRunner().invoke(ci.main, words)
    assert ran.exit_code == 0, ran.output
    return ran.output


def said(logs: Path, *words: str) -> dict[str, object]:
    (one,) = told("line", str(logs), "1234", "3", *words).splitlines()
    found: dict[str, object] = json.loads(one)
    return found


def functions(tmp_path: Path) -> str:
    """Those of .ci/run."""
    made = re.search(r"(?ms)^logs=.*?(?=^# What tests need)", RUN)
    assert made is not None
    return made[0].replace("build/ci", str(tmp_path / "ci"))


def script_of(text: str, part: str, status: int = 0) -> str:
    """What it says."""
    words = ["bash", "-c", f"set -euo pipefail\nSLICE={part}\n{text}"]
    ran = subprocess.run(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == status
    return ran.stdout


def test_a_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text(
        "check 80 0\nbench-smoke 200 2\nbench-smoke-again 190 0\ntest 300 2\ne2e 400 2\n"
    )
    (tmp_path / "test-again").write_text("tests/unit/test_x.py::test_a\n")
    words = ("--unsteady", "bench-smoke test", "--failed", "e2e", "--left-out", "test-upgrade")
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
    found = said(tmp_path, "--unsteady", "", "--failed", "", "--left-out", "")
    assert (found["steps"], found["unsteady"], found["failed"]) == ({}, {}, [])


@pytest.mark.parametrize("ended", ["--unsteady", "--failed", "--left-out"])
def test_a_run_is_clean_if_everything_passed_at_once(tmp_path: Path, ended: str) -> None:
    assert said(tmp_path)["clean"] is True
    assert said(tmp_path, ended, "e2e")["clean"] is False


def test_runs_are_kept_one_after_the_other(tmp_path: Path) -> None:
    kept = tmp_path / "ci.jsonl"
    words = ("keep", str(tmp_path), "--to", str(kept))
    for number, ended in enumerate(("--failed", "--unsteady", "", ""), start=1):
        run = {**said(tmp_path, *([ended, "e2e"] if ended else [])), "seconds": number}
        (tmp_path / "run.json").write_text(json.dumps(run) + "\n")
        clean = max(0, number - 2)
        assert told(*words) == f"kept; the last {clean} in a row were clean\n"
    assert [json.loads(one)["seconds"] for one in kept.read_text().splitlines()] == [1, 2, 3, 4]
    with pytest.raises(AssertionError, match="has this run already"):
        told(*words)
    with pytest.raises(AssertionError, match="to its end first"):
        told("keep", str(tmp_path / "none"))


def late(tmp_path: Path, commit: int, seconds: int, part: str = "3") -> list[str]:
    """Which suites .ci/run begins if so many seconds have passed by then."""
    script = functions(tmp_path) + (
        "make() { :; }; told() { :; }; twice() { tests $1; }; tests() { echo $1; }\n"
        f"SECONDS={seconds}\n{RUN[RUN.rindex('for one in ') :]}"
    )
    ran = script_of(script, f"{part}@{commit:040x}")
    return [one for one in ran.splitlines() if not one.startswith("==")]


def test_of_the_suites_that_come_last_no_commit_leaves_out_all(tmp_path: Path) -> None:
    """A commit of each turn, all with the same slice."""
    found = [late(tmp_path, commit, 2300) for commit in range(0, 12, 3)]
    assert sorted(found) == [["bench-smoke"], ["e2e"], ["test-strangers-slice"], ["test-upgrade"]]
    assert len(late(tmp_path, 0, 0)) == 4


def test_a_suite_begins_only_where_it_ends_in_time(tmp_path: Path) -> None:
    """At half an hour the short ones do, the cluster's tests only as the first."""
    found = [late(tmp_path, commit, 1800) for commit in range(0, 12, 3)]
    assert sorted(map(len, found)) == [3, 3, 3, 4]
    assert [one[0] for one in found if "e2e" in one] == ["e2e"]


def test_whoever_wants_all_gets_all(tmp_path: Path) -> None:
    found = late(tmp_path, 0, 9999, part="1")
    assert sorted(found) == ["bench-smoke", "e2e", "test-strangers", "test-upgrade"]


@pytest.mark.parametrize(("ends", "failed"), [("true", []), ("false", ["aside"])])
def test_what_runs_beside_the_suites_is_waited_for_and_told_of(
    tmp_path: Path, ends: str, failed: list[str]
) -> None:
    go = tmp_path / "go"
    steps = (
        f'make() {{ [ "$1" = suite ] || {{ until [ -e {go} ]; do sleep 0.01; done; {ends}; }}; }}\n'
        f"beside aside\nmust step suite\ntouch {go}\ntold\n"
    )
    script_of(functions(tmp_path) + steps, "3", status=int(bool(failed)))
    found = json.loads((tmp_path / "ci" / "run.json").read_text())
    assert found["steps"].keys() == {"suite", "aside"}
    assert found["failed"] == failed


def test_the_script_tells_of_its_run_whatever_becomes_of_it(tmp_path: Path) -> None:
    steps = 'make() { [ "$1" != no ]; }\nmust step yes\nmust step no\nleft+=(later)\ntold\n'
    out = script_of(functions(tmp_path) + steps, "3", status=1)
    found = json.loads((tmp_path / "ci" / "run.json").read_text())
    assert out.splitlines()[-1] == json.dumps(found)
    assert found["steps"].keys() == {"yes", "no"}
    assert (found["failed"], found["left_out"]) == (["no"], ["later"])
