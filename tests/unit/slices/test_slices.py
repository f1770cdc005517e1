"""Of long tests a commit runs one slice: each is in one, and which it is can be repeated."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests import slices
from tests.cluster.layout import REPOSITORY
from tests.slices import Slice

if TYPE_CHECKING:
    from pathlib import Path

COMMITS = [f"{number:040x}" for number in range(10, 40)]


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false")
    run = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return run.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its first commit has seven files; as that of a shallow clone it says nothing of their age."""
    (tmp_path / "tests").mkdir()
    git(tmp_path, "init", "-q")
    for number in range(7):
        (tmp_path / "tests" / f"test_{number}.py").write_text("one\n")
    _commit(tmp_path)
    monkeypatch.setattr(slices, "REPOSITORY", tmp_path)
    return tmp_path


def _commit(clone: Path) -> str:
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "some")
    return git(clone, "rev-parse", "HEAD")


def items_with(*marks: str, folder: str = "tests") -> list[Any]:
    """Two of each of seven files, with these marks."""
    found = [SimpleNamespace(name=mark) for mark in marks]
    return [
        SimpleNamespace(nodeid=f"{folder}/test_{file}.py::test_{name}", iter_markers=lambda: found)
        for file in range(7)
        for name in "ab"
    ]


def run(items: list[Any], count: int, commit: str) -> set[str]:
    wanted, omitted = slices.select([*items], Slice(count, commit))
    assert [*wanted, *omitted] == sorted(items, key=omitted.__contains__)
    return {one.nodeid for one in wanted}


def test_each_long_test_is_in_one_slice_beside_the_others_of_its_file(clone: Path) -> None:
    items = items_with("slow")
    parts = {frozenset(run(items, 3, commit)) for commit in COMMITS}
    assert sorted(len(part) for part in parts) == [4, 4, 6]
    assert frozenset[str]().union(*parts) == {one.nodeid for one in items}
    for part in parts:
        assert {one.replace("test_a", "test_b") for one in part} <= part


@pytest.mark.parametrize("folder", ["tests/integration/api", "tests/local"])
def test_tests_with_servers_take_long(clone: Path, folder: str) -> None:
    items = items_with("integration", folder=folder)
    parts = {frozenset(run(items, 3, commit)) for commit in COMMITS}
    assert sorted(len(part) for part in parts) == [4, 4, 6]
    assert frozenset[str]().union(*parts) == {one.nodeid for one in items}
    essential = items_with("always", folder=folder)
    assert run(essential, 3, COMMITS[0]) == {one.nodeid for one in essential}


def test_slices_go_round_with_the_commits_of_a_clone(clone: Path) -> None:
    items = items_with("slow")
    commits = []
    for number in range(5):
        (clone / "other").write_text(str(number))
        commits.append(_commit(clone))
    parts = [run(items, 5, commit) for commit in commits]
    assert sorted(map(len, parts)) == [2, 2, 2, 4, 4]
    assert set[str]().union(*parts) == {one.nodeid for one in items}
    assert sum(map(len, parts)) == 14
    first = Slice(3, commits[0]).turn
    assert [Slice(3, commit).turn for commit in commits] == list(range(first, first + 5))


