"""The figures below RAM keep their names: machines and older results know them by these."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).parents[4] / "bench"
PARK = "dump_ratio_criu restore_ratio_criu dump_p50_s restore_p50_s first_answer_p50_s keys_equal"
NAMES = {
    "node/parkplain.py": PARK,
    "node/parkpods.py node/park.py": PARK,
    "saved/tierpods.py saved/tierlimits.py": "ram_ratio_limit nvme_ratio_limit object_ratio_limit",
    "saved/incremental.py": "bytes_ratio_region bytes_ratio_scattered time_ratio_dump "
    "extra_rss_mib extra_disk_mib",
    "saved/move.py": "pause_ratio keys_equal",
    "saved/histories/__main__.py": "histories violations undecided planted_found",
    "saved/registry/__main__.py": "list_p99_ms lookup_p99_ms rebuild_per_s",
}
CASES = [(sources, name) for sources, names in NAMES.items() for name in names.split()]


@pytest.mark.parametrize(("sources", "name"), CASES)
def test_a_bench_tells_its_figure_by_its_name(sources: str, name: str) -> None:
    texts = [(BENCH / source).read_text() for source in sources.split()]
    assert any(re.fullmatch(one, name) for text in texts for one in told(text))


def test_only_what_has_a_value_and_a_unit_is_a_figure() -> None:
    text = 'x = {"a": (1, "s"), f"{y}_b": (2, "s"), "limit": 3}\nx["c"] = (4, "s")\ny = "ram"\n'
    names = ("a", "c", "ram_b", "limit", "ram", "nvme_b")
    assert [any(re.fullmatch(one, name) for one in told(text)) for name in names] == [
        *(True, True, True, False, False, False)
    ]


def told(source: str) -> Iterator[str]:
    """Patterns of the names of figures, which have a value and a unit. Where a name is put
    together, what changes in it is any word of the same source."""
    nodes = list(ast.walk(ast.parse(source)))
    found = (one.value for one in nodes if isinstance(one, ast.Constant))
    words = {one for one in found if isinstance(one, str) and one.isidentifier()}
    for key, value in (pair for node in nodes for pair in pairs(node)):
        named = isinstance(key, ast.Constant | ast.JoinedStr)
        if named and isinstance(value, ast.Tuple) and len(value.elts) == 2:
            parts = key.values if isinstance(key, ast.JoinedStr) else [key]
            yield "".join(pattern(part, words) for part in parts)


def pattern(part: ast.AST, words: set[str]) -> str:
    return re.escape(str(part.value)) if isinstance(part, ast.Constant) else f"({'|'.join(words)})"


def pairs(node: ast.AST) -> Iterator[tuple[ast.AST | None, ast.AST]]:
    if isinstance(node, ast.Dict):
        yield from zip(node.keys, node.values, strict=True)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        yield node.targets[0].slice, node.value
