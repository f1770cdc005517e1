"""docs/reference/node/doctor.md tells of each check of the doctor, and how bad it can be."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from kybernate.core.doctor import cluster, doctor, offload
from kybernate.core.doctor.doctor import Level
from tests.cluster.layout import REPOSITORY

if TYPE_CHECKING:
    from types import ModuleType

MACHINE, CLUSTER = (
    (REPOSITORY / "docs/reference/node/doctor.md").read_text().split("\n## A cluster")
)
ITEM = re.compile(r"^- `([\w-]+)`\n((?:  .*\n?)+)", re.MULTILINE)


def made(*modules: ModuleType) -> dict[str, set[str]]:
    """The levels other than `ok` of each check, as the modules make findings of them."""
    found: dict[str, set[str]] = {}
    for module in modules:
        for call in ast.walk(ast.parse((REPOSITORY / str(module.__file__)).read_text())):
            match call:
                case ast.Call(
                    ast.Name("Finding"), [ast.Constant(str(check)), ast.Attribute(_, level), *_]
                ):
                    found.setdefault(check, set()).add(Level[level].value)
                case ast.Call(ast.Name("_modes"), [ast.Constant(str(check)), *_]):
                    found.setdefault(check, set()).add(Level.FAIL.value)
    return {check: levels - {Level.OK.value} for check, levels in found.items()}


def told(page: str) -> dict[str, set[str]]:
    return {
        check: set(re.findall(r"^  - (warn|fail): ", text, re.MULTILINE))
        for check, text in ITEM.findall(page)
    }


def test_each_check_of_a_machine_is_told_with_its_levels() -> None:
    assert told(MACHINE) == made(doctor, offload)


def test_each_check_of_a_cluster_is_told_with_its_levels() -> None:
    """That each warns of what may not be seen is told of all together."""
    found, listed = made(cluster), told(CLUSTER)
    assert listed.keys() == found.keys()
    assert all(listed[check] in (levels, levels - {"warn"}) for check, levels in found.items())
