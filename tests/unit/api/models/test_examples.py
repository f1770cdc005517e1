"""llama-swap's own example files, as they are at its commit 0bdb372 (MIT; licence beside them).

Each is read, and what of it means nothing here, or something else, is the list below.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kybernate.api.models import read
from kybernate.local.reading import check, specs, unmet

FOLDER = Path(__file__).parent / "llamaswap"
ENVIRONMENT = {
    "HOME": "/home/me",
    "API_KEY_1": "sk-1",
    "API_KEY_2": "sk-2",
    "OPENROUTER_API_KEY": "sk-3",
}
TOLD = {
    "aider-qwq-coder": ["profiles"],
    "docker": [
        *("logRequests", "metricsMaxInMemory"),
        *(f"models.{name}" for name in ("qwen2.5", "smollm2", "z-image")),
    ],
    "docker-unified": ["logRequests"],
    "config.example": [
        "models.unlisted-model.cmd",
        *("logTimeFormat", "logToStdout", "metricsMaxInMemory", "captureBuffer", "ui"),
        *("performance", "sendLoadingState", "profiles", "selectors", "peers"),
        *(
            f"models.gpt-oss-120b.{key}"
            for key in (
                "sendLoadingState",
                *(
                    "timeouts.connect",
                    "timeouts.keepalive",
                    "timeouts.tlsHandshake",
                    "timeouts.idleConn",
                ),
            )
        ),
        *(["groups.group1.members"] * 2),
        *(["groups.group2.members"] * 2),
        *(["groups.forever.members"] * 3),
        "hooks.on_startup.preload",
        *(["priority"] * 4),
        "models.docker-llama.cmdStop",
        *("groups.group1.swap", "groups.group1.exclusive"),
    ],
}
"""By file, the keys of all warnings, in their order."""
MODELS = {
    "aider-qwq-coder": ["qwen-coder-32B", "QwQ"],
    "docker": ["qwen2.5", "smollm2", "z-image"],
    "docker-unified": ["llama", "whisper", "audio", "image"],
    "config.example": ["gpt-oss-120b", "unlisted-model", "docker-llama"],
}


def test_every_example_is_here() -> None:
    found = {name.removesuffix(".yaml.txt") for name in os.listdir(FOLDER)}
    assert found == {*TOLD, "LICENSE.txt"}
    assert TOLD.keys() == MODELS.keys()


@pytest.mark.parametrize("name", TOLD)
def test_an_example_of_llama_swaps_is_read(name: str) -> None:
    text = (FOLDER / f"{name}.yaml.txt").read_text()
    found = read(text, ENVIRONMENT)
    said = [*found.warnings, *unmet(found.file)]
    assert [one.partition(": ")[0] for one in said] == TOLD[name]
    assert [one.name for one in specs(found.file)] == MODELS[name]


def test_what_its_example_says_of_a_model_counts() -> None:
    text = (FOLDER / "config.example.yaml.txt").read_text()
    file = read(text, ENVIRONMENT).file
    model = file.models["gpt-oss-120b"]
    assert (model.address, model.devices) == ("127.0.0.1:8999", (0, 1, 2))
    assert "--ctx-size 16384" in " ".join(model.argv)
    assert file.names["gpt-oss-120b:high"] == "gpt-oss-120b"
    assert file.api_keys[-2:] == ("sk-1", "sk-2")
    with pytest.raises(Exception, match="can neither park nor find them"):
        check("docker-llama", file.models["docker-llama"])
