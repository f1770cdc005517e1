"""Code is shared by giving an object, not by a base class. ADR 241."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from tests.unit.test_imports import ROOT, absolute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDERS = (
    *("kybernate", "extender", "webhook", "deviceplugin", "nodeagent", "proxy", "registry"),
    *("sidecar", "controller"),
)
ALLOWED = {
    # Words and records: what they add is about their own values.
    "kybernate.core.reasons.Reasoned": "an enumeration's members that carry a sentence",
    "kybernate.core.requests.asked.Asked": "what all requests' records say of themselves",
    "kybernate.adapters.registry.wire.Spot": "a message of which others have more fields",
    # Tables of objects of one kind, each with the questions of its kind. All they do is answer.
    "controller.base.lasting.Objects": "a table, to which a kind adds questions",
    "kybernate.runtime.listed.Listed": "a table, to which a kind adds questions",
    # Parts of one box, which are those of a node but for where they find models.
    "kybernate.adapters.kernel.freezer.CgroupFreezer": "one box freezes its own models alone",
    "kybernate.adapters.kernel.procfs.Procfs": "one box knows models by their folders",
    "kybernate.adapters.container.seatsocket.SeatSockets": "one box asks servers by HTTP",
    # Others.
    "kybernate.adapters.objects.objects.FreeObjects": "two methods of a port that do nothing",
    "proxy.relay.traces.Trace": "what is done where nobody traces; each of its methods is replaced",
    "kybernate.runtime.http.DeadlineSocket": "an SSLSocket, which gunicorn makes by its class",
}
"""Classes of ours that have code and subclasses, and why that stays."""


class Class(NamedTuple):
    """A class of the product, and its bases of the product, by their whole names."""

    bases: tuple[str, ...]
    has_code: bool


def classes(module: str, tree: ast.Module) -> Iterator[tuple[str, Class]]:
    """All of a module."""
    nodes = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    known = {one.name: f"{module}.{one.name}" for one in nodes} | dict(imported(module, tree))
    for node in nodes:
        bases = tuple(whole(base, known) for base in node.bases)
        code = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
        interface = any(base.endswith("Protocol") for base in bases)
        # How an error is worded is no behaviour that is shared.
        shares = any(one.name != "__init__" or not _is_error(node) for one in code)
        yield f"{module}.{node.name}", Class(bases, shares and not interface)


def _is_error(node: ast.ClassDef) -> bool:
    return node.name.endswith("Error")


def imported(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that it imports, and what they are."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = absolute(node, module.rpartition(".")[0])
            yield from ((one.asname or one.name, f"{source}.{one.name}") for one in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.asname or one.name, one.name) for one in node.names)


def whole(base: ast.expr, known: Mapping[str, str]) -> str:
    """A base's whole name."""
    match base:
        case ast.Subscript(value=value):
            return whole(value, known)
        case ast.Attribute(value=value, attr=name):
            return f"{whole(value, known)}.{name}"
        case ast.Name(id=name):
            return known.get(name, name)
    return ""


def product() -> dict[str, Class]:
    found: dict[str, Class] = {}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        if "gen" not in path.parts:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found |= classes(name.removesuffix(".__init__"), ast.parse(path.read_text()))
    return found


def sharing(found: Mapping[str, Class]) -> set[str]:
    """Those with code that another class has by inheriting it."""
    bases = {base for one in found.values() for base in one.bases}
    return {name for name, one in found.items() if one.has_code and name in bases}


def test_a_base_class_with_code_is_seen_wherever_it_lies() -> None:
    base = "class A(Generic[T]):\n    def f(self): ...\nclass P(Protocol):\n    def f(self): ..."
    heirs = "from a.b import A as Z, P\nimport a.b\nclass B(Z[int]): ...\nclass C(P): ..."
    found = {**dict(classes("a.b", ast.parse(base))), **dict(classes("c", ast.parse(heirs)))}
    assert sharing(found) == {"a.b.A"}
    found = {**dict(classes("a.b", ast.parse(base)))}
    assert sharing(found) == set()
    by_module = dict(classes("c", ast.parse("import a.b\nclass B(a.b.A): ...")))
    assert sharing({**found, **by_module}) == {"a.b.A"}


def test_no_class_shares_code_by_inheritance_but_those_that_are_listed() -> None:
    assert sharing(product()) == ALLOWED.keys()
