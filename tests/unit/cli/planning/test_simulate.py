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


def test_ram_with_a_limit_sends_what_it_has_no_room_for_to_nvme(files):
    def found(*words):
        done = CliRunner().invoke(main, ["simulate", *files, "--gpus", "1", *words])
        assert done.exit_code == 0, done.output
        return done.output

    slow = json.loads(found("--ram-gb", "45", "--nvme-read", "2", "--json"))
    assert slow["fifo"]["restores"] == 1
    quick = json.loads(found("--ram-gb", "45", "--nvme-read", "8", "--json"))
    assert slow["fifo"]["wait_max"] > quick["fifo"]["wait_max"] + 5
    assert "brought back from NVMe: ours 1" in " ".join(found("--ram-gb", "45").split())
    assert "NVMe" not in found()


def test_ram_too_small_for_a_model_is_refused(files):
    done = CliRunner().invoke(main, ["simulate", *files, "--ram-gb", "39"])
    assert done.exit_code == 1
    assert "'llama' has 40 GB, and RAM 39" in done.output