def test_a_clone_without_older_commits_goes_by_the_hash(clone: Path, tmp_path: Path) -> None:
    (clone / "other").write_text("")
    last = _commit(clone)
    git(clone, "clone", "-q", "--depth", "1", f"file://{clone}", "shallow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "REPOSITORY", clone / "shallow")
        assert Slice(5, last).turn == int(last, 16)
    assert Slice(5, last).turn == 2


def test_slices_have_about_as_many_tests_each() -> None:
    weights = {"a": 8, "b": 1, "c": 3, "d": 4, "e": 1}
    parts = [Slice(2, f"{number:040x}").of(weights) for number in range(2)]
    assert parts == [{"a", "e"}, {"b", "c", "d"}]


def test_each_of_some_comes_first_and_with_each_slice() -> None:
    firsts = {
        (one.number, one.turned("wxyz")[0])
        for one in (Slice(5, f"{number:040x}") for number in range(20))
    }
    assert len(firsts) == 20
    assert [Slice(5, f"{number:040x}").turned("wxyz")[0] for number in range(4)] == [*"wxyz"]


def test_a_commit_has_the_same_slice_wherever_it_is_asked(clone: Path) -> None:
    items = items_with("e2e", "slow")
    assert run(items, 3, COMMITS[0]) == run(items[::-1], 3, COMMITS[0])


@pytest.mark.parametrize("marks", [(), ("integration",), ("slow", "always")])
def test_what_is_not_long_or_essential_is_always_run(clone: Path, marks: tuple[str, ...]) -> None:
    items = items_with(*marks)
    assert run(items, 3, COMMITS[0]) == {one.nodeid for one in items}


def test_the_file_that_was_changed_last_is_always_run(clone: Path) -> None:
    for number in (4, 2, 6):
        (clone / "tests" / f"test_{number}.py").write_text("two\n")
        at = _commit(clone)
    (clone / "tests" / "other.py").write_text("")
    git(clone, "mv", "tests/test_1.py", "tests/test_moved.py")
    last = _commit(clone)
    files = [f"tests/test_{number}.py" for number in range(7)]
    assert slices.newest(files, last) == slices.newest(files, at) == [files[6]]
    assert slices.newest(files, COMMITS[0]) == []
    assert {f"{files[6]}::test_{name}" for name in "ab"} <= run(items_with("slow"), 3, last)


def test_of_the_longest_tests_each_slice_has_one(clone: Path) -> None:
    items = items_with("upgrade")
    parts = [run(items, 3, commit) for commit in COMMITS]
    assert {len(part) for part in parts} == {1}
    assert set[str]().union(*parts) == {one.nodeid for one in items}
    assert run(items[::-1], 4, COMMITS[0]) == parts[0]
    assert len(run(items, 1, COMMITS[0])) == 14
    assert run([], 3, COMMITS[0]) == set()


def test_what_is_selected_otherwise_is_sliced() -> None:
    """Not all that there is: a slice could fall on what isn't selected, and be empty."""
    where = ("tests/upgrade", "-m", "upgrade", "-k", "today", "--slice", f"3@{0:040x}")
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", *where]
    listed = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert listed.stdout.startswith("tests/upgrade/"), listed.stdout
    assert listed.stdout.count("::") == 1


def test_of_few_long_files_each_slice_has_one(clone: Path) -> None:
    items = items_with("slow")[:4]
    parts = [run(items, 5, commit) for commit in COMMITS]
    assert {len(part) for part in parts} == {2}
    assert set[str]().union(*parts) == {one.nodeid for one in items}


def test_one_slice_is_all(clone: Path) -> None:
    assert len(run(items_with("slow"), 1, COMMITS[0])) == 14


def test_a_slice_is_that_of_what_is_checked_out_or_of_a_commit_that_is_named(clone: Path) -> None:
    first = slices.head()
    (clone / "tests" / "other.py").write_text("")
    second = _commit(clone)
    assert first != second
    assert Slice.parse("3") == Slice(3, second)
    assert Slice.parse("3@HEAD~1") == Slice(3, first)
    assert Slice.parse(f"4@{first[:10]}") == Slice(4, first)
    assert Slice.parse(str(Slice(3, first)).split()[-1]) == Slice(3, first)


@pytest.mark.parametrize("given", ["", "0", "3@", "a", "3@no-such", "3@--help", "-1"])
def test_what_names_no_slice_is_refused(clone: Path, given: str) -> None:
    with pytest.raises(pytest.UsageError, match="--slice"):
        Slice.parse(given)


def test_an_unpacked_archive_has_the_first_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "REPOSITORY", tmp_path)
    assert Slice.parse("3").number == 0
    assert len(run(items_with("slow"), 3, slices.head())) == 6


def test_workers_begin_with_the_files_of_long_tests() -> None:
    quick, slow = items_with("integration"), items_with("slow", "always")
    mixed = [*quick[:3], *slow[8:9], *quick[4:8]]
    names = [one.nodeid.removeprefix("tests/test_") for one in slices.in_order(mixed)]
    assert names == [
        *("4.py::test_a", "0.py::test_a", "0.py::test_b"),
        *("2.py::test_a", "2.py::test_b", "3.py::test_a", "3.py::test_b", "1.py::test_a"),
    ]
