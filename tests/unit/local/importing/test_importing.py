"""What llama-swap's and Ollama's users have becomes a file that is read here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kybernate.api.models import read
from kybernate.cli import main
from kybernate.errors import ConfigError
from kybernate.local.importing import llamaswap, ollama

SWAP = """
logToStdout: both
apiKeys: ["${env.KEY}"]
macros: {server: "serve --port ${PORT}"}
models:
  a:
    cmd: |
      ${server}
      --x 1
    sendLoadingState: true
routing: {router: {settings: {groups: {g: {members: [a]}}}}}
"""


def test_llama_swaps_file_keeps_its_macros_and_no_secret() -> None:
    made = llamaswap.converted(SWAP, {"KEY": "sk-secret"})
    assert "sk-secret" not in made
    assert made.startswith("# yaml-language-server: $schema=file:///")
    assert "# - logToStdout: means nothing here" in made
    again = read(made, {"KEY": "k"})
    assert again.warnings == ()
    assert again.file.models["a"].argv == ("serve", "--port", "5800", "--x", "1")
    assert again.file.groups["g"].members == ("a",)
    assert again.file.api_keys == ("k",)
    with pytest.raises(ConfigError):
        llamaswap.converted("models: {a: {}}", {})


def blob(folder: Path, text: bytes) -> str:
    digest = hashlib.sha256(text).hexdigest()
    place = folder / "blobs"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"sha256-{digest}").write_bytes(text)
    return f"sha256:{digest}"


def manifest(folder: Path, name: str, **layers: str) -> None:
    path = folder / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest}
        for kind, digest in layers.items()
    ]
    path.write_text(json.dumps({"schemaVersion": 2, "layers": listed}))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "o'llama"
    weights = blob(folder, b"GGUF")
    ours = "registry.ollama.ai/library"
    manifest(folder, f"{ours}/llama3/latest", model=weights, license=blob(folder, b"x"))
    params = blob(folder, b'{"num_ctx": 8192, "stop": ["x"]}')
    projector = blob(folder, b"P")
    manifest(folder, f"{ours}/llava/7b", model=weights, projector=projector, params=params)
    manifest(folder, "hf.co/me/m/Q4", model=weights)
    manifest(folder, f"{ours}/gone/latest", model=f"sha256:{'0' * 64}")
    manifest(folder, f"{ours}/evil/latest", model="sha256:../../etc/passwd")
    return folder


def test_ollamas_models_are_served_from_its_own_files(models: Path) -> None:
    made = ollama.converted(models)
    file = read(made, {}).file
    assert set(file.models) == {"llama3", "llava:7b", "hf.co/me/m:Q4"}
    one = file.models["llava:7b"]
    assert one.argv[:2] == ("llama-server", "--port")
    assert one.argv[one.argv.index("--ctx-size") + 1] == "8192"
    assert Path(one.argv[one.argv.index("--mmproj") + 1]).read_bytes() == b"P"
    assert Path(one.argv[one.argv.index("--model") + 1]).read_bytes() == b"GGUF"
    assert one.capabilities.inputs == ("text", "image")
    assert one.ttl == 300
    assert "# gone is left out" in made
    assert "# evil is left out: a layer has no digest" in made


def test_no_models_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--folder"):
        ollama.converted(tmp_path)


def test_the_command_writes_a_file_once(models: Path, tmp_path: Path) -> None:
    swap, to = tmp_path / "config.yaml", tmp_path / "models.yaml"
    swap.write_text(SWAP)
    run = CliRunner()
    assert run.invoke(main, ["import", "llama-swap", str(swap), "--to", str(to)]).exit_code == 0
    assert "serve --port" in to.read_text()
    found = run.invoke(main, ["import", "ollama", "--folder", str(models), "--to", str(to)])
    assert found.exit_code == 1
    assert "is there already" in found.output
    found = run.invoke(main, ["import", "ollama", "--folder", str(models)])
    assert set(read(found.output, {}).file.models) > {"llama3"}
