"""docs/concepts/architecture.md lists the parts that the contracts have; folders are small."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import Counter
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

MOST_FILES = 15
MANY_ALIKE = {"docs/design": "one decision each", "kybernate/gen": "generated"}


def test_no_folder_has_more_files_than_one_can_survey() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    files = [Path(file) for file in tracked if file and Path(file).name != "README.md"]
    assert len(files) > 1000
    crowded = {
        str(folder): count
        for folder, count in Counter(file.parent for file in files).items()
        if count > MOST_FILES and str(folder) not in MANY_ALIKE
    }
    assert not crowded, "group these files by idea"


@pytest.mark.parametrize(
    "package", ["kybernate/core", "nodeagent", "kybernate/checkpoint", "controller"]
)
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
