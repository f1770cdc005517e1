"""Who works with whom is said by constructors: nobody is given a collaborator afterwards."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import kybernate.ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("nodeagent", "kybernate/local", "kybernate/runtime", "kybernate/checkpoint"),
    *("kybernate/adapters", "kybernate/lib", "extender", "webhook", "deviceplugin", "proxy"),
    *("registry", "controller", "sidecar"),
)
MAKERS = {"__init__", "__post_init__"}
EXCUSED = {
    ("kybernate/adapters/container/seatsocket.py", "_listener"): "the port says: before `open`",
    ("kybernate/runtime/http.py", "peers"): "gunicorn makes the objects of this class",
    ("proxy/relay/visits.py", "exchange"): "what became of one request, no collaborator",
    ("sidecar/engines.py", "_link"): "process 1 asks the engine, which answers by the link",
}


def modules() -> dict[str, ast.Module]:
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def protocols(trees: Iterable[ast.Module]) -> set[str]:
    """Names of all that say what somebody else does."""
    ports = {name: getattr(kybernate.ports, name) for name in kybernate.ports.__all__}
    found = {name for name, port in ports.items() if getattr(port, "_is_protocol", False)}
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
                words = _words(said)
                if words & (doers | {"Callable"}) and not words & {"dict", "Mapping"}:
                    found.add(name)
    return found


def given_later(tree: ast.Module, names: set[str], doers: set[str]) -> Iterator[str]:
    """Of these attributes those that are set for another object than oneself, and those that a
    method sets to what it is given; None is nobody."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign() if ast.unparse(node.value) != "None":
                yield from (name for name in map(_of_another, node.targets) if name in names)
            case ast.FunctionDef(name=method) if method not in MAKERS and method[0] != "_":
                yield from _kept(node, doers)


def _of_another(target: ast.expr) -> str:
    match target:
        case ast.Attribute(value=ast.Name("self" | "cls")):
            return ""
        case ast.Attribute(attr=name):
            return name
    return ""


def _kept(method: ast.FunctionDef, doers: set[str]) -> Iterator[str]:
    given = {one.arg: one.annotation for one in method.args.args if one.annotation}
    for node in ast.walk(method):
        match node:
            case ast.Assign(targets=[ast.Attribute(ast.Name("self"), name)], value=ast.Name(value)):
                if value in given and _words(given[value]) & doers:
                    yield name


def _words(said: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(said) if isinstance(one, ast.Name)}


def test_one_that_is_given_later_is_seen() -> None:
    made = "class A:\n    def __init__(self):\n        self.kick: Callable[[], None] = no\n"
    tree = ast.parse(made + "def wire(a):\n    a.kick = f\n    a.n = 2\n    a.kick = None\n")
    names = collaborators([tree], set())
    assert list(given_later(tree, names, set())) == ["kick"]


def test_one_that_a_method_is_given_is_seen() -> None:
    tree = ast.parse(
        "class A:\n    def announce_to(self, one: Doer) -> None:\n        self._one = one\n"
    )
    assert list(given_later(tree, set(), {"Doer"})) == ["_one"]


def test_nobody_is_given_a_collaborator_after_it_was_made() -> None:
    trees = modules()
    doers = protocols(trees.values())
    assert {"blocking", "imaging", "healthy"} <= collaborators(trees.values(), doers)
    assert set(found(trees, doers)) == EXCUSED.keys()


def found(trees: Mapping[str, ast.Module], doers: set[str]) -> Iterator[tuple[str, str]]:
    """By file. What has the same name in two services is two things."""
    for part in {path.partition("/")[0] for path in trees}:
        own = {path: tree for path, tree in trees.items() if path.startswith(f"{part}/")}
        names = collaborators(own.values(), doers)
        for path, tree in own.items():
            yield from ((path, name) for name in given_later(tree, names, doers))
