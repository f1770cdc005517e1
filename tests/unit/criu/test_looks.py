"""A look at a frozen tree holds for as long as the tree has not run."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu.checks import looks
from kybernate.adapters.criu.container import Container
from kybernate.adapters.criu.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TREE, WORKER, THREAD = 8, 9, 10
RECORD = Record(2, 5, ("", "", ""))


class Tree:
    """Two processes, of which one has two threads, as /proc shows them."""

    def __init__(self, base: Path) -> None:
        self.base, self.proc, self.handle = base, base / "proc", base / "handle"
        self.handle.mkdir(parents=True)
        (self.handle / "cgroup.procs").write_text(f"{TREE}\n{WORKER}\n")
        for pid, threads in ((TREE, (TREE,)), (WORKER, (WORKER, THREAD))):
            for thread in threads:
                (self.proc / f"{pid}/task/{thread}").mkdir(parents=True)
                self.ran(thread, 3, 4)
        self.container = Container(7, self.handle, 0, base, self.proc)

    def ran(self, thread: int, by_itself: int, driven: int) -> None:
        """It has left its CPU so often."""
        (self.proc / str(thread)).mkdir(exist_ok=True)
        (self.proc / f"{thread}/status").write_text(
            f"Name:\tnginx\nNSpid:\t{thread}\t{thread - 6}\n"
            f"voluntary_ctxt_switches:\t{by_itself}\nnonvoluntary_ctxt_switches:\t{driven}\n"
        )

    def look(self) -> looks.Look:
        return looks.Look(TREE, looks._counts(self.container), RECORD, ("-t", "2"))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def _voluntarily(tree: Tree) -> None:
    tree.ran(THREAD, 4, 4)


def _driven(tree: Tree) -> None:
    tree.ran(TREE, 3, 5)


def _has_one_more_thread(tree: Tree) -> None:
    (tree.proc / f"{TREE}/task/11").mkdir()
    tree.ran(11, 1, 1)


def _has_lost_a_thread(tree: Tree) -> None:
    shutil.rmtree(tree.proc / f"{WORKER}/task/{THREAD}")


def _is_losing_a_thread(tree: Tree) -> None:
    (tree.proc / f"{THREAD}/status").unlink()


def _has_one_process_less(tree: Tree) -> None:
    (tree.handle / "cgroup.procs").write_text(f"{TREE}\n")


def test_a_look_holds_while_nothing_has_run(tree: Tree) -> None:
    look = tree.look()
    assert look.holds(tree.container, TREE)
    assert not look.holds(tree.container, WORKER), "another tree"


@pytest.mark.parametrize(
    "happens",
    [
        _voluntarily,
        _driven,
        _has_one_more_thread,
        _has_lost_a_thread,
        _is_losing_a_thread,
        _has_one_process_less,
    ],
)
def test_a_look_at_a_tree_that_has_run_since_is_none(
    tree: Tree, happens: Callable[[Tree], None]
) -> None:
    look = tree.look()
    happens(tree)
    assert not look.holds(tree.container, TREE)


def test_where_nobody_counts_no_look_holds(tree: Tree) -> None:
    for thread in (TREE, WORKER, THREAD):
        (tree.proc / f"{thread}/status").write_text("Name:\tnginx\nNSpid:\t8\t2\n")
    assert not tree.look().holds(tree.container, TREE)


@pytest.mark.parametrize("ran", [False, True])
def test_what_is_written_down_is_of_the_last_look_that_holds(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, ran: bool
) -> None:
    again = Record(2, 9, ("", "", ""))

    def take(*_: object) -> looks.Look:
        return looks.Look(TREE, None, again, ("-t", "2", "--force-irmap"))

    look = tree.look()
    monkeypatch.setattr(looks, "_take", take)
    if ran:
        tree.ran(WORKER, 4, 5)
    options = looks.ready(tree.container, TREE, tree.base, look)
    assert options == ["-t", "2", *(["--force-irmap"] if ran else [])]
    assert Record.read(tree.base) == (again if ran else RECORD)


def test_of_a_tree_that_runs_nothing_is_kept(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks.undumpable, "find", lambda *_, **__: ())
    monkeypatch.setattr(looks, "_take", lambda *_: tree.look())
    (tree.proc / "7/task/7").mkdir(parents=True)
    (tree.proc / "7/task/7/children").write_text(f"{TREE}\n")
    (tree.proc / f"{TREE}/comm").write_text("kyb-tree\n")
    for state, kept in (("THAWED", False), ("FREEZING", False), ("FROZEN", True)):
        (tree.handle / "freezer.state").write_text(f"{state}\n")
        assert (looks.check(tree.container)[1] is not None) == kept
    monkeypatch.setattr(looks.undumpable, "find", lambda *_, **__: ("it is traced",))
    assert looks.check(tree.container) == (("it is traced",), None)
