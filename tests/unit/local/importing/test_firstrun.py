"""What the first run finds and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kybernate.api.models import read
from kybernate.local.importing.firstrun import Found, look, text, write
from kybernate.types import Gpu, GpuUuid

GPU = Gpu(GpuUuid("GPU-0"), 0, "NVIDIA RTX 4090", 24 << 30)


def has(home: Path, *names: str) -> None:
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(b"")


def test_models_and_servers_are_found(tmp_path):
    has(tmp_path, "models/deep/er/a.gguf", "models/b-00001-of-00002.gguf")
    has(tmp_path, "models/b-00002-of-00002.gguf", "models/notes.txt", "models/${PORT}.gguf")
    has(tmp_path, ".cache/huggingface/hub/models--Qwen--Qwen3-8B/refs/main")
    found = look(tmp_path, (GPU,), {"vllm": "/usr/bin/vllm"}.get)
    assert [file.name for file in found.files] == ["b-00001-of-00002.gguf", "a.gguf"]
    assert found.hub == ("Qwen/Qwen3-8B",)
    assert list(found.engines) == ["vllm"]
    assert "NVIDIA RTX 4090 (24 GiB)" in found.sentences()[0]


def test_the_file_has_what_can_be_served_and_counts_as_it_is(tmp_path):
    odd = tmp_path / "models" / "it's $HOME.gguf"
    has(tmp_path, "models/it's $HOME.gguf")
    engines = {"vllm": "/x", "llama-server": "/y"}
    found = Found((GPU,), engines, (odd,), ("Qwen/Qwen3-8B",))
    file = read(text(found), {}).file
    assert list(file.models) == ["it's $home", "qwen3-8b"]
    assert str(odd) in file.models["it's $home"].argv
    assert file.models["qwen3-8b"].argv[:3] == ("vllm", "serve", "Qwen/Qwen3-8B")
    assert file.models["qwen3-8b"].ttl == 1800


def test_it_names_the_schema_and_the_page_of_keys_as_they_lie_here():
    first, _, keys, unit = text(Found()).splitlines()[:4]
    schema = first.removeprefix("# yaml-language-server: $schema=file://")
    assert json.loads(Path(schema).read_text())["title"] == "Kybernate's models.yaml"
    assert "`models.*.vram`" in Path(keys.split()[3].rstrip(".")).read_text()
    assert "ExecStart=" in Path(unit.split()[-1]).read_text()


@pytest.mark.parametrize(
    "found", [Found(), Found((GPU,), {}, (Path("/a.gguf"),)), Found((), {"vllm": "/x"})]
)
def test_without_a_model_that_can_be_served_it_shows_one(found):
    content = text(found)
    assert read(content, {}).file.models == {}
    shown = content.replace("models: {}\n", "models:\n").replace("\n#  ", "\n  ")
    assert list(read(shown, {}).file.models) == ["qwen3-8b"]


def test_a_file_that_is_there_is_left_alone(tmp_path):
    path = tmp_path / "deep" / "models.yaml"
    write(path, "one")
    with pytest.raises(FileExistsError):
        write(path, "two")
    assert path.read_text() == "one"
