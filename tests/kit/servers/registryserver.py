"""The registry as a process: `python -m registry`, over mutual TLS, that can be killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from bench.processes import free_port
from kybernate.adapters.keys.artifactkeys import WrapKeys
from kybernate.adapters.keys.nodesignatures import NodeSignatures
from kybernate.adapters.pki import AGENTS, Folder, Validity, agent_leaf, issue
from kybernate.adapters.registry.client import Registry
from kybernate.adapters.registry.nodekeys import Asker, NodeKeys
from kybernate.errors import KybernateError
from kybernate.runtime.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

START_S = 60.0


def signing(node: str, tls: Path, folder: Path) -> NodeSignatures:
    """What a node's agent signs by: a key of its own, in `folder`, which the authority of agents
    has certified."""
    pair = issue(
        Folder(tls).authority(AGENTS), agent_leaf(node), timedelta(days=1), datetime.now(UTC)
    )
    folder.mkdir()
    for name in ("ca.crt", "agents-ca.crt"):
        shutil.copy(tls / name, folder)
    (folder / "agent.pem").write_bytes(pair.key_pem + pair.certificate_pem)
    return NodeSignatures(Identity(node, folder, folder))


def certificates(folder: Path, nodes: Sequence[str]) -> Path:
    """A folder with the certificates of a cluster."""
    day = timedelta(days=1)
    Folder(folder).init(nodes, Validity(day, day, timedelta(hours=1)), datetime.now(UTC))
    return folder


class Server:
    """One replica; its ports stay the same over restarts."""

    def __init__(
        self,
        tls: Path,
        log: Path,
        database: str,
        *,
        program: Sequence[str] = ("registry",),
        environ: Mapping[str, str] | None = None,
        **more: str,
    ) -> None:
        """`program`: the module that runs, and its arguments; `environ`: what else is in its
        environment; `more`: further settings."""
        self.port, probe = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.probe = f"http://127.0.0.1:{probe}"
        self.tls, self._log, self._program = tls, log, program
        settings = {
            "LISTEN": f"127.0.0.1:{self.port}",
            "PROBE_LISTEN": f"127.0.0.1:{probe}",
            "TLS_DIR": str(tls),
            "DATABASE": database,
            "LOG_LEVEL": "WARNING",
            # Unless a test has a cluster for it.
            "CLUSTER": "none",
            **more,
        }
        ours = {f"KYB_REGISTRY_{name}": value for name, value in settings.items()}
        self._environ = {**os.environ, **ours, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text()

    def client(self, name: str = "controller") -> Registry:
        """A client with this certificate."""
        return Registry(self.url, self.tls, name)

    def kms(self, name: str = "controller", *pods: Asker) -> Any:
        """What opens namespaces' keys for who has this certificate, here for these pods: nothing
        but what the registry gives."""
        client, asking = self.client(name), pods or (Asker("", ""),)
        return NodeKeys(lambda: client, lambda _: asking, lambda key: WrapKeys((key,)))

    def start(self, *, wait: bool = True) -> None:
        """Start it. Raises KybernateError if it is not ready in time."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._program],
                env=self._environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            self.await_ready()

    def await_ready(self) -> None:
        """Wait until it answers. Raises KybernateError."""
        deadline = time.monotonic() + START_S
        while self.ready() is not True:
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise KybernateError(f"the registry did not start: {self.log[-500:]}")
            time.sleep(0.05)

    def ready(self) -> bool:
        """Whether it says so."""
        with suppress(OSError):
            urllib.request.urlopen(f"{self.probe}/readyz", timeout=5).close()  # noqa: S310 - http
            return True
        return False

    def get(self, path: str) -> str:
        """A page of the plain port."""
        with urllib.request.urlopen(f"{self.probe}{path}", timeout=5) as answer:  # noqa: S310
            found: bytes = answer.read()
            return found.decode()

    def kill(self) -> None:
        """SIGKILL to it and its worker, whatever they are at."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; gives its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        status = process.wait(START_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return status
