"""`make try`: three toy models swap on one simulated GPU, live, without root or Kubernetes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from bench.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("llama", "qwen", "mistral")
ROUNDS = 3
SIZE = 200
"""MiB of each model; the GPU has 512, so that two fit beside each other."""
_PATIENCE = 60.0
_HOW_ON = """
serving at {box}; Ctrl-C ends it. In another terminal:
  curl {box}/v1/chat/completions -d '{{"model": "{model}", "messages": []}}'
  curl -X POST {box}/api/models/park/{model}    # or wake, pin, unpin, unload
  curl {box}/running"""


def _file(port: int) -> dict[str, Any]:
    toy = f"{sys.executable} -m tests.workloads.toy_server --host 127.0.0.1 --port ${{PORT}}"
    models = {
        name: {
            "cmd": f"{toy} --model {name} --bytes {SIZE}MiB --fill 64MiB",
            "vram": f"{SIZE}MiB",
            "gpus": 1,
        }
        for name in MODELS
    }
    return {"listen": f"127.0.0.1:{port}", "startPort": free_port(16), "models": models}


def ask(port: int, model: str) -> dict[str, Any]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
    url, kind = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body.encode(), kind)
    with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310 - our own
        told: dict[str, Any] = json.load(answer)["kyb"]
    return told


def _where(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as answer:
        rows = json.load(answer)["data"]
    return "  ".join(f"{row['id']}: {row['kyb']['state']}" for row in rows)


def until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    sys.exit(f"kybernate serve did not begin:\n{log.read_text()}")


def main(*, keep: bool) -> None:
    """Serve, ask the models in turn, say what happens; with `keep` until Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="kyb-try-") as name:
        folder, port = Path(name), free_port()
        file, log = folder / "models.yaml", folder / "log"
        file.write_text(yaml.safe_dump(_file(port), sort_keys=False))
        home = {"HOME": name, "XDG_RUNTIME_DIR": name, "XDG_STATE_HOME": name}
        words = [sys.executable, "-m", "kybernate.cli", "serve", str(file), "--simulate"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, cwd=ROOT, env={**os.environ, **home}, stdout=output, stderr=output
            )
        try:
            until_it_listens(port, process, log)
            print(f"{len(MODELS)} models of {SIZE} MiB, one simulated GPU of 512 MiB: two fit")
            print(f"watch them at http://127.0.0.1:{port}/ui\n", flush=True)
            _rounds(port)
            if keep:
                print(_HOW_ON.format(box=f"http://127.0.0.1:{port}", model=MODELS[0]), flush=True)
                with contextlib.suppress(KeyboardInterrupt):
                    process.wait()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    print("\nyour own models: kybernate serve (docs/how-to/install/one-box.md)")


def _rounds(port: int) -> None:
    for number in range(ROUNDS * len(MODELS)):
        model = MODELS[number % len(MODELS)]
        began = time.monotonic()
        told = ask(port, model)
        took = time.monotonic() - began
        if told["checksum"] != told["expected"] or told["counter"] != number // len(MODELS) + 1:
            sys.exit(f"{model} lost its state: {told}")
        said = f"{model:8} answered in {took:5.2f} s, its request {told['counter']}"
        print(f"{said}    {_where(port)}", flush=True)


if __name__ == "__main__":
    main(keep="--keep" in sys.argv[1:])
