"""Claims of docs/reference/threat-model.md name tests that are there; each file of attacks has a
claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
NAMED = re.findall(
    r"`([\w/]+\.py)::(\w+)`$",
    (REPOSITORY / "docs/reference/threat-model.md").read_text(),
    re.MULTILINE,
)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_the_test_of_a_claim_is_there(file: str, name: str) -> None:
    text = (REPOSITORY / "tests" / file).read_text()
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)


def test_every_file_of_attacks_has_a_claim() -> None:
    tests = REPOSITORY / "tests"
    files = {str(path.relative_to(tests)) for path in tests.glob("hostile/**/test_*.py")}
    assert files <= {file for file, _ in NAMED}
