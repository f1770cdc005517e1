"""models.yaml as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from kybernate.local.folders import given

if TYPE_CHECKING:
    from collections.abc import Iterable


def schema_line() -> str:
    """The line by which editors complete and check the file."""
    return f"# yaml-language-server: $schema={given('config/models.schema.json').as_uri()}"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are read best."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def written(data: dict[str, Any], told: Iterable[str]) -> str:
    """The file, with these sentences at its head as comments."""
    head = "".join(f"# {line}\n" for one in told for line in (one.splitlines() or [""]))
    body = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return f"{schema_line()}\n{head}{body}"
