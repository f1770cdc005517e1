"""What is looked up before a dump: whether it can be, what CRIU doesn't keep, its options.

A tree that has not run since a look needs no other one: the kernel counts for each thread how often
it has left its CPU, and no thread stops again without that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.criu import record
from kybernate.adapters.criu.checks import descriptors, undumpable
from kybernate.adapters.kernel import smallfile
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.adapters.criu.checks.descriptors import Opened
    from kybernate.adapters.criu.container import Container

    Counts = dict[int, str]

_COUNTS = "\nvoluntary_ctxt_switches:"
"""The second line from the end; the last is of those that were not voluntary."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a frozen tree. `counts`: of each thread, before anything else was read."""

    tree: int
    counts: Counts | None
    record: record.Record
    options: tuple[str, ...]

    def holds(self, container: Container, tree: int) -> bool:
        """Whether the tree, which is frozen, is the same and has not run since."""
        return self.counts is not None and (tree, _counts(container)) == (self.tree, self.counts)


def check(container: Container, *, own_network: bool = True) -> tuple[tuple[str, ...], Look | None]:
    """Why the tree can't be dumped, and what its dump needs, unless it runs; `own_network` as for
    `undumpable.find`. Raises NotFoundError, OSError."""
    tree = container.tree() if container.is_frozen() else None
    counts = _counts(container) if tree is not None else None
    opened = descriptors.of(container)
    problems = undumpable.find(container, opened, own_network=own_network)
    if tree is None or counts is None or problems:
        return problems, None
    return problems, _take(container, tree, counts, opened)


def ready(container: Container, tree: int, images: Path, before: Look | None) -> list[str]:
    """Writes down what CRIU doesn't; the options of this tree's dump. `before`: an earlier look.
    Raises NotFoundError, OSError."""
    if before is None or not before.holds(container, tree):
        before = _take(container, tree, None, descriptors.of(container))
    before.record.write(images)
    return list(before.options)


def _take(container: Container, tree: int, counts: Counts | None, opened: Opened) -> Look:
    number = str(container.number_inside(tree))
    options = ("-t", number, *undumpable.extra_options(container, opened))
    return Look(tree, counts, record.take(container, tree, opened), options)


def _counts(container: Container) -> Counts | None:
    """How often each thread has left its CPU; None if that can't be told of all."""
    threads = [thread for pid in container.pids() for thread in container.threads(pid)]
    counts = {thread: _count(f"{container.proc}/{thread}/status") for thread in threads}
    return counts if all(counts.values()) else None


def _count(path: str) -> str:
    """Empty if the thread is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        text = smallfile.read(path)
        return text[text.find(_COUNTS) :] if _COUNTS in text else ""
    return ""
