"""docs/concepts/guard.md tells of each lack for which a park is refused, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

from kybernate.core.seat.budget import Lack

PAGE = (Path(__file__).parents[3] / "docs" / "concepts" / "guard.md").read_text()
LIST = PAGE.partition("## Host memory\n")[2].partition("\n\n")[2].partition("\n\nHow much")[0]


def test_every_lack_has_its_words() -> None:
    assert re.findall(r"\(`(\w+)`\)", LIST) == [one.value for one in Lack]
