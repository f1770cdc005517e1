"""llama-swap's file as models.yaml: what means something here, and comments on the rest.

`kybernate serve` reads llama-swap's file as it is; this is for who changes it afterwards. Macros
stay macros, and variables of the environment are not looked up: keys stay out of the new file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.api.models import ModelsFile, read, text
from kybernate.api.models.tidying import arranged, tidied
from kybernate.local.importing.written import written

if TYPE_CHECKING:
    from collections.abc import Mapping


def converted(content: str, environ: Mapping[str, str]) -> str:
    """The text of models.yaml. Raises ConfigError if llama-swap's file can't be read here.

    `environ`: to see that it can be; none of it is written.
    """
    warnings = read(content, _Anything(environ)).warnings
    unsaid: list[str] = []
    data = tidied(arranged(text.parse(content), unsaid), ModelsFile, "", unsaid)
    told = ["Made of llama-swap's configuration by kybernate import.", *_left_out(warnings)]
    return written(data, told)


def _left_out(warnings: tuple[str, ...]) -> list[str]:
    return ["", "What differs:", *(f"- {one}" for one in warnings)] if warnings else []


class _Anything(dict[str, str]):
    """An environment in which every variable is set: the new file may be for another machine."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "0"
