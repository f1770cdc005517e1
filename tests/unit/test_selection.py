"""Words select tests without reading all the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_ignore_collect

UNIT = Path(__file__).parent
INTEGRATION = UNIT.parent / "integration"
FAIR = UNIT / "core" / "test_fairqueue.py"
QUANTITY = UNIT / "core" / "test_quantity.py"


def left_out(word: str, path: Path) -> bool | None:
    config: Any = SimpleNamespace(getoption=lambda _: word)
    return pytest_ignore_collect(path, config)


@pytest.mark.parametrize(
    ("word", "path", "out"),
    [
        ("fairqueue", QUANTITY, True),
        ("FairQueue", FAIR, None),
        ("hypothesis", FAIR, None),
        ("core", QUANTITY, None),
        ("", QUANTITY, None),
        ("fairqueue or quantity", UNIT / "core" / "test_rate.py", None),
        ("core and fairqueue", FAIR, None),
        ("core and fairqueue", QUANTITY, True),
        ("core and not fairqueue", QUANTITY, None),
        ("fairqueue", UNIT / "core", None),
        ("fairqueue", UNIT / "docs" / "words.toml", None),
        ("test_fairqueue", UNIT / "docs" / "test_docs.py", True),
        ("fairqueue", UNIT / "docs" / "test_design.py", None),
        ("test_fairqueue", UNIT / "docs", True),
        ("fairqueue", UNIT / "docs", None),
        ("fairqueue", INTEGRATION / "criu", True),
        ("fairqueue", INTEGRATION / "criu" / "test_lazies.py", True),
        ("rules", INTEGRATION / "criu" / "test_lazies.py", None),
        ("fairqueue", UNIT.parent / "hostile" / "conftest.py", None),
    ],
)
def test_only_files_without_the_words_are_left_out(word: str, path: Path, out: bool | None) -> None:
    assert path.exists()
    assert left_out(word, path) is out
