"""Kinds of values in models.yaml: times, sizes, variables, and parts of several keys."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from kybernate.api.models.macros import Scalar
from kybernate.core.quantity import parse_duration, parse_quantity
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NEVER = 0.0
"""A time to live that never ends."""

_SPACED = re.compile(r"(?<=[0-9]) (?=[A-Za-z])")
_DAYS = re.compile(r"([0-9]{1,6})d")


def _told(parse: Callable[[Any], T]) -> Callable[[Any], T]:
    # pydantic adds the field's path to a ValueError; ours would name it a second time.
    def checked(value: Any) -> T:
        try:
            return parse(value)
        except ConfigError as error:
            raise ValueError(error.problem) from error

    return checked


def _seconds(value: object) -> float:
    if isinstance(value, str):
        if days := _DAYS.fullmatch(value):
            return float(days[1]) * 86400
        number = _number(value)
        return parse_duration(value) if number is None else _finite(number)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError("", "write a time as 30s, 10m, 2h or 7d, or as a number of seconds")
    try:
        return _finite(float(value))
    except OverflowError:
        return _finite(math.inf)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ConfigError("", "write a time as 30s, 10m, 2h or 7d, or as a number of seconds")
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bytes(value: object) -> int:
    if isinstance(value, str):
        return parse_quantity(_SPACED.sub("", value.strip().removesuffix("B")))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError("", "write a size as 22GiB or 900MiB, or as a number of bytes")
    return value


def _environment(value: object) -> object:
    if isinstance(value, dict):
        return tuple(_variable(str(name), _plain(one)) for name, one in value.items())
    if not isinstance(value, list | tuple):
        raise ConfigError("", "write a list such as [CUDA_VISIBLE_DEVICES=0], or a mapping")
    return tuple(_assignment(one) for one in value)


def _assignment(one: object) -> tuple[str, str]:
    if isinstance(one, tuple) and len(one) == 2:
        return _variable(str(one[0]), str(one[1]))
    name, equals, text = str(one).partition("=")
    return _variable(name, text if equals else None)


def _variable(name: str, text: str | None) -> tuple[str, str]:
    # What is wrong isn't shown: it may be a key, and a log keeps it.
    if text is None or "\0" in text or not _VARIABLE.fullmatch(name):
        raise ConfigError("", "write each variable as NAME=value, as in CUDA_VISIBLE_DEVICES=0")
    return name, text


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


Seconds = Annotated[
    float,
    BeforeValidator(_told(_seconds)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number"},
                {"type": "string", "pattern": r"^([0-9.]+(ms|s|m|h))+$|^[0-9]+d$"},
            ]
        }
    ),
]
"""A time: a number of seconds, or 30s, 10m, 2h, 7d."""

Bytes = Annotated[
    int,
    BeforeValidator(_told(_bytes)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^[0-9.]+ *([KMGT]i?|k)?B?$"},
            ]
        }
    ),
]
"""A size: a number of bytes, or 22GiB, 900M."""

Environment = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(_told(_environment)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string", "pattern": r"^[A-Za-z_]\w*=.*$"}},
                {
                    "type": "object",
                    "additionalProperties": {"type": ["string", "number", "boolean"]},
                },
            ]
        }
    ),
]
"""Variables: a list of NAME=value, or a mapping."""


def _parts(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


Parameters = Annotated[tuple[str, ...], BeforeValidator(_parts, json_schema_input_type=str)]
"""Names of a request's fields, separated by commas."""

Macros = Annotated[
    dict[str, Scalar],
    Field(description="Texts that replace ${NAME} in other values; a macro may use those above it"),
]
"""What a file or a model defines."""


class Part(BaseModel):
    """A part of the file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )
