from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from images.cache import made_once

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_is_made_once_and_whole_or_not_at_all(tmp_path: Path) -> None:
    target, made = tmp_path / "layer", []

    def fails(part: Path) -> None:
        part.mkdir()
        (part / "half").touch()
        raise OSError("the disk is full")

    def fill(part: Path) -> None:
        part.mkdir()
        (part / "file").touch()
        made.append(part)

    with pytest.raises(OSError, match="full"):
        made_once(target, fails)
    assert not target.exists()
    for _ in range(2):
        assert made_once(target, fill) == target
    assert [path.name for path in target.iterdir()] == ["file"]
    assert len(made) == 1
