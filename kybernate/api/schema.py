"""The words in which models of `kybernate.api` say what the API server is to check.

Only the CustomResourceDefinitions are made of them: a reader takes what the API server let in, also
where a newer version lets in more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Json = dict[str, Any]


def text(most: int = 0, told: str = "", *, least: int = 0, **more: Any) -> WithJsonSchema:
    """A text of `least` to `most` characters, 0 for no limit."""
    form = {"type": "string", "minLength": least, "maxLength": most, **more, "description": told}
    return WithJsonSchema(_given(form))


def whole(
    bits: int = 64, told: str = "", *, least: int = 0, most: int = 0, default: int | None = None
) -> WithJsonSchema:
    """A whole number from `least` to `most`, 0 for no limit above. `default` is what the API server
    writes where it is absent."""
    form: Json = {"type": "integer", "format": f"int{bits}", "minimum": least}
    if default is not None:
        form[DEFAULT] = default
    return WithJsonSchema({**form, **_given({"maximum": most, "description": told})})


def number(least: float = 0, **more: Any) -> WithJsonSchema:
    """A number of at least `least`."""
    return WithJsonSchema({"type": "number", "minimum": least, **more})


def one_of(words: Iterable[str], told: str = "") -> WithJsonSchema:
    """One of some words."""
    form = {"type": "string", "enum": [str(word) for word in words]}
    return WithJsonSchema({**form, **_given({"description": told})})


def labels(most: int, told: str = "") -> WithJsonSchema:
    """At most so many labels, with their values."""
    values = {"type": "string", "maxLength": 63}
    form = {"type": "object", "additionalProperties": values, "maxProperties": most}
    return WithJsonSchema({**form, **_given({"description": told})})


def flag(told: str = "") -> WithJsonSchema:
    """True or false."""
    return WithJsonSchema({"type": "boolean", **_given({"description": told})})


DEFAULT = "x-default"
"""What the API server is to write; pydantic's own `default` says what a reader takes for absent."""

TIME = WithJsonSchema({"type": "string", "format": "date-time"})
"""A time, as RFC 3339."""


def items(
    most: int, kind: str = "", told: str = "", *, least: int = 0, rules: Sequence[Json] = ()
) -> Any:
    """A list of `least` to `most` items. `kind` is Kubernetes' kind of list: `set`, `atomic`, or
    the names of the fields that tell the items of a map apart."""
    extra: Json = {"minItems": least, "maxItems": most} if least else {"maxItems": most}
    if kind in ("set", "atomic"):
        extra["x-kubernetes-list-type"] = kind
    elif kind:
        extra |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": kind.split()}
    if rules:
        extra["x-kubernetes-validations"] = list(rules)
    return Field(description=told or None, json_schema_extra=extra)


def rule(expression: str, message: str) -> Json:
    """What the API server checks in CEL."""
    return {"rule": expression, "message": message}


def checked(*rules: Json) -> ConfigDict:
    """The configuration of a model whose objects are checked as a whole."""
    return ConfigDict(
        alias_generator=to_camel, json_schema_extra={"x-kubernetes-validations": list(rules)}
    )


CAMEL = ConfigDict(alias_generator=to_camel)
"""The configuration of a model without such checks."""


def _given(form: Json) -> Json:
    return {name: value for name, value in form.items() if value}
