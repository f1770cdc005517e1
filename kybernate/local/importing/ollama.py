"""Ollama's models as models.yaml: each served by llama.cpp's llama-server from Ollama's own files.

Ollama keeps a manifest for each model, `manifests/REGISTRY/NAMESPACE/NAME/TAG`, whose layers name
files `blobs/sha256-…`: the weights (GGUF), for pictures a projector, and parameters as JSON. None
of them is changed or copied.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from kybernate.errors import ConfigError
from kybernate.local.importing.written import written

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Json = dict[str, Any]

_KIND = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LARGEST = 2**20
_TTL = "5m"
"""As long as Ollama keeps a model that nobody asks."""


def folder_of(environ: Mapping[str, str], home: Path) -> Path:
    """Where this user's Ollama keeps its models."""
    from pathlib import Path  # noqa: PLC0415

    return Path(environ.get("OLLAMA_MODELS") or home / ".ollama" / "models")


def converted(folder: Path) -> str:
    """The text of models.yaml. Raises ConfigError if there is no model of Ollama's."""
    manifests = folder / "manifests"
    models: Json = {}
    told = [
        "Made of Ollama's models by kybernate import: llama.cpp's llama-server serves their files.",
        "Names are Ollama's; clients may add :latest. ttl: Ollama's five minutes, then parked.",
    ]
    for path in sorted(manifests.glob("*/*/*/*")):
        name = _name(path.relative_to(manifests).parts)
        try:
            models[name] = _model(path, folder)
        except (ValueError, OSError) as error:
            told.append(f"{name} is left out: {error}")
    if not models:
        often = "/usr/share/ollama/.ollama/models"
        raise ConfigError(str(folder), f"has no models; name Ollama's with --folder, often {often}")
    return written({"models": models}, told)


def _name(parts: tuple[str, ...]) -> str:
    registry, namespace, name, tag = parts
    whole = name if tag == "latest" else f"{name}:{tag}"
    if namespace != "library":
        whole = f"{namespace}/{whole}"
    return whole if registry == "registry.ollama.ai" else f"{registry}/{whole}"


def _model(path: Path, folder: Path) -> Json:
    layers = _read(path).get("layers")
    if not isinstance(layers, list):
        raise ValueError("its manifest names no layers")  # noqa: TRY004 - the file's fault
    files = {
        str(layer.get("mediaType", "")).removeprefix(_KIND): _blob(layer, folder)
        for layer in layers
        if isinstance(layer, dict)
    }
    if "model" not in files:
        raise ValueError("its manifest names no weights")
    words = ["llama-server", "--port", "${PORT}", "--model", shlex.quote(str(files["model"]))]
    for kind, flag in (("projector", "--mmproj"), ("adapter", "--lora")):
        if kind in files:
            words += [flag, shlex.quote(str(files[kind]))]
    model: Json = {"cmd": " ".join([*words, *_parameters(files.get("params"))]), "ttl": _TTL}
    if "projector" in files:
        model["capabilities"] = {"in": ["text", "image"], "out": ["text"]}
    return model


def _parameters(path: Path | None) -> list[str]:
    context = _read(path).get("num_ctx") if path is not None else None
    return ["--ctx-size", str(context)] if isinstance(context, int) and context > 0 else []


def _blob(layer: Json, folder: Path) -> Path:
    found = _DIGEST.fullmatch(str(layer.get("digest", "")))
    if found is None:
        raise ValueError("a layer has no digest")
    path = folder / "blobs" / f"sha256-{found[1]}"
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    return path


def _read(path: Path) -> Json:
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path.name} is larger than a manifest")
    data = json.loads(path.read_bytes())
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} is no JSON object")  # noqa: TRY004 - the file's fault
    return data
