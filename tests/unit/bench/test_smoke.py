"""Each bench has a smallest form, and one that does not come to its end is told."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from bench import smoke

MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text()
RUN = re.search(r"for b in (.+); do \$\(PY\) -m bench", MAKEFILE)
assert RUN is not None
EVERY = {**smoke.ALONE, **smoke.IN_CLUSTER}
LINE = 'print(\'{"bench": "x"}\')'


def test_each_bench_has_its_smallest_form() -> None:
    assert sorted(EVERY) == sorted(shlex.split(RUN[1]))
    assert not smoke.ALONE.keys() & smoke.IN_CLUSTER.keys()


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_bench_knows_the_options_of_its_smallest_form(name: str) -> None:
    """What it has by default would be no smaller."""
    module, *mode = shlex.split(name)
    try:
        command = importlib.import_module(f"bench.{module}.__main__").main
    except ModuleNotFoundError:
        command = importlib.import_module(f"bench.{module}").main
    small = shlex.split(EVERY[name])
    usual = command.make_context(name, [*mode, "--json"]).params
    chosen = command.make_context(name, [*mode, *small, "--json"]).params
    assert small
    assert len([one for one in chosen if chosen[one] != usual[one]]) == sum(
        word.startswith("--") for word in small
    )


def test_even_few_schedules_are_of_all_kinds(capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--schedules", "3", "--jobs", "1", "--json"],
        check=True,
        timeout=60,
    )
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (found["schedules"], found["pairs"]) == (3, 2)


@pytest.mark.parametrize(
    ("program", "failed", "skipped"),
    [
        (LINE, "", ""),
        ('print(\'{"bench": "x", "skipped": "no GPU"}\')', "", "no GPU"),
        (f"{LINE}; raise SystemExit('it died')", "exit status 1\nit died\n", ""),
        ("print('done')", "its last line is no JSON of a bench\ndone\n", ""),
        ("print('{}')", "its last line is no JSON of a bench\n{}\n", ""),
        ("", "its last line is no JSON of a bench\n", ""),
    ],
)
def test_what_becomes_of_a_bench(program: str, failed: str, skipped: str) -> None:
    found = smoke.run([sys.executable, "-c", program])
    assert (found.failed, found.skipped) == (failed, skipped)


def test_a_bench_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(1.5); open({str(mark)!r}, 'w')"
    program = (
        "import subprocess, sys, time; print('begun', file=sys.stderr, flush=True); "
        f"subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    )
    found = smoke.run([sys.executable, "-c", program], limit=0.7)
    assert found.failed == "not over after 0.7 s\nbegun\n"
    time.sleep(1.5)
    assert not mark.exists()


def test_without_a_word_only_those_run_that_need_no_cluster() -> None:
    assert smoke.chosen((), cluster=False) == smoke.ALONE
    assert smoke.chosen((), cluster=True) == EVERY
    assert smoke.chosen(("cluster.storm",), cluster=False).keys() == {"cluster.storm"}
    with pytest.raises(click.BadParameter, match="no bench 'strom'; write one of node"):
        smoke.chosen(("strom",), cluster=False)
