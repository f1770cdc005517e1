"""docs/programs.md says of each program what the tests show of it."""

from __future__ import annotations

from tests.cluster.layout import REPOSITORY
from tests.strangers import table


def test_the_page_is_what_the_tests_park() -> None:
    assert (REPOSITORY / "docs" / "programs.md").read_text() == table.page()
