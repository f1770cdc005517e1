"""`python -m tests.local.pictures`: makes the pictures of the page for docs/images, from a box with
toy models on two simulated GPUs, some of which are asked all the time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from bench.processes import free_port
from tests.kit.browser import chromium
from tests.local.__main__ import ROOT, ask, until_it_listens

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGES = ROOT / "docs" / "images"
MODELS = ("llama-3.3", "qwen3-8b", "mistral-small", "gemma-3", "phi-4", "embed")
OFTEN = ("llama-3.3", "llama-3.3", "qwen3-8b", "mistral-small", "phi-4", "embed", "gemma-3")
SECONDS = 110
WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 400, "height": 860}


def main() -> None:
    """Write them."""
    with tempfile.TemporaryDirectory(prefix="kyb-pictures-") as name:
        port, over = free_port(), threading.Event()
        (Path(name) / "models.yaml").write_text(yaml.safe_dump(_file(port), sort_keys=False))
        home = {"HOME": name, "XDG_RUNTIME_DIR": name, "XDG_STATE_HOME": name}
        words = ["serve", f"{name}/models.yaml", "--simulate=2"]
        with (Path(name) / "log").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "kybernate.cli", *words],
                cwd=ROOT, env={**os.environ, **home}, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            until_it_listens(port, process, Path(name) / "log")
            threads = [threading.Thread(target=_keep_asking, args=(port, over)) for _ in range(3)]
            for one in threads:
                one.start()
            with chromium() as browser:
                _shoot(browser.new_page(viewport=WIDE, device_scale_factor=1), port)
            over.set()
            for one in threads:
                one.join()
        except BaseException:
            print((Path(name) / "log").read_text())
            raise
        finally:
            over.set()
            process.send_signal(signal.SIGTERM)
            process.wait()


def _file(port: int) -> dict[str, object]:
    toy = f"{sys.executable} -m tests.workloads.toy_server --host 127.0.0.1 --port ${{PORT}}"
    models = {
        name: {
            "cmd": f"{toy} --model {name} --bytes {size}MiB --fill 64MiB",
            "vram": f"{size}MiB",
            "gpus": 1,
        }
        for name, size in zip(MODELS, (300, 200, 240, 280, 180, 90), strict=True)
    }
    return {"listen": f"127.0.0.1:{port}", "startPort": free_port(16), "models": models}


def _keep_asking(port: int, over: threading.Event) -> None:
    chance = random.Random()
    while not over.wait(chance.random() * 4):
        ask(port, chance.choice(OFTEN))


def _shoot(page: Page, port: int) -> None:
    page.goto(f"http://127.0.0.1:{port}/ui")
    page.wait_for_timeout(SECONDS * 1000)
    page.screenshot(path=IMAGES / "page-light.png", full_page=True)
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / "page-dark.png", full_page=True)
    page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / "page-narrow.png")


if __name__ == "__main__":
    main()
