"""The asking container as it was: recorded at the first pass for every later one."""

from __future__ import annotations

import contextlib
import json
from dataclasses import field
from typing import Any

import orjson

from kybernate import keys
from kybernate.core.quantity import parse_quantity
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from webhook.pods.asking import amounts, annotations_of

Json = dict[str, Any]

DEEPEST = 64
"""How many levels of lists and objects a pod may have; real ones have about fifteen."""

MOST_VALUES = 20_000
"""How many values a pod may have; with as many, a review takes well below a second."""

MOST_VRAM = 2**46
"""Bytes of a GPU's memory; more is a mistake."""


@dataclass(frozen=True, slots=True)
class Original:
    """The asking container as it was before we changed it, as an annotation keeps it.

    `vram` is the amount per GPU (bytes) that was assumed, None if the pod says it itself.
    `probes` holds the handlers of probes that were taken over, by probe, `scrape` the port that
    Prometheus was told to scrape.
    """

    container: str
    resources: Json
    command: list[str] | None
    args: list[str] | None
    vram: int | None = None
    probes: Json = field(default_factory=dict)
    scrape: int | None = None

    def to_text(self) -> str:
        """As JSON, the same for the same content."""
        fields = {
            "container": self.container,
            "resources": self.resources,
            "command": self.command,
            "args": self.args,
            "vram": self.vram,
            "probes": self.probes or None,
            "scrape": self.scrape,
        }
        kept = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def read_original(pod: Json, container: str) -> tuple[Original | None, str | None]:
    """What was recorded for this container, or None, and what is wrong with it."""
    text = annotations_of(pod).get(keys.ORIGINAL_RESOURCES)
    if text is None:
        return None, None
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, ConfigError):
        original = _parse(text)
        if original.container == container:
            return original, None
    return None, (
        f"The annotation {keys.ORIGINAL_RESOURCES} is not what the webhook wrote for container "
        f"{container}; remove it, the webhook writes it itself."
    )


def _parse(text: str) -> Original:
    """Raises an error of any of several kinds if this is not what `to_text` wrote."""
    # Unlike json's, its loads has a limit of its own to nesting.
    fields = orjson.loads(text)
    if extent(fields, DEEPEST, MOST_VALUES):
        raise ValueError(text)
    original = Original(
        str(fields["container"]),
        fields["resources"],
        fields.get("command"),
        fields.get("args"),
        fields.get("vram"),
        fields.get("probes") or {},
        fields.get("scrape"),
    )
    _check_probes(original.probes)
    for kind in ("limits", "requests"):
        memory = amounts({"resources": original.resources}, kind).get("memory")
        if memory is not None:
            parse_quantity(memory)
    if not (_is_number(original.vram, MOST_VRAM) and _is_number(original.scrape, 65535)):
        raise ValueError(text)
    return original


def _is_number(value: object, most: int) -> bool:
    return value is None or (isinstance(value, int) and 0 <= value <= most)


def _check_probes(probes: Json) -> None:
    """Raises a ValueError or its like if they aren't handlers by probe."""
    for handler in probes.values():
        ((kind, inner),) = handler.items()
        if kind == "exec":
            "".join(inner["command"])
        else:
            inner["port"].__str__()


def extent(value: object, levels: int, values: int) -> str | None:
    """What it has too much of, in words; None if levels and values are within the limits.

    It doesn't recurse, and looks at no more than that.
    """
    left, count = [(value, 1)], 0
    while left:
        item, depth = left.pop()
        inner = list(item.values()) if isinstance(item, dict) else item
        if isinstance(inner, list):
            count += len(inner)
            if depth > levels:
                return f"nested deeper than {levels} levels"
            if count > values:
                return f"of more than {values} values"
            left += [(one, depth + 1) for one in inner if isinstance(one, dict | list)]
    return None
