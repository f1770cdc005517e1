"""YAML as this file is written in: YAML 1.2's plain words, and no key twice."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import yaml

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGEST = 4 * 2**20
_MOST = 100_000
"""Values in a file, where each use of an anchor counts as all that it stands for."""

_WORDS = (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", "~|null|Null|NULL|", "~nN\0"),
    ("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", "<<", "<"),
)


_TEXT = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """PyYAML reads YAML 1.1, in which a model called `on`, or a time of 12:30, is another thing."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - as its base has it

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(_line(key), "a key must be one word, no list and no mapping")
            if key.value in seen:
                raise ConfigError(_line(key), f"the key {key.value!r} is there twice; leave one")
            seen.add(key.value)
            key.tag = _TEXT  # 1.10 is no 1.1, and 007 no 7
        return super().construct_mapping(node, deep)


for _name, _form, _first in _WORDS:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_form})$"), [c.strip("\0") for c in _first]
    )


def parse(text: str) -> dict[str, Any]:
    """The mapping that the text is. Raises ConfigError with the line of what is wrong.

    Keys are texts, whatever they look like: a model may be called 7.
    """
    if len(text) > _LARGEST:
        raise ConfigError("the file", f"is longer than {_LARGEST >> 20} MiB; models.yaml is short")
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else "the file"
        raise ConfigError(where, f"isn't YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML's own constructors take what a tag names on trust.
        raise ConfigError("the file", f"isn't YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError("the file", "must be a mapping that begins with a key such as models:")
    found: dict[str, Any] = _checked(data, 0, itertools.count(1))
    return found


def _checked(value: Any, depth: int, count: Iterator[int]) -> Any:
    if depth > 50:
        raise ConfigError("the file", "is nested more than 50 levels deep")
    if next(count) > _MOST:
        raise ConfigError("the file", f"has more than {_MOST} values; use fewer anchors")
    if isinstance(value, dict):
        return {_whole(key): _checked(one, depth + 1, count) for key, one in value.items()}
    if isinstance(value, list):
        return [_checked(one, depth + 1, count) for one in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError("the file", "a number has more than 64 bits; put it in quotes")
    return _whole(value) if isinstance(value, str) else value


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        why = f"{text[:60]!r} has half a character; write all of it"
        raise ConfigError("the file", why) from None
    return text


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
