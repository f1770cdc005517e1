"""docs/design: decisions have one style of title, and the index lists each with its status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DESIGN = Path(__file__).parents[3] / "docs" / "design"
DECISIONS = sorted(DESIGN.glob("[0-9]*.md"))
INDEX = (DESIGN / "README.md").read_text()
LISTED = r"^- \[(\d+)\]\((.+?)\) (.+?)(?: \(((?:accepted|replaced)\b[^)]*)\))?$"
ROWS = re.findall(LISTED, INDEX.replace("\n  ", " "), re.MULTILINE)
STATUS = re.compile(r"|(?:accepted, amended|replaced) by (\d+)")


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_title_is_the_number_of_the_file_and_a_sentence(page: Path) -> None:
    title = page.read_text().partition("\n")[0]
    assert re.fullmatch(rf"# {int(page.name[:4])}\. [A-Z0-9`].*[^.]", title), title


def test_numbers_are_given_once() -> None:
    numbers = [page.name[:4] for page in DECISIONS]
    assert len(set(numbers)) == len(numbers)


def test_the_index_lists_each_decision_by_its_title_in_order() -> None:
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in DECISIONS]
    listed = [(name, f"{number}. {title}") for number, name, title, _ in ROWS]
    assert listed == [(page.name, title) for page, title in zip(DECISIONS, titles, strict=True)]


def test_each_has_a_status_that_names_a_later_decision_if_any() -> None:
    numbers = {number for number, *_ in ROWS}
    for number, _, _, status in ROWS:
        found = STATUS.fullmatch(status)
        assert found, f"ADR {number}: {status}"
        assert found[1] is None or (found[1] in numbers and int(found[1]) > int(number))
