"""Frozen dataclasses to JSON and back, strictly: what is read from outside is data. Pure.

Fields may be str, int, bool, tuples of one kind, and dataclasses. Nothing is converted, nothing may
be missing that has no default; an error names the field as `files[3].size`. Of what people write
(`take`) nothing unknown is passed over; of what a version of ours has stored (`decode`) fields are
that only a newer one knows: one that changes what the others mean comes with a higher version.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import typing
from typing import Any, TypeVar

from kybernate.errors import CorruptError, UnfitError

T = TypeVar("T")

LONGEST_TEXT = 4096
MOST_ITEMS = 4_000_000
_MOST = (1 << 64) - 1


def encode(value: Any, without: tuple[str, ...] = ()) -> bytes:
    """The dataclass as JSON: the same value always gives the same bytes. `without`: fields of it
    that are left out, those of a part as "part.field"."""
    told = dataclasses.asdict(value)
    for field in without:
        *parts, name = field.split(".")
        del functools.reduce(operator.getitem, parts, told)[name]
    return json.dumps(told, separators=(",", ":"), sort_keys=True, ensure_ascii=True).encode(
        "ascii"
    )


def decode(cls: type[T], data: bytes, what: str, version: int = 0) -> T:
    """The value that `data` says, of which this release reads versions up to `version`, 0 for a
    kind that has none. Raises CorruptError, which names `what` and the field, and UnfitError for a
    higher version."""
    try:
        raw = json.loads(data, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{what}: is no JSON text ({error})") from error
    _see_version(raw, what, version)
    return take(cls, _known(cls, raw), what)


def _see_version(raw: object, what: str, version: int) -> None:
    written = raw.get("version") if version and isinstance(raw, dict) else None
    if type(written) is int and version < written <= _MOST:
        raise UnfitError(
            f"{what}: has version {written}, and this release reads versions up to {version}; it "
            "is kept: run the release that wrote it, or a newer one"
        )


def _known(kind: Any, raw: object) -> object:
    """Without the fields that this version doesn't know, wherever they are."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(raw, dict):
        kinds, _ = _shape(kind)
        return {name: _known(kinds[name], value) for name, value in raw.items() if name in kinds}
    if typing.get_origin(kind) is tuple and isinstance(raw, list):
        inner = typing.get_args(kind)[0]
        return [_known(inner, item) for item in raw] if dataclasses.is_dataclass(inner) else raw
    return raw


def take(cls: type[T], raw: object, what: str) -> T:
    """The value that a JSON object, already read, says, and nothing besides. Raises CorruptError
    like `decode`."""
    try:
        value: T = _take(cls, raw, "")
    except _WrongError as error:
        field = error.path.lstrip(".")
        raise CorruptError(f"{what}: {field + ' ' if field else ''}{error.problem}") from error
    return value


class _WrongError(Exception):
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem


def _take(kind: Any, raw: object, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(kind, raw, path)
    if typing.get_origin(kind) is tuple:
        return _items(typing.get_args(kind)[0], raw, path)
    plain = getattr(kind, "__supertype__", kind)
    if plain is str:
        return _text(raw, path)
    if type(raw) is not plain:
        raise _WrongError(path, f"must be {'a number' if plain is int else 'true or false'}")
    if plain is int and not 0 <= typing.cast("int", raw) <= _MOST:
        raise _WrongError(path, "must be a whole number from 0 to 2^64 - 1")
    return raw


def _record(cls: Any, raw: object, path: str) -> Any:
    if not isinstance(raw, dict):
        raise _WrongError(path, "must be an object")
    kinds, needed = _shape(cls)
    for name in raw:
        if name not in kinds:
            raise _WrongError(f"{path}.{name[:100]}", "is not known to this version")
    for name in needed:
        if name not in raw:
            raise _WrongError(f"{path}.{name}", "is missing")
    return cls(**{name: _take(kinds[name], value, f"{path}.{name}") for name, value in raw.items()})


@functools.cache
def _shape(cls: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The kind of each field, and the names of those without a default."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    kinds = {field.name: hints[field.name] for field in fields}
    return kinds, tuple(f.name for f in fields if f.default is dataclasses.MISSING)


def _items(kind: Any, raw: object, path: str) -> tuple[Any, ...]:
    if not isinstance(raw, list):
        raise _WrongError(path, "must be a list")
    if len(raw) > MOST_ITEMS:
        raise _WrongError(path, f"has more than {MOST_ITEMS} items")
    return tuple(_take(kind, item, f"{path}[{number}]") for number, item in enumerate(raw))


def _text(raw: object, path: str) -> str:
    if not isinstance(raw, str):
        raise _WrongError(path, "must be a text")
    if len(raw) > LONGEST_TEXT:
        raise _WrongError(path, f"is longer than {LONGEST_TEXT} characters")
    if not raw.isprintable():
        raise _WrongError(path, "has characters that can't be printed")
    return raw


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
