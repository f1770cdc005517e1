"""Macros: `${env.HOME}`, `${PORT}`, `${MODEL_ID}` and those that the file defines.

A macro may use those above it. A value that is one macro and nothing else keeps the macro's kind: a
number stays a number.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
_USE = re.compile(r"\$\{([A-Za-z0-9_-]+)\}")
_ENV = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
_RESERVED = ("PID", "PORT", "MODEL_ID")

Scalar = str | int | float | bool


def fill_environment(value: Any, environ: Mapping[str, str], path: str = "") -> Any:
    """The value with each `${env.NAME}` filled in. Raises ConfigError if one is not set."""
    if isinstance(value, dict):
        return {k: fill_environment(v, environ, _joined(path, k)) for k, v in value.items()}
    if isinstance(value, list):
        return [fill_environment(v, environ, f"{path}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def found(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environ:
            problem = f"the environment variable {name} is not set; set it, or write the value"
            raise ConfigError(path or "the file", problem)
        return environ[name]

    return _ENV.sub(found, value)


def defined(value: object, path: str) -> dict[str, Scalar]:
    """The macros that a mapping defines. Raises ConfigError naming one that can't be."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(path, "must be a mapping of names and values")
    for name, one in value.items():
        _check(name, one, f"{path}.{name}")
    return value


def fill(value: Any, macros: dict[str, Scalar]) -> Any:
    """The value with these macros filled in, the last one first, as each may use those above."""
    for name in reversed(macros):
        value = _fill_one(value, f"${{{name}}}", macros[name])
    return value


def fill_key(key: str, macros: dict[str, Scalar]) -> str:
    """A key of a mapping, filled in as text."""
    for name in reversed(macros):
        key = key.replace(f"${{{name}}}", _text(macros[name]))
    return key


def unknown(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Where a macro is left that nobody defined, and its name."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from unknown(one, _joined(path, key))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from unknown(one, f"{path}[{i}]")
    elif isinstance(value, str):
        yield from ((path, match) for match in _USE.findall(value))


def _check(name: str, value: object, path: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(path, "write a macro's name with 1 to 63 of A-Za-z0-9_-")
    if name in _RESERVED:
        raise ConfigError(path, f"{name} is a macro of Kybernate's own; choose another name")
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(path, "a macro is a text, a number, true or false")
    if isinstance(value, str) and f"${{{name}}}" in value:
        raise ConfigError(path, "uses itself; a macro may use those above it")


def _fill_one(value: Any, used: str, by: Scalar) -> Any:
    if isinstance(value, dict):
        return {key: _fill_one(one, used, by) for key, one in value.items()}
    if isinstance(value, list):
        return [_fill_one(one, used, by) for one in value]
    if not isinstance(value, str) or used not in value:
        return value
    return by if value == used else value.replace(used, _text(by))


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
