"""docs/reference/http.md: what extender, registry and proxy answer over HTTP, from their code."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING, Any

from extender.http.app import PREFIXES, VERBS, Verbs
from extender.pages.defrag import Defragmenter
from extender.pages.explain import Explainer
from extender.pages.preempting import Preemption
from extender.state.snapshot import Snapshot
from registry.http.routes import routes
from registry.keys.routes import key_routes
from registry.store.routes import store_routes
from tests.cluster.layout import REPOSITORY
from tests.pages import item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel

    from registry.http.calls import Route

HEAD = """# HTTP

Generated from the services' code by `make generated`. Extender and registry take mutual TLS; the
proxy takes what its [clients](serving/proxy.md#clients) have. The registry serves an OpenAPI
document at `/openapi.json`, with all types.
"""
PAGES: dict[str, Callable[..., Any]] = {
    "/preemption/{namespace}/{pod}": Preemption.page,
    "/explain/{namespace}/{pod}": Explainer.page,
    "/defrag/{namespace}/{pod}": Defragmenter.page,
    "/dump": Snapshot.dump,
}
"""The extender's pages; a test holds them against what it serves."""
PROXY = (REPOSITORY / "proxy" / "app.py", REPOSITORY / "proxy" / "page" / "door.py")


def page() -> str:
    """The page, whole."""
    extender = [*_verbs(), *(item(f"`GET {path}`: {_first(one)}") for path, one in PAGES.items())]
    parts = {"extender": extender, "registry": _registry(), "proxy": _proxy()}
    return HEAD + "".join(
        f"\n## The {name}\n\n" + "".join(entries) for name, entries in parts.items()
    )


def _verbs() -> Iterator[str]:
    for verb in VERBS:
        paths = " or ".join(f"`POST {prefix}/{verb}`" for prefix in PREFIXES)
        yield item(f"{paths}: {_first(getattr(Verbs, verb))}")


def _registry() -> Iterator[str]:
    none: Any = None
    calls = (*routes(none, none, none), *store_routes(None), *key_routes(none, none))
    for one in calls:
        yield item(f"`{one.method} {one.path}`: {one.summary}", *_details(one))
    yield "\nIts answers:\n\n"
    for name, model in sorted({one.answer.__name__: one.answer for one in calls}.items()):
        yield item(f"{name}: {_fields(model)}")


def _details(route: Route) -> Iterator[str]:
    yield f"callers: {', '.join(sorted(route.roles))}"
    for name, model in (("query", route.query), ("body", route.body)):
        if model is not None and (fields := _fields(model)):
            yield f"{name}: {fields}"
    yield f"answer: {route.answer.__name__}"


def _fields(model: type[BaseModel]) -> str:
    return ", ".join(
        f"`{field.alias or name}`" + ("" if field.is_required() else " (optional)")
        for name, field in model.model_fields.items()
    )


def _proxy() -> Iterator[str]:
    text = "".join(file.read_text() for file in PROXY)
    found = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.AsyncFunctionDef)]
    said = {one.name: ast.get_docstring(one) for one in found}
    added = r'add(?:_(get|post|route))?\((?:"(?:\*|GET)", )?"(/[^"]*)", (?:ours\()?self\.(\w+)\)'
    for kind, path, handler in sorted(re.findall(added, text), key=lambda one: one[0] == "route"):
        method = "any other" if kind == "route" else (kind or "get").upper()
        shown = re.sub(r":[^}]+}", "}", path)
        about = said[handler]
        assert about, f"{handler} has no docstring"
        yield item(f"`{method} {shown}`: {' '.join(about.split())}")


def _first(function: Callable[..., object]) -> str:
    about = inspect.getdoc(function)
    assert about, function
    words = " ".join(about.partition("\n\n")[0].split())
    return words.removesuffix(" Raises KybernateError.").replace(", as JSON", "")
