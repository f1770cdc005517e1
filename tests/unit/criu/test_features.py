"""What CRIU knows of the kernel is found out before the first container, and once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu import Criu, Tools, features, running
from kybernate.adapters.kernel.freezer import CgroupFreezer

if TYPE_CHECKING:
    from pathlib import Path


def tools(folder: Path, script: str) -> Tools:
    made = Tools(folder / "enter", folder / "criu", folder / "cache")
    made.enter.write_text(script)
    made.enter.chmod(0o755)
    made.criu.write_text("a program")
    return made


def test_it_is_found_out_once_outside_of_all_containers(tmp_path: Path) -> None:
    cache, said = tmp_path / "cache", tmp_path / "said"
    script = f'#!/bin/sh\necho "$@" >>{said}\necho known >{cache / features.FILE}\n'
    one = tools(tmp_path, script)
    for _ in range(2):
        Criu(one, CgroupFreezer(), tmp_path / "work")
    (words,) = said.read_text().splitlines()
    assert words.endswith(f"={running.CACHE} -- criu check --no-default-config")


@pytest.mark.parametrize("script", ["#!/bin/sh\necho 'what a pity'\n", "no program"])
def test_what_cant_be_found_out_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    with caplog.at_level(logging.WARNING):
        Criu(tools(tmp_path, script), CgroupFreezer(), tmp_path / "work")
    (told,) = caplog.messages
    assert told.startswith("CRIU")
