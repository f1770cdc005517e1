"""CONTRIBUTING.md: what it says to touch, to read and to run is there."""

from __future__ import annotations

import re

import pytest

from tests.cluster.layout import REPOSITORY

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text()
BEGIN = PAGE.partition("## Where to begin\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([a-z]\w*/[\w./-]+)`", BEGIN))))
def test_what_is_to_be_touched_is_there(path: str) -> None:
    assert (REPOSITORY / path).exists()


def test_names_are_in_the_file_before_them() -> None:
    named = re.findall(r"`([\w./]+\.py)` \(`(\w+)`\)", BEGIN)
    assert named
    for path, name in named:
        assert re.search(rf"\b{name}\b", (REPOSITORY / path).read_text()), (path, name)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z0-9-]+)", PAGE))))
def test_make_has_the_target(target: str) -> None:
    assert re.search(rf"^{target}:.* ## ", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
