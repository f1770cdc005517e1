"""Each bench has a smallest form, and one that does not come to its end is told."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from bench import smoke
from tests.slices import Slice, head

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    with pytest.raises(click.BadParameter, match="no bench 'strom'; write one of saved"):
        smoke.chosen(("strom",), cluster=False)


def test_a_slice_has_one_more_which_changes_with_the_commit() -> None:
    commits = [f"{number:040x}" for number in range(len(smoke.IN_CLUSTER))]
    found = [smoke.chosen((), cluster=False, part=Slice(3, commit)) for commit in commits]
    more = [one.keys() - smoke.ALONE.keys() for one in found]
    assert {len(one) for one in more} == {1}
    assert set().union(*more) == smoke.IN_CLUSTER.keys()
    assert smoke.chosen((), cluster=False, part=Slice(1, commits[0])) == EVERY


def test_two_run_at_a_time_but_none_beside_another_of_its_module_or_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside, running = threading.Barrier(2), set[str]()

    def run(command: Sequence[str]) -> smoke.Outcome:
        bench = command[2].removeprefix("bench.")
        assert bench not in running
        running.add(bench)
        if bench in ("local.agreement", "local"):
            beside.wait(60)
        running.discard(bench)
        return smoke.Outcome(1.0)

    monkeypatch.setattr(smoke, "run", run)
    names = ["local.agreement", "local", "saved.move", "saved.move --workload redis"]
    ran = CliRunner().invoke(smoke.main, [*names, "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.output.splitlines()[-1])["metrics"]["benches"]["value"] == len(names)
    lists = smoke.apart(EVERY)
    assert sorted(name for one in lists for name in one) == sorted(EVERY)
    assert set(smoke.IN_CLUSTER) <= set(lists[0])
    for one in lists:
        modules = {name.partition(" ")[0] for name in one}
        assert {name for name in EVERY if name.partition(" ")[0] in modules} == set(one)


def test_what_runs_twice_is_kept_with_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([smoke.Outcome(2.04), smoke.Outcome(1.0, failed="exit status 1")])
    monkeypatch.setattr(smoke, "run", lambda _: next(outcomes))
    kept = tmp_path / "twice.jsonl"
    kept.write_text("{}\n")
    ran = CliRunner().invoke(smoke.main, ["cluster.ledger", "--twice", str(kept)])
    assert ran.exit_code == 1
    (before, line) = kept.read_text().splitlines()
    found = json.loads(line)
    assert before == "{}"
    assert found["commit"] == head()[:8]
    assert (found["bench"], found["seconds"]) == ("cluster.ledger", [2.0, 1.0])
    assert found["runs"] == ["ran to its end", "exit status 1"]
    assert found["command"].startswith("python -m bench.cluster.ledger --nodes 20 ")


def test_the_tiny_lists_have_the_form_of_the_published_ones() -> None:
    """CI has no others: there these benches would only say that they are skipped."""
    for name in ("placement.colocate", "placement.openb.table"):
        words = shlex.split(f"bench.{name} {smoke.ALONE[name]} --json")
        found = smoke.run([sys.executable, "-m", *words])
        assert (found.failed, found.skipped) == ("", "")
