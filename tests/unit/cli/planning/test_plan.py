"""`kybernate plan`: the table, the picture, errors in a sentence; test_pages.py has the sample."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from kybernate.cli import main

HEAD = "workload,namespace,gpus,vram_gib,requests_per_hour,p99_s\n"


def plan(*words):
    return CliRunner().invoke(main, ["plan", *map(str, words)])


@pytest.fixture
def small(tmp_path):
    file = tmp_path / "small.csv"
    file.write_text(
        f"{HEAD}a<b [dim],x,1,60,{'9 ' * 12}{'0 ' * 12},20\nc,x,1,60,{'0 ' * 12}{'9 ' * 12},20\n"
    )
    return file


def test_the_table_says_who_shares_and_what_was_assumed(small):
    found = plan(small)
    assert found.exit_code == 0, found.output
    assert "2 workloads on 2 GPUs would run on 1, at p99 wake" in found.output
    assert "x/a<b [dim]" in found.output
    assert "must not share" not in found.output
    assert "Assumed: GPUs of 80 GB, 20 GB/s in and 20 GB/s out" in found.output


def test_swaps_cost_what_was_measured(small, tmp_path):
    costs = tmp_path / "costs.json"
    costs.write_text('{"version": 1, "gpu_gb": 80, "wake": 2, "park": 2, "fixed": 0.5}')
    found = plan(small, "--costs", costs)
    assert "2 workloads on 2 GPUs: sharing saves none." in found.output
    assert "x/a<b [dim] and x/c: at" in found.output
    assert "2 GB/s in and 2 GB/s out, 0.5 s besides" in found.output
    assert "would run on 1" in plan(small, "--costs", costs, "--wake", 20, "--park", 20).output


def test_a_picture_has_a_square_for_each_gpu_and_each_workloads_name(small, tmp_path):
    drawn = tmp_path / "plan.svg"
    assert plan(small, "--picture", drawn).exit_code == 0
    root = ET.fromstring(drawn.read_text())  # noqa: S314 - our own
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    squares = [one for one in root.iter() if one.get("width") == one.get("height") == "14"]
    squares += [
        one for one in root.iter() if (one.get("width"), one.get("height")) == ("14", "14.0")
    ]
    assert len(squares) == 2 + 1
    assert any((text or "").startswith("x/a<b [dim]: ") for text in texts)


def test_errors_are_one_sentence(small, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"workload\xff")
    cases = (
        ([bad], "it is no UTF-8 text"),
        ([small, "--gpu-gb", "40"], "line 2: vram_gib: 60 GiB are 64.42 GB, and a GPU has 40"),
        ([small, "--picture", tmp_path / "none" / "plan.svg"], "plan.svg"),
    )
    for words, told in cases:
        found = plan(*words)
        assert (found.exit_code, told in found.output) == (1, True), found.output
        assert not isinstance(found.exception, (OSError, ValueError))
    with_mark = tmp_path / "mark.csv"
    with_mark.write_bytes(b"\xef\xbb\xbf" + small.read_bytes())
    assert plan(with_mark).exit_code == 0
