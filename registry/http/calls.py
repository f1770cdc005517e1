"""How a call of the API is written: a method that says by `answers` where and by whom it is asked.

The application serves these methods, and the OpenAPI document is made of them: the operation is
called as the method, and its summary is the docstring.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kybernate.adapters.registry import wire
from kybernate.dataclass import dataclass
from registry.http.callers import Caller, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    Json = dict[str, Any]
    Answer = Json | tuple[Json, int]
    """With a status where that isn't 200."""

READERS = frozenset({Role.AGENT, Role.CONTROLLER, Role.PROXY})
AGENTS = frozenset({Role.AGENT})
OPERATORS = frozenset({Role.AGENT, Role.CONTROLLER})
CONTROLLERS = frozenset({Role.CONTROLLER})


class OfNothing(wire.Query):
    """A path without parts."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call, checked: `path`, `query` and `body` are of the route's models."""

    caller: Caller
    path: Any
    query: Any
    body: Any


@dataclass(frozen=True, slots=True)
class Route:
    """`created`: it answers 201 where something is new, else 200. `largest`: bytes of a body, where
    it may be larger than others."""

    name: str
    method: str
    path: str
    summary: str
    roles: frozenset[Role]
    answer: type[BaseModel]
    serve: Callable[..., Answer]
    of: type[wire.Query] = OfNothing
    query: type[wire.Query] = wire.Nothing
    body: type[wire.Message] | None = None
    created: bool = False
    largest: int = 0


def answers(
    method: str, path: str, roles: frozenset[Role], answer: type[BaseModel], **more: Any
) -> Callable[[Callable[[Any, Call], Answer]], Route]:
    """Make a method a call of the API; `more` as of `Route`."""

    def mark(serve: Callable[[Any, Call], Answer]) -> Route:
        first, *others = serve.__name__.split("_")
        name = first + "".join(word.capitalize() for word in others)
        summary = " ".join((serve.__doc__ or "").split())
        return Route(name, method, path, summary, roles, answer, serve, **more)

    return mark


def routes_of(*calls: object) -> tuple[Route, ...]:
    """The calls that these objects answer."""
    return tuple(
        replace(one, serve=partial(one.serve, each))
        for each in calls
        for one in vars(type(each)).values()
        if isinstance(one, Route)
    )
