"""docs/concepts/scheduling/gangs.md explains each reason for which a pod can wait, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from extender.pages.explain import REASONS
from kybernate.core.views.explain import FITS

PAGE = (Path(__file__).parents[3] / "docs" / "concepts" / "scheduling" / "gangs.md").read_text()
LIST = PAGE.partition("## Why a pod waits\n")[2].partition("\n\n- ")[2].partition("\n\n")[0]


def test_every_reason_has_its_words() -> None:
    rows = re.findall(r"^(?:- )?(`.+?`): \S", LIST, re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(set(REASONS) - {FITS})
