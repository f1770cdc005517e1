"""JSON that may have any shape: what is not what it should be counts as absent. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate.core.policy.effective import Label, Relation
from kybernate.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = dict[str, Any]

_MOST_BRACKETS = 200_000


def check_brackets(data: bytes, what: str) -> None:
    """Raise RefusedError, which begins with `what`, for a JSON text of too many lists and objects.

    Eight MiB of empty lists would take seconds and 256 MiB to read; texts have few brackets.
    """
    if data.count(b"[") + data.count(b"{") > _MOST_BRACKETS:
        raise RefusedError(f"{what} has more than {_MOST_BRACKETS} lists and objects.")


def mapping(value: object) -> Json:
    """The object, or an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Json]:
    """The objects of a list."""
    if not value or not isinstance(value, list):
        return []
    return [one for one in value if isinstance(one, dict)]


def texts(value: object) -> Mapping[str, str]:
    """The texts of an object."""
    found = mapping(value)
    for text in found.values():
        if type(text) is not str:
            return {name: text for name, text in found.items() if type(text) is str}
    return found


def text(value: object) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""


def whole(value: object, otherwise: int = 0) -> int:
    """The whole number, or another one."""
    return value if type(value) is int else otherwise


def number(value: object) -> float:
    """The number, or 0."""
    return float(value) if type(value) in (int, float) else 0.0  # type: ignore[arg-type]


def read_selector(given: Json, where: str) -> tuple[Label, ...]:
    """What a selector wants of labels; `where` it stands. Raises ConfigError."""
    plain = texts(given.get("matchLabels")).items()
    wanted = [Label(name, Relation.IN, frozenset({value})) for name, value in sorted(plain)]
    for at, one in enumerate(mappings(given.get("matchExpressions"))):
        listed = one.get("values")
        values = frozenset(map(str, listed)) if isinstance(listed, list) else frozenset()
        try:
            wanted.append(Label(text(one.get("key")), Relation(text(one.get("operator"))), values))
        except ValueError as error:
            raise ConfigError(f"{where}.matchExpressions[{at}]", str(error)) from error
    return tuple(wanted)
