"""The first run, without a file: what there is on this box, and a commented file to begin with.

Nothing is asked and nothing is fetched. A model file for which a server is installed becomes a
model; all else is shown as comments.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import field
from typing import TYPE_CHECKING

import yaml

from kybernate.dataclass import dataclass
from kybernate.local.folders import given
from kybernate.local.importing.written import schema_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kybernate.types import Gpu

    Which = Callable[[str], str | None]

ENGINES = ("vllm", "llama-server", "sglang", "text-embeddings-router", "ollama")
"""Programs that serve models, by the name under which they are on the PATH."""
_KEYS = "docs/reference/serving/models-file.md"
_UNIT = "config/local/kybernate.service"
_MOST = 32
_DEEPEST = 4
_OTHER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class Found:
    """`engines` by name to path; `files`: GGUF models; `hub`: names of models that Hugging Face's
    cache has."""

    gpus: tuple[Gpu, ...] = ()
    engines: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    hub: tuple[str, ...] = ()

    def sentences(self) -> tuple[str, ...]:
        """For people."""
        gpus = [f"{gpu.product} ({gpu.memory / 2**30:.0f} GiB)" for gpu in self.gpus]
        return (
            f"GPUs: {', '.join(gpus) or 'none; --simulate shows all of this without one'}",
            f"servers on the PATH: {', '.join(self.engines) or 'none of ' + ', '.join(ENGINES)}",
            f"models: {len(self.files)} GGUF files, {len(self.hub)} in Hugging Face's cache",
        )


def look(home: Path, gpus: tuple[Gpu, ...], which: Which = shutil.which) -> Found:
    """What there is. Folders that can't be read are passed over."""
    engines = {name: path for name in ENGINES if (path := which(name))}
    folders = (home / "models", home / ".cache" / "llama.cpp", home / ".local/share/models")
    files = sorted({file for folder in folders for file in _ggufs(folder, _DEEPEST)})[:_MOST]
    cache = home / ".cache" / "huggingface" / "hub"
    names = (entry.name for entry in _entries(cache) if entry.name.startswith("models--"))
    hub = sorted(name.removeprefix("models--").replace("--", "/") for name in names)[:_MOST]
    return Found(gpus, engines, tuple(files), tuple(hub))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _ggufs(folder: Path, depth: int) -> Iterator[Path]:
    for entry in _entries(folder):
        path = folder / entry.name
        if entry.is_dir(follow_symlinks=False) and depth:
            yield from _ggufs(path, depth - 1)
        elif path.suffix == ".gguf" and not _OTHER_PART.search(path.stem) and "${" not in str(path):
            yield path


def text(found: Found) -> str:
    """A file of what was found."""
    lines = [
        schema_line(),
        "# Written by the first `kybernate serve`; it is read again whenever it changes.",
        f"# All keys: {given(_KEYS)}. Those of llama-swap mean the same.",
        f"# As a service of your own, in ~/.config/systemd/user: {given(_UNIT)}",
        *(f"# {sentence}" for sentence in found.sentences()),
        "",
        "listen: 127.0.0.1:8080",
        "",
        "# A model is started by its first request, and parked in RAM while others need its GPU.",
        "# vram: how much GPU memory it takes at most; models that fit beside each other do.",
        "# ttl: it is parked when no request came for so long.",
    ]
    models = dict(_models(found))
    if models:
        body = yaml.safe_dump({"models": models}, sort_keys=False, width=1000)
        return "\n".join([*lines, body])
    example = {"cmd": "vllm serve Qwen/Qwen3-8B --port ${PORT}", "gpus": 1, "vram": "22GiB"}
    body = yaml.safe_dump({"qwen3-8b": {**example, "ttl": "30m"}}, sort_keys=False, width=1000)
    return "\n".join([*lines, "models: {}", *(f"#  {line}" for line in body.splitlines()), ""])


def _models(found: Found) -> Iterator[tuple[str, dict[str, object]]]:
    """Each model for which there is a server, by its name."""
    if "llama-server" in found.engines:
        for file in found.files:
            cmd = f"llama-server -m {shlex.quote(str(file))} --port ${{PORT}} -ngl 99"
            yield file.stem.lower(), {"cmd": cmd, "gpus": 1, "ttl": "30m"}
    if "vllm" in found.engines:
        for name in found.hub:
            cmd = f"vllm serve {name} --port ${{PORT}}"
            yield name.rpartition("/")[2].lower(), {"cmd": cmd, "gpus": 1, "ttl": "30m"}


def write(path: Path, content: str) -> None:
    """Make the file; one that is there is left alone. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("x") as file:
        file.write(content)
