"""The standard library's `dataclass`, without its price at import.

That one writes up to six functions for each class and compiles each: 0.4 to 0.8 ms for a frozen
class with slots, and an agent has two hundred of them before it serves. Here the standard library
finds the fields, so `field`, `fields`, `replace`, `asdict` and type checkers see a dataclass like
any other; `__init__` and what compares is written when it is first called (ADR 181), and
one that is frozen is filled while it is open (ADR 248).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - for whoever checks types

    Fields = tuple[Field[Any], ...]
    _Written = tuple[list[str], list[str], dict[str, Any]]

T = TypeVar("T")

_ORDER = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_NOT_GIVEN = object()


def _dataclass(
    *, frozen: bool = False, slots: bool = False, order: bool = False, eq: bool = True
) -> Callable[[type[T]], type[T]]:
    """A decorator; the arguments mean what they mean in the standard library."""
    find = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)

    def decorate(cls: type[T]) -> type[T]:
        cls.__doc__ = cls.__doc__ or cls.__name__
        own = {name for name, value in vars(cls).items() if value is not None}
        made: Any = find(cls)
        fields: Fields = dataclasses.fields(made)
        methods = {"__repr__": _repr(fields)}
        if frozen:
            methods |= _forbidding(made, fields)
        if eq and not frozen:
            methods["__hash__"] = None
        for text in _texts(made, fields, frozen=frozen, order=order, eq=eq):
            methods[text.name] = _written_later(made, text)
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return made  # type: ignore[no-any-return]

    return decorate


if not TYPE_CHECKING:
    dataclass = _dataclass


class _Text(NamedTuple):
    """A method and how it is written: as parameters behind `self_`, lines, and names in these."""

    name: str
    write: Callable[[], _Written]


def _written_later(cls: Any, text: _Text) -> Callable[..., Any]:
    def first(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        parameters, lines, names = text.write()
        source = f"def {text.name}({', '.join(['self_', *parameters])}):\n  " + "\n  ".join(lines)
        exec(source, names)  # noqa: S102 - of the names of fields alone
        method = names[text.name]
        method.__qualname__ = f"{cls.__qualname__}.{text.name}"
        setattr(cls, text.name, method)
        return method(self, *args, **kwargs)

    return first


def _texts(cls: Any, fields: Fields, *, frozen: bool, order: bool, eq: bool) -> list[_Text]:
    compared = [one.name for one in fields if one.compare]
    hashed = [one.name for one in fields if (one.compare if one.hash is None else one.hash)]
    found = [_Text("__init__", partial(_init, cls, fields, frozen=frozen))]
    if eq:
        found.append(_Text("__eq__", partial(_compare, "==", compared)))
    if eq and frozen:
        found.append(_Text("__hash__", partial(_hash, hashed)))
    if order:
        found += [_Text(name, partial(_compare, by, compared)) for name, by in _ORDER.items()]
    return found


def _init(cls: Any, fields: Fields, *, frozen: bool) -> _Written:
    parameters, values = [], {}
    names: dict[str, Any] = {"set_": object.__setattr__, "not_given_": _NOT_GIVEN}
    for one in fields:
        name, value, default = one.name, one.name, ""
        if one.default_factory is not dataclasses.MISSING:
            names[f"make_{name}"], default = one.default_factory, "=not_given_"
            made = f"make_{name}()"
            value = f"{made} if {name} is not_given_ else {name}" if one.init else made
        elif one.default is not dataclasses.MISSING:
            names[f"default_{name}"], default = one.default, f"=default_{name}"
            value = name if one.init else f"default_{name}"
        elif not one.init:
            continue  # `__post_init__` sets it
        if one.init:
            parameters.append(name + default)
        values[name] = value
    lines = [f"self_.{name} = {value}" for name, value in values.items()]
    if frozen:
        lines = _filled(cls, values, lines, names)
    if hasattr(cls, "__post_init__"):
        lines.append("self_.__post_init__()")
    return parameters, lines or ["pass"], names


def _filled(cls: Any, values: dict[str, str], plain: list[str], names: dict[str, Any]) -> list[str]:
    """Lines that fill one that is frozen. To go round what forbids that takes five times as long
    as a plain assignment for each field, so until it is filled it is of a class that forbids
    nothing and is laid out alike. Those that derive from something, whose layout may be another,
    and whatever derives from this one, are filled the longer way."""
    around = [f"set_(self_, {name!r}, {value})" for name, value in values.items()]
    if "__slots__" not in vars(cls) or cls.__bases__ != (object,) or not values:
        return around
    body = {"__slots__": cls.__slots__, "__setattr__": object.__setattr__}
    names |= {"cls_": cls, "open_": type(f"{cls.__name__}Open", (), body)}
    names["become_"] = vars(object)["__class__"].__set__
    return [
        "if self_.__class__ is cls_:",
        *(f"  {line}" for line in ("become_(self_, open_)", *plain, "self_.__class__ = cls_")),
        "else:",
        *(f"  {line}" for line in around),
    ]


def _compare(by: str, names: list[str]) -> _Written:
    values = f"{_tuple('self_', names)} {by} {_tuple('other_', names)}"
    line = f"return {values} if other_.__class__ is self_.__class__ else NotImplemented"
    return ["other_"], [line], {}


def _hash(names: list[str]) -> _Written:
    return [], [f"return hash({_tuple('self_', names)})"], {}


def _tuple(of: str, names: list[str]) -> str:
    return f"({''.join(f'{of}.{name}, ' for name in names)})"


def _repr(fields: Fields) -> Any:
    names = [one.name for one in fields if one.repr]

    @recursive_repr()
    def shown(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return shown


def _forbidding(cls: Any, fields: Fields) -> dict[str, Any]:
    names = frozenset(one.name for one in fields)

    def set_(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {
        "__setattr__": set_,
        "__delattr__": delete,
        "__getstate__": _state,
        "__setstate__": _fill,
    }


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _fill(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
