"""pytest's plugin for long tests in slices: a commit runs one of them, many commits run all.

`pytest --slice 3` runs of the long tests every third, and all others; which third follows from the
commit that is checked out. `--slice 3@COMMIT` repeats what that commit ran.

Workers begin with the files of long tests: none is left alone with one of them at the end.

Always run: what is marked `always`, and the files with long tests that were changed last. Of the
longest tests a slice has only one.
"""

from __future__ import annotations

import operator
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, TypeVar

import pytest

from images.cache import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LONG = ("slow", "e2e", "hostile")
"""Tests with one of these marks are sliced, file by file: those of one share what takes long."""

SERVERS = ("tests/integration/", "tests/local/")
"""So are all of these folders, whose tests start servers and processes of ours."""

LONGEST = "upgrade"
"""Each test with this mark takes minutes by itself."""

NEWEST = 2
"""So many of the files that were changed last are in every slice: more would be the whole suite."""

LOOKED_AT = 100
"""Commits in which the newest files are looked for."""

_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True)
class Slice:
    """One of `count` slices: that of a commit, by its full hash."""

    count: int
    commit: str

    @classmethod
    def parse(cls, text: str) -> Slice:
        """`3` for the commit that is checked out, or `3@COMMIT`. Raises pytest.UsageError."""
        found = re.fullmatch(r"([1-9]\d*)(?:@(\w[\w./~^-]*))?", text, re.ASCII)
        if found is None:
            raise pytest.UsageError(f"--slice {text}: must be a count such as 3, or 3@COMMIT")
        count, commit = found.groups()
        return cls(int(count), head() if commit is None else full(commit))

    @property
    def number(self) -> int:
        """Which of the slices it is, from 0."""
        return int(self.commit, 16) % self.count

    def of(self, ordered: Sequence[_Thing]) -> list[_Thing]:
        """Its part of what has the same order wherever it is asked."""
        return list(ordered[self.number :: self.count])

    def one(self, ordered: Sequence[_Thing]) -> list[_Thing]:
        """A single one of them; all if it is the only slice."""
        if self.count == 1 or not ordered:
            return list(ordered)
        return [ordered[int(self.commit, 16) % len(ordered)]]

    def turned(self, ordered: Sequence[_Thing]) -> list[_Thing]:
        """All of them, in turn. Which is first changes with the commit, and does not follow from
        the number of its slice."""
        first = int(self.commit, 16) // self.count % len(ordered)
        return [*ordered[first:], *ordered[:first]]

    def __str__(self) -> str:
        part = f"slice {self.number + 1} of {self.count}"
        return f"of long tests {part}, repeated by --slice {self.count}@{self.commit}"


def head() -> str:
    """The full hash of what is checked out; of an unpacked archive, 0."""
    return _git("rev-parse", "HEAD") or "0"


def full(commit: str) -> str:
    """The full hash of a commit. Raises pytest.UsageError if there is none of that name."""
    found = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found:
        return found
    if re.fullmatch(r"[0-9a-f]{40}", commit):
        return commit
    raise pytest.UsageError(f"--slice: {commit} is no commit of this clone; write its full hash")


def newest(files: Iterable[str], commit: str) -> list[str]:
    """Those of `files` (paths in the repository) that were changed last, up to this commit."""
    wanted = set(files)
    words = ("-c", "log.showRoot=false", "log", f"-{LOOKED_AT}", "--format=", "--name-only")
    changed = _git(*words, "--diff-filter=AM", commit, "--", "tests").splitlines()
    return list(dict.fromkeys(one for one in changed if one in wanted))[:NEWEST]


def select(items: list[pytest.Item], chosen: Slice) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """What is run of these tests, and what isn't."""
    files = sorted({_file(one) for one in items if _is_long(one)})
    fresh = newest(files, chosen.commit)
    wanted = {*fresh, *chosen.of([one for one in files if one not in fresh])}
    longest = sorted(one.nodeid for one in items if LONGEST in _marks(one))
    single = chosen.one(longest)
    runs = [
        one.nodeid in single
        if LONGEST in _marks(one)
        else not _is_long(one) or _file(one) in wanted
        for one in items
    ]
    return list(compress(items, runs)), list(compress(items, map(operator.not_, runs)))


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """File by file: those with long tests first, then those with the most tests."""
    long = {_file(one) for one in items if _takes_long(one)}
    count = Counter(map(_file, items))
    return sorted(items, key=lambda one: (_file(one) not in long, -count[_file(one)], _file(one)))


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def _takes_long(item: pytest.Item) -> bool:
    return not _marks(item).isdisjoint(LONG) or _file(item).startswith(SERVERS)


def _is_long(item: pytest.Item) -> bool:
    return _takes_long(item) and "always" not in _marks(item)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", metavar="N[@COMMIT]", help="of long tests the N-th part, by commit")


def pytest_report_header(config: pytest.Config) -> str | None:
    given = config.getoption("--slice")
    return str(Slice.parse(given)) if given else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if given := config.getoption("--slice"):
        items[:], omitted = select(items, Slice.parse(given))
        config.hook.pytest_deselected(items=omitted)
    if hasattr(config, "workerinput"):
        items[:] = in_order(items)


def _git(*words: str) -> str:
    run = subprocess.run(
        ["git", *words], capture_output=True, text=True, cwd=REPOSITORY, check=False, timeout=60
    )
    return run.stdout.strip() if run.returncode == 0 else ""
