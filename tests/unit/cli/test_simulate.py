"""`kybernate simulate`: the command of its own help, and errors in a sentence."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kybernate.cli import main


@pytest.fixture
def files(tmp_path):
    models, trace = tmp_path / "models.csv", tmp_path / "trace.csv"
    models.write_text("model,gb\nllama,40\nqwen,16\n")
    trace.write_text("at,model,seconds\n0,llama,4\n1,qwen,2\n30,llama,4\n")
    return [str(trace), "--models", str(models)]


def test_the_figures_of_each_policy(files):
    found = CliRunner().invoke(main, ["simulate", *files, "--gpus", "1", "--json"])
    assert found.exit_code == 0, found.output
    each = json.loads(found.output)
    assert set(each) == {"ours", "fixed", "fifo"}
    assert each["ours"]["in_time"] == each["fixed"]["in_time"] == 1.0  # with one GPU it is the same


def test_the_table_says_how_many_gpus_are_needed(files):
    found = CliRunner().invoke(main, ["simulate", *files])
    assert found.exit_code == 0, found.output
    assert "one GPU for each model: 2" in found.output


def test_a_model_larger_than_a_gpu_is_refused(files):
    found = CliRunner().invoke(main, ["simulate", *files, "--gpu-gb", "24"])
    assert found.exit_code == 1
    assert "'llama' has 40 GB, and a GPU 24" in found.output
