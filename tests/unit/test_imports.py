"""How modules hang together: no circle of imports, and no long chain of them in the agent."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
TREE = (
    *("kybernate", "extender", "webhook", "deviceplugin", "nodeagent", "proxy", "registry"),
    *("sidecar", "controller", "images", "bench"),
)
Imported = dict[bool, set[str]]
"""All that a module imports, by whether what only type checkers see is in it."""
NESTED = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where a statement has others in it."""
DEEPEST = 8
"""Modules of `nodeagent` in the longest chain of imports when the agent runs, from `__main__` on,
those within functions included. ADR 240."""
DEEPEST_READ = 18
"""The same with what is imported for type checkers alone: what a reader may have to follow."""


def modules(*folders: str) -> dict[str, Imported]:
    found = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = imported(path.read_text(), name.rpartition(".")[0])
    return found


def imported(text: str, package: str = "") -> Imported:
    """What a module of this package imports. Its tree is let go: thousands of them at a time
    would be looked through for garbage again and again."""
    tree = ast.parse(text)
    return {types: set(imports(tree, package, types=types)) for types in (False, True)}


def imports(tree: ast.AST, package: str, *, types: bool) -> Iterator[str]:
    """What is imported, as module and as name in it; `types`: also for type checkers alone."""
    match tree:
        case ast.Import():
            yield from (name.name for name in tree.names)
        case ast.ImportFrom():
            module = absolute(tree, package)
            yield module
            yield from (f"{module}.{name.name}" for name in tree.names)
        case ast.If(test=ast.Name("TYPE_CHECKING"), orelse=rest) if not types:
            for one in rest:
                yield from imports(one, package, types=types)
        case _:
            for one in (one for field in NESTED for one in getattr(tree, field, ())):
                yield from imports(one, package, types=types)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that is named, with its whole name in place of `.name`."""
    above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def graph(known: Mapping[str, Imported], *, types: bool) -> dict[str, set[str]]:
    def of(name: str) -> set[str]:
        found = known[name][types] & known.keys()
        # Who imports a module from its package imports the module.
        return {one for one in found if not any(other.startswith(f"{one}.") for other in found)}

    return {name: of(name) - {name} for name in known}


def depths(of: Mapping[str, set[str]]) -> dict[str, int]:
    """How many modules the longest chain from each has. Raises CycleError if there is a circle."""
    found: dict[str, int] = {}
    for name in TopologicalSorter(of).static_order():
        found[name] = 1 + max((found[one] for one in of[name]), default=0)
    return found


def test_an_import_for_types_alone_is_told_apart() -> None:
    known = {
        "a": imported("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import c"),
        "b": imported("def f():\n    import d"),
        "d": imported(""),
    }
    assert graph(known, types=True) == {"a": {"b"}, "b": {"d"}, "d": set()}
    assert depths(graph(known, types=False)) == {"a": 1, "b": 2, "d": 1}


def test_a_circle_is_seen() -> None:
    with pytest.raises(ValueError, match="cycle"):
        depths({"a": {"b"}, "b": {"a"}})


def test_relative_imports_count() -> None:
    known = {
        "a.b": imported("from .c import d", "a"),
        "a.c": imported("from . import b\nfrom ..e import f", "a.x"),
        "a.e": imported(""),
        "a.x.b": imported(""),
    }
    assert graph(known, types=True)["a.b"] == {"a.c"}
    assert graph(known, types=True)["a.c"] == {"a.x.b", "a.e"}


def test_no_module_imports_itself_in_the_end_not_even_for_types() -> None:
    known = modules(*TREE, "tests")
    assert all(any(name.startswith(f"{folder}.") for name in known) for folder in TREE)
    depths(graph(known, types=True))


def longest(of: Mapping[str, set[str]]) -> list[str]:
    """The longest chain of imports, from who is imported by nobody."""
    found = depths(of)
    chain = [max(found, key=lambda name: found[name])]
    while of[chain[-1]]:
        chain.append(max(of[chain[-1]], key=lambda name: found[name]))
    return chain


@pytest.mark.parametrize(("types", "most"), [(False, DEEPEST), (True, DEEPEST_READ)])
def test_the_agent_s_longest_chain_begins_at_main_and_is_short(types: bool, most: int) -> None:
    chain = longest(graph(modules("nodeagent"), types=types))
    assert chain[0] == "nodeagent.__main__"
    assert len(chain) <= most, chain


BEGIN = """
import asyncio, gc
from nodeagent import __main__ as begun
looks = []
gc.callbacks.append(lambda phase, _: looks.append(phase))
try:
    asyncio.run(begun._run(None, None))
except AttributeError:
    print(len(looks), gc.isenabled())
"""


def test_what_is_imported_is_not_looked_through_for_garbage() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN], capture_output=True, text=True, timeout=60, check=True
    )
    looks, enabled = done.stdout.split()
    assert int(looks) <= 8
    assert enabled == "True"


SERVES = """
import importlib.metadata, sys

def distributions():
    sys.exit("what is installed is searched for plugins")

importlib.metadata.distributions = distributions
import nodeagent.__main__, nodeagent.app.wiring
print(*sys.modules)
"""
LATER = {"yaml", "kubernetes", "requests", "kybernate.adapters.k8s", "kybernate.checkpoint"}


def test_an_agent_imports_little_before_it_serves() -> None:
    """Seats wait for its start."""
    done = subprocess.run(
        [sys.executable, "-c", SERVES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not LATER & set(done.stdout.split())


INHERITED = """
import os
before = dict(os.environ)
import kybernate.local.serve
print({name for name, value in os.environ.items() if before.get(name) != value})
"""


def test_what_a_box_imports_leaves_the_environment_to_its_models() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INHERITED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
