"""Who works with whom is said by constructors: nobody is given a collaborator afterwards."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import kybernate.ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[4]


def modules() -> dict[str, ast.Module]:
    folders = (ROOT / "nodeagent", ROOT / "kybernate/local")
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def protocols(trees: Iterable[ast.Module]) -> set[str]:
    """Names of all that say what somebody else does."""
    found = set(kybernate.ports.__all__)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
                found.add(node.name)
    return found


def collaborators(trees: Iterable[ast.Module], doers: set[str]) -> set[str]:
    """Attributes that are called, or that do something, as their annotations say."""
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.AnnAssign(target=ast.Name(name) | ast.Attribute(attr=name), annotation=said):
                words = {one.id for one in ast.walk(said) if isinstance(one, ast.Name)}
                if words & (doers | {"Callable"}) and not words & {"dict", "Mapping"}:
                    found.add(name)
    return found


def given_later(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Of these attributes those that are set for another object than oneself; None is nobody."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or ast.unparse(node.value) == "None":
            continue
        for target in node.targets:
            match target:
                case ast.Attribute(value=ast.Name("self" | "cls")):
                    pass
                case ast.Attribute(attr=name) if name in names:
                    yield name


def test_one_that_is_given_later_is_seen() -> None:
    made = "class A:\n    def __init__(self):\n        self.kick: Callable[[], None] = no\n"
    tree = ast.parse(made + "def wire(a):\n    a.kick = f\n    a.n = 2\n    a.kick = None\n")
    names = collaborators([tree], set())
    assert list(given_later(tree, names)) == ["kick"]


def test_nobody_is_given_a_collaborator_after_it_was_made() -> None:
    trees = modules()
    names = collaborators(trees.values(), protocols(trees.values()))
    assert {"blocking", "imaging", "healthy"} <= names
    found = {(path, name) for path, tree in trees.items() for name in given_later(tree, names)}
    assert found == set()
