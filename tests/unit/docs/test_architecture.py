"""docs/concepts/architecture.md lists the parts of the code that the layers' contracts have."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "concepts" / "architecture.md").read_text()
CONTRACTS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERS = {
    name.replace(".", "/"): [part for layer in contract["layers"] for part in layer.split(" | ")]
    for contract in CONTRACTS["contracts"]
    for name in contract.get("containers", ())
}


@pytest.mark.parametrize("package", ["kybernate/core", "nodeagent", "kybernate/checkpoint"])
def test_its_table_has_each_part_in_the_order_of_imports(package: str) -> None:
    table = PAGE.partition(f"| part of `{package}` |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    parts = [one for one in LAYERS[package] if (REPOSITORY / package / one).is_dir() or one in rows]
    assert set(rows) == set(parts)
    assert all(above in layers_from(package, below) for below, above in pairs(rows))


def pairs(rows: list[str]) -> list[tuple[str, str]]:
    """Each row's part, with each of those that are listed before it."""
    return [(below, above) for n, below in enumerate(rows) for above in rows[:n]]


def layers_from(package: str, part: str) -> list[str]:
    """The parts that are in the layer of `part` or above it."""
    dotted = package.replace("/", ".")
    contract = next(one for one in CONTRACTS["contracts"] if dotted in one.get("containers", ()))
    layers = [layer.split(" | ") for layer in contract["layers"]]
    at = next(n for n, layer in enumerate(layers) if part in layer)
    return [one for layer in layers[: at + 1] for one in layer]
