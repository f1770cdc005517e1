"""pytest's plugin for long tests in slices: a commit runs one of them, many commits run all.

`pytest --slice 5` runs a fifth of the long tests, and all others. The fifths go round: five commits
in a row run all of them. `--slice 5@COMMIT` repeats what that commit ran.

Workers begin with the files of long tests: none is left alone with one of them at the end.

Always run: what is marked `always`, and the file with long tests that was changed last. Of the
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
    from collections.abc import Iterable, Mapping, Sequence

LONG = ("slow", "e2e", "hostile")
"""Tests with one of these marks are sliced, file by file: those of one share what takes long."""

SERVERS = ("tests/integration/", "tests/local/")
"""So are all of these folders, whose tests start servers and processes of ours."""

LONGEST = "upgrade"
"""Each test with this mark takes minutes by itself."""

NEWEST = 1
"""So many of the files changed last are in every slice: with two it has a quarter more tests."""

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
        """`5` for the commit that is checked out, or `5@COMMIT`. Raises pytest.UsageError."""
        found = re.fullmatch(r"([1-9]\d*)(?:@(\w[\w./~^-]*))?", text, re.ASCII)
        if found is None:
            raise pytest.UsageError(f"--slice {text}: must be a count such as 5, or 5@COMMIT")
        count, commit = found.groups()
        return cls(int(count), head() if commit is None else full(commit))

    @property
    def turn(self) -> int:
        """One more than that of the commit before. A clone that lacks older commits can't count
        them: there it follows from the hash."""
        age = _age(self.commit)
        return int(age) if age else int(self.commit, 16)

    @property
    def number(self) -> int:
        """Which of the slices it is, from 0."""
        return self.turn % self.count

    def of(self, weights: Mapping[str, int]) -> set[str]:
        """Its part of these names: the heaviest first, each came to the slice that was lightest."""
        sums, parts = [0] * self.count, [set[str]() for _ in range(self.count)]
        for name in sorted(weights, key=lambda one: (-weights[one], one)):
            lightest = sums.index(min(sums))
            sums[lightest] += weights[name]
            parts[lightest].add(name)
        return parts[self.number]

    def one(self, ordered: Sequence[_Thing]) -> list[_Thing]:
        """A single one of them; all if it is the only slice."""
        if self.count == 1 or not ordered:
            return list(ordered)
        return [ordered[self.turn % len(ordered)]]

    def turned(self, ordered: Sequence[_Thing]) -> list[_Thing]:
        """All of them, in turn. Which is first changes with each commit; over many, each comes
        first with each slice."""
        first = (self.number + self.turn // self.count) % len(ordered)
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


def _age(commit: str) -> str:
    """How many commits its line has; empty where that isn't known."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return ""
    return _git("rev-list", "--count", "--first-parent", commit)


def newest(files: Iterable[str], commit: str) -> list[str]:
    """Those of `files` (paths in the repository) that were changed last, up to this commit."""
    wanted = set(files)
    words = ("-c", "log.showRoot=false", "log", f"-{LOOKED_AT}", "--format=", "--name-only")
    changed = _git(*words, "--diff-filter=AM", commit, "--", "tests").splitlines()
    return list(dict.fromkeys(one for one in changed if one in wanted))[:NEWEST]


def select(items: list[pytest.Item], chosen: Slice) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """What is run of these tests, and what isn't. Of long ones at least one file, if there is any:
    who selects few asks for them."""
    weights = Counter(_file(one) for one in items if _is_long(one))
    wanted = {*newest(weights, chosen.commit), *chosen.of(weights)} or chosen.one(sorted(weights))
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
