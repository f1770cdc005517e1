"""Who changes a seat: each of its parts one module, the seat itself its own and the table."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.seat.record import Seat

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[4]
PARTS = ("backoff", "contact", "demand", "ending", "history", "saved", "tasks", "tree", "wishes")
FOLDERS = ("nodeagent", "kybernate", "extender", "proxy", "controller", "registry", "deviceplugin")
MOST_PARTS = 12
MUTATORS = {"add", "append", "clear", "discard", "extend", "pop", "remove", "setdefault", "update"}


@cache
def written_by_modules() -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """By module what it writes to, but for what is generated."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(
        (path.relative_to(ROOT).as_posix(), tuple(written(ast.parse(path.read_text()))))
        for path in paths
        if "gen" not in path.parts
    )


def name_of(node: ast.AST) -> str:
    """The last word of `a.b.c`, which says what it is."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def written(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What is written to, by its last word, and which value of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield name_of(node.value), node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            if isinstance(node.value, ast.Attribute):
                yield name_of(node.value.value), node.value.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if node.func.attr in MUTATORS and isinstance(of, ast.Attribute):
                yield name_of(of.value), of.attr


@pytest.mark.parametrize(
    "source", ["seat.tree.cuda = ()", "del seat.ending.asked", "tree.root = 1"]
)
def test_a_write_is_seen(source: str) -> None:
    assert next(part for part, _ in written(ast.parse(source))) in PARTS


def test_a_change_within_a_value_is_seen() -> None:
    assert ("backoff", "complain_at") in written(ast.parse("seat.backoff.complain_at['x'] = 1"))
    assert ("saved", "needs") in written(ast.parse("seat.saved.needs.update(x=1)"))


def test_a_seat_has_at_most_twelve_values_of_its_own() -> None:
    assert len(Seat.__slots__) <= 12
    assert {*PARTS} < {*Seat.__slots__}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_changed_by_its_own_module_alone(part: str) -> None:
    home = f"nodeagent/seat/parts/{part}.py"
    values = getattr(_sample(), part).__slots__
    strangers = {
        f"{module}: {part}.{value}"
        for module, writes in written_by_modules()
        if module != home
        for of, value in writes
        if of == part and value in values
    }
    assert not strangers


def test_the_seat_itself_is_changed_by_its_own_module_and_the_table() -> None:
    own = {*Seat.__slots__} - {"_shown"}
    writers = {
        module
        for module, writes in written_by_modules()
        for of, value in writes
        if of == "seat" and value in own
    }
    assert writers == {
        "nodeagent/seat/node.py",
    }


def methods(path: str, name: str) -> dict[str, set[tuple[str, str]]]:
    """By method of a class what it writes to."""
    tree = ast.parse((ROOT / path).read_text())
    one = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return {
        method.name: set(written(method))
        for method in one.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_state_is_changed_by_the_table_alone() -> None:
    """The seat's own methods begin it, and then know no other state: each change is an event."""
    within = {
        method
        for method, writes in methods("nodeagent/seat/record.py", "Seat").items()
        if ("self", "state") in writes
    }
    assert within == {"__init__"}
    through = {
        method
        for method, writes in methods("nodeagent/seat/node.py", "Node").items()
        if ("seat", "state") in writes
    }
    assert through == {"transition"}


def test_a_seat_s_own_methods_change_what_it_is_and_no_part() -> None:
    found = {
        value
        for method, writes in methods("nodeagent/seat/record.py", "Seat").items()
        for of, value in writes
        if of == "self" and method != "__init__"
    }
    assert found == {"identity", "_shown"}


def test_nothing_is_changed_from_outside_by_more_than_three_modules() -> None:
    """By its name: a variable that is called like what it holds, which all here are."""
    writers: dict[str, set[str]] = {}
    for module, writes in written_by_modules():
        for of, _ in writes:
            if module.startswith("nodeagent/") and of not in ("self", "cls", ""):
                writers.setdefault(of.lstrip("_"), set()).add(module)
    assert {"seat", "operation"} <= writers.keys()
    assert {of: found for of, found in writers.items() if len(found) > 3} == {}


def test_one_box_changes_no_seat_by_itself() -> None:
    """It tells the agent's loop, which journals what it does. A seat that it makes is nobody's
    yet."""
    found = {
        f"{path.name}: {ast.unparse(node.func)}"
        for path in sorted((ROOT / "kybernate/local").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr in PARTS
        and ast.unparse(node.func.value.value) == "seat"
    }
    assert found == {
        "specs.py: seat.contact.moved",
        "specs.py: seat.ending.starts_on_demand",
        "specs.py: seat.wishes.declared",
    }


def _sample() -> Seat:
    return Seat(None, 0.0, 0.0)  # type: ignore[arg-type]


def test_a_seat_has_few_parts_of_its_own() -> None:
    assert len(Seat.__slots__) <= MOST_PARTS
