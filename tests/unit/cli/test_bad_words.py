"""Words of a command line, and files, that are none: told in a line, before anything is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from kybernate.cli import main

if TYPE_CHECKING:
    from pathlib import Path

SHRED = ("artifacts", "shred", "ns", "--registry", "https://127.0.0.1:1")


@pytest.mark.parametrize(
    "words",
    [
        (*SHRED, "--why", "they left\nlast week"),
        (*SHRED, "--why", "x", "--after", "9000"),
        (*SHRED, "--why", "x", "--after", "nan"),
        (*SHRED, "--why", "x", "--uid", "a b"),
        ("seats", "--kubeconfig", "HALF"),
        ("clients", "list", "--kubeconfig", "HALF"),
        ("groups", "--config", "BIN"),
        ("plan", "BIN", "--costs", "BIN"),
        ("serve", "--log-level", "loud"),
    ],
)
def test_it_is_told_in_a_line(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "HALF").write_text("[1,2")
    (tmp_path / "BIN").write_bytes(b"\xff\xfe\x00")
    named = [str(tmp_path / one) if one in ("HALF", "BIN") else one for one in words]
    found = CliRunner().invoke(main, named)
    assert isinstance(found.exception, SystemExit), repr(found.exception)[:200]
    assert found.exit_code != 0


@pytest.mark.parametrize("option", ["--wake", "--park", "--gpu-gb", "--p99", "--seconds"])
@pytest.mark.parametrize("word", ["nan", "inf"])
def test_what_is_no_number_is_refused(option: str, word: str) -> None:
    found = CliRunner().invoke(main, ["plan", "config/samples/workloads.csv", option, word])
    assert found.exit_code == 2
    assert f"Invalid value for '{option}': '{word}' is no number." in found.output


def test_whether_figures_can_be_written_is_asked_before_they_are_measured() -> None:
    words = ["calibrate", "a", "--url", "http://127.0.0.1:1", "--out", "/no/such/folder/costs.json"]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 2
    assert "/no/such/folder is no folder that can be written to" in found.output
