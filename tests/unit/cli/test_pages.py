"""How-to pages that need no cluster: their own lines, run by a shell as their reader would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.unit.local.importing.test_importing import blob, manifest

DOCS = Path(__file__).parents[3] / "docs"
COSTS = {"version": 1, "wake": 5.0, "park": 20.0, "fixed": 0.1, "gpu_gb": 80.0}


@pytest.fixture
def reader(tmp_path):
    """Our programs and an own home; no cluster."""
    found = Kubectl(Path("/nonexistent/kubectl"), tmp_path, tmp_path / "none")
    found.environment["HOME"] = str(tmp_path)
    return found


def test_a_trace_is_simulated(reader):
    with Page("simulate-savings", reader) as page:
        page("printf 'model,gb\\nllama")
        page("printf 'at,model,seconds\\n0")
        simulate = "kybernate simulate trace.csv --models models.csv"
        assert "one GPU for each model: 3" in page(f"{simulate}  ")
        assert "fifo" in page(f"{simulate} --gpus 1  ")
        assert set(json.loads(page(f"{simulate} --gpus 1 --policy ours --json"))) == {"ours"}
        assert "brought back from NVMe" in page(f"{simulate} --gpus 1 --ram-gb 45  ")
        assert json.loads(page(f"{simulate} --gpus 1 --ram-gb 45 --nvme-read 6"))["ours"]
        page("printf 'model,gb,tenant")
        page("printf 'at,model,seconds\\n86400")
        told = page("kybernate simulate day.csv --models tenants.csv")
        assert "lab 63464, shop 21168" in " ".join(told.split())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_is_planned_from_a_file(reader):
    """And the page tells what the sample comes to."""
    (reader.folder / "costs.json").write_text(json.dumps(COSTS))
    with Page("plan-a-cluster", reader) as page:
        whole = page("kybernate plan config/samples/workloads.csv\n")
        as_json = page("kybernate plan config/samples/workloads.csv -o json --picture plan.svg")
        told = json.loads(as_json)
        assert str(told["gpus"]) in whole
        assert page("kybernate plan config/samples/workloads.csv --costs costs.json") != whole
    assert (told["gpus_today"], sum(len(one["workloads"]) for one in told["places"])) == (31, 23)
    assert told["gpus"] == sum(one["gpus"] for one in told["places"]) < 31
    text = (DOCS / "how-to/plan/plan-a-cluster.md").read_text()
    assert told["sentence"] in text
    assert told["must_not_share"][0]["why"] in text.replace("\n", " ")
    for place in told["places"]:
        assert all(one["wake_p99"] <= one["p99_s"] for one in place["workloads"])
    renew = "kybernate plan config/samples/workloads.csv --picture docs/images/plan.svg"
    assert (reader.folder / "plan.svg").read_text() == (DOCS / "images/plan.svg").read_text(), renew


def test_models_of_others_are_taken_over(reader):
    """What docs/how-to/install/one-box.md has of llama-swap and Ollama."""
    model = {"cmd": "llama-server -m /models/a.gguf --port ${PORT}"}
    (reader.folder / "config.yaml").write_text(yaml.safe_dump({"models": {"a": model}}))
    store = reader.folder / ".ollama" / "models"
    manifest(store, "hub.example/library/embed/latest", model=blob(store, b"GGUF"))
    with Page("one-box", reader) as page:
        page("kybernate import llama-swap")
        assert "embed" in page("kybernate import ollama")
    written = yaml.safe_load((reader.folder / "models.yaml").read_text())
    assert list(written["models"]) == ["a"]


def test_the_words_are_completed(reader):
    with Page("commands", reader) as page:
        page("mkdir -p ~/.local/bin")
        page("ln -sf ~/.local/share/kybernate/bin/{kybernate,")
        page("echo 'eval \"$(kybernate completion bash)\"' >> ~/.bashrc")
        page("echo 'eval \"$(kybernate completion zsh)\"' >> ~/.zshrc")
        page("mkdir -p ~/.config/fish/completions")
        page("kybernate completion fish > ~/.config/fish/completions/kybernate.fish")
    linked = {one.name for one in (reader.folder / ".local/bin").iterdir()}
    assert linked == {"kybernate", "kubectl-kyb", "kubectl_complete-kyb"}
    fish = reader.folder / ".config/fish/completions/kybernate.fish"
    assert "complete " in fish.read_text()
    assert "completion bash" in (reader.folder / ".bashrc").read_text()
