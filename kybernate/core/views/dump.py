"""The ledger as JSON and back, to look at what was decided, elsewhere and later. Pure.

Records become objects with their fields' names, in full: what is left out when written by hand
takes the field's default. Mappings whose keys are no strings become lists of pairs, links of GPUs
are named in lower case. A newer dump with fields that nobody knows here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from kybernate import types
from kybernate.core.ledger.ledger import Claim, NodeSeats
from kybernate.core.placement import Demand, Weights, mix
from kybernate.core.placement.mix import Mix
from kybernate.core.swap import forecast
from kybernate.core.tiers.tiers import Artifact, StoredArtifact
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    Json = Any

T = TypeVar("T")
FORMAT = "kybernate.ledger/1"


@dataclass(frozen=True, slots=True)
class Pending:
    """A pod that waits for a seat: what it asks for, or why that can't be read."""

    pod: types.PodRef
    demand: Demand | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Dump:
    """The ledger at one moment: `taken_at` as RFC 3339, `policy` by its name, `weights` of the one
    that has some. `mix` is what was learned from for the policies in use.

    `claims` are those of bound pods and reservations alike. `pending` pods are in the order in
    which a replay places them. `movable` are pods of claims that could have another seat, with what
    they would ask for.
    """

    taken_at: str
    policy: str
    nodes: tuple[NodeSeats, ...]
    claims: tuple[Claim, ...]
    pending: tuple[Pending, ...]
    movable: tuple[Pending, ...] = ()
    weights: tuple[int, ...] = tuple(Weights())
    mix: Mix = field(default_factory=Mix)
    format: str = FORMAT


def encode(value: object) -> Json:
    """The value as what JSON has."""
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value):
        names = _init_names(value.__class__)
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        pairs = [[encode(key), encode(one)] for key, one in value.items()]
        return dict(pairs) if all(isinstance(key, str) for key, _ in pairs) else pairs
    if isinstance(value, tuple | frozenset):
        listed = [encode(one) for one in value]
        return sorted(listed) if isinstance(value, frozenset) else listed
    return value


def decode(value: Json) -> Dump:
    """The dump that `encode` gave. Raises ConfigError, which names the field."""
    found = value.get("format") if isinstance(value, dict) else None
    if found != FORMAT:
        raise ConfigError("format", f"{found!r} is no dump of the ledger; expected {FORMAT!r}")
    read: Dump = _decode(Dump, value, "")
    return read


def _decode(kind: Any, value: Json, where: str) -> Any:
    if isinstance(kind, NewType):
        kind = kind.__supertype__
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        rest = next(one for one in inner if one is not type(None))
        return None if value is None else _decode(rest, value, where)
    if origin in (tuple, frozenset):
        listed = enumerate(_typed(list, value, where))
        return origin([_decode(inner[0], one, f"{where}[{at}]") for at, one in listed])
    if origin is not None:
        return _decode_mapping(inner, value, where)
    return _decode_plain(kind, value, where)


def _decode_plain(kind: Any, value: Json, where: str) -> Any:
    if is_dataclass(kind):
        return _decode_record(kind, _typed(dict, value, where), where)
    if issubclass(kind, Enum):
        return _decode_enum(kind, _typed(str, value, where), where)
    return float(value) if kind is float and type(value) is int else _typed(kind, value, where)


def _decode_mapping(inner: tuple[Any, ...], value: Json, where: str) -> dict[Any, Any]:
    if isinstance(value, dict):
        pairs = list(value.items())
    else:
        pairs = [_pair(one, where) for one in _typed(list, value, where)]
    return {_decode(inner[0], k, where): _decode(inner[1], v, f"{where}[{k}]") for k, v in pairs}


def _pair(value: Json, where: str) -> tuple[Json, Json]:
    if not isinstance(value, list) or len(value) != 2:
        raise ConfigError(where, "each entry must be a list of two: a key and a value")
    return value[0], value[1]


def _decode_record(kind: Any, value: dict[str, Json], where: str) -> Any:
    hints, names = _hints(kind), _init_names(kind)
    for name in value:
        if name not in names:
            raise ConfigError(_path(where, name), f"unknown; there are {', '.join(names)}")
    for one in fields(kind):
        needed = one.default is MISSING and one.default_factory is MISSING
        if one.init and needed and one.name not in value:
            raise ConfigError(_path(where, one.name), "is missing")
    given = {n: _decode(hints[n], one, _path(where, n)) for n, one in value.items()}
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(where or "the dump", str(error)) from None


def _decode_enum(kind: type[Enum], value: str, where: str) -> Enum:
    try:
        return kind[value.upper()]
    except KeyError:
        known = ", ".join(one.name.lower() for one in kind)
        raise ConfigError(where, f"{value!r} is unknown; there are {known}") from None


def _typed(kind: type[T], value: Json, where: str) -> T:
    if type(value) is not kind:
        found = "nothing" if value is None else type(value).__name__
        raise ConfigError(where or "the dump", f"must be {kind.__name__}, got {found}")
    return value


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


@cache
def _init_names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind) if one.init)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    # Types that modules import for checking only are known by their names here.
    ours = (Mapping, Demand, NodeSeats, StoredArtifact, Claim, Artifact)
    names = {one.__name__: one for one in ours}
    return get_type_hints(kind, localns={**vars(types), **vars(forecast), **vars(mix), **names})
