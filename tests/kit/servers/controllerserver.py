"""The controller as a process: `python -m controller`, that can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import requests

from tests.kit.servers.webhookserver import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.cluster import Cluster


class Controller:
    """One replica."""

    def __init__(
        self, cluster: Cluster, folder: Path, port: int, lease: str = "", **settings: str
    ) -> None:
        self._environment = {
            **os.environ,
            "KYB_CONTROLLER_KUBECONFIG": str(cluster.layout.kubeconfig("controller")),
            "KYB_CONTROLLER_TLS_DIR": str(cluster.layout.tls),
            "KYB_CONTROLLER_PROBE_LISTEN": f"127.0.0.1:{port}",
            "KYB_CONTROLLER_SWEEP_S": "1",
            "KYB_CONTROLLER_API_TIMEOUT_S": "2",
            "KYB_CONTROLLER_AGENT_TIMEOUT_S": "2",
            "KYB_CONTROLLER_LEASE": lease,
            "KYB_CONTROLLER_LEASE_S": "6",
            **{f"KYB_CONTROLLER_{name.upper()}": value for name, value in settings.items()},
        }
        self.log = folder / f"controller-{port}.log"
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> Controller:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "controller"], env=self._environment, stderr=log
            )
        if wait:
            until(self.ready, f"not ready; see {self.log}")
        return self

    def ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(self._url("readyz"), timeout=5).status_code == 200
        return False

    def leads(self) -> bool:
        return "kyb_controller_leading 1.0" in self.metrics()

    def idle(self) -> bool:
        """Whether nothing is due to be looked at."""
        due = [one for one in self.metrics().splitlines() if one.startswith("kyb_controller_queue")]
        return bool(due) and all(one.endswith(" 0.0") for one in due)

    def metrics(self) -> str:
        """What it counts; empty while it does not answer."""
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(self._url("metrics"), timeout=5).text
        return ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        ended = self._process.wait(20)
        self._process = None
        return ended

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}/{path}"
