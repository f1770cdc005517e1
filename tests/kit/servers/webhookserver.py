"""The webhook as a process: `python -m webhook`, beside a control plane's API server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.cluster import Cluster

START_LIMIT = 20.0


class Webhook:
    """One webhook process; with `cert_dir` it keeps its certificates there, else in the Secret."""

    def __init__(self, cluster: Cluster, folder: Path, cert_dir: Path | None = None) -> None:
        self._cluster = cluster
        self._log = folder / "webhook.log"
        self._cert_dir = cert_dir
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ports = self._cluster.ports
        environment = {
            **os.environ,
            "KYB_WEBHOOK_LISTEN": f"127.0.0.1:{ports.webhook}",
            "KYB_WEBHOOK_PROBE_LISTEN": f"127.0.0.1:{ports.webhook_probe}",
            "KYB_WEBHOOK_KUBECONFIG": str(self._cluster.layout.kubeconfig("webhook")),
            "KYB_WEBHOOK_CHECK_S": "0.2",
            "KYB_WEBHOOK_SETTLE_S": "0.5",
            "KYB_WEBHOOK_REQUEST_S": "3",
        }
        if self._cert_dir:
            environment["KYB_WEBHOOK_CERT_DIR"] = str(self._cert_dir)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "webhook"], env=environment, stderr=log
            )
        until(self._ready, f"the webhook is not ready; see {self._log}")

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def kill_worker(self) -> None:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        (worker,) = children.read_text().split()
        os.kill(int(worker), signal.SIGKILL)
        until(lambda: worker not in children.read_text().split(), "the worker is not reaped")
        until(self._ready, f"no new worker got ready; see {self._log}")

    def log(self) -> str:
        """All that it has logged."""
        return self._log.read_text()

    def metrics(self) -> str:
        return requests.get(self._url("/metrics"), timeout=5).text

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(self._url("/readyz"), timeout=5).status_code == 200
        return False

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._cluster.ports.webhook_probe}{path}"


def until(true: Callable[[], object], otherwise: str, limit: float = START_LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)
