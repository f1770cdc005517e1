"""Proxies as processes, before one agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import aiohttp

from bench.processes import REPOSITORY, free_port

if TYPE_CHECKING:
    from pathlib import Path

_START_S = 60.0


class Replica:
    """One proxy's process. `life` counts its starts."""

    def __init__(self, tls: Path, agent: int, log: Path) -> None:
        self.port, self.life, self.ready = free_port(), 0, False
        self._log = log
        self._words = [
            *(sys.executable, "-m", "proxy", "--listen", f"127.0.0.1:{self.port}"),
            *("--agents", f"n1=127.0.0.1:{agent}", "--tls-dir", str(tls)),
            *("--lease-break-s", "0.8", "--agent-ping-s", "1", "--log-level", "WARNING"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start it, and wait until it is ready. Raises TimeoutError."""
        self.life += 1
        self._launch()
        async with asyncio.timeout(_START_S), aiohttp.ClientSession() as session:
            while not self.ready:
                try:
                    async with session.get(f"{self.url}/readyz") as answer:
                        self.ready = answer.status == 200
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.02)

    def _launch(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, cwd=REPOSITORY, env=dict(os.environ), stdout=log, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL."""
        self.ready = False
        if self._process is not None:
            self.life += 1
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """SIGTERM, or else SIGKILL."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
