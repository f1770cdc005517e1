"""A node service that runs as a pod, with the verbs of a supervised process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.errors import NotFoundError
from tests.cluster.parts.manifests import DAEMON_SETS, stopper
from tests.cluster.processes.control import Process, wait_until
from tests.cluster.processes.procs import ProcessId, identify

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.k8s import Api

MODULES = {"agent": b"nodeagent", "plugin": b"deviceplugin"}
CHANGE_LIMIT = 60.0
"""Seconds in which a pod goes or comes."""

_TICKS = os.sysconf("SC_CLK_TCK")


class PodProcess(Process):
    """The container's main process, by what it runs and by its node's cgroup.

    `stop` takes from the node the label that its DaemonSet asks for, so that it stays away; a
    killed one is started anew by the kubelet.
    """

    def __init__(
        self, service: str, node: str, cgroup: str, logs: Path, api: Callable[[], Api]
    ) -> None:
        super().__init__(f"{service}-{node}", _unsupervised)
        self._service, self._node, self._cgroup = service, node, cgroup
        self._logs, self._api = logs, api

    @property
    def info(self) -> dict[str, Any]:
        """As the supervisor tells of its own: name, state, pid, started_at, starts, log."""
        found = self._find()
        wanted = stopper(self._service) in self._labels()
        return {
            "name": self.name,
            "state": "running" if found else ("restarting" if wanted else "stopped"),
            "pid": found.pid if found else None,
            "started_at": _started_at(found) if found else 0.0,
            "starts": self._starts(),
            "last_exit": None,
            "log": str(self.log_file or self._logs),
        }

    @property
    def pid(self) -> int:
        """Its PID, as the host sees it. Raises NotFoundError while it doesn't run."""
        found = self._find()
        if found is None:
            raise NotFoundError(f"{self.name} isn't running now")
        return found.pid

    @property
    def log_file(self) -> Path | None:
        """The log of its newest container, in the runtime's format."""
        name = DAEMON_SETS[self._service]
        files = self._logs.glob(f"{keys.NAMESPACE}_{name}-*/{self._service}/*.log")
        return max(files, key=lambda file: file.stat().st_mtime, default=None)

    def signal(self, number: int) -> None:
        """Sends a signal. Raises NotFoundError while it doesn't run."""
        found = self._find()
        if found is None:
            raise NotFoundError(f"{self.name} isn't running")
        found.send(int(number))

    def stop(self) -> None:
        """Ends the pod, until `start`."""
        self._label(None)
        wait_until(self._gone, CHANGE_LIMIT, f"the pod of {self.name} doesn't end")

    def start(self) -> None:
        """Lets the node have the pod again; returns when its process runs."""
        self._label("true")
        wait_until(self._find, CHANGE_LIMIT, f"the pod of {self.name} doesn't start")

    def restart(self) -> None:
        """Ends the process; returns when the kubelet has started another one."""
        old = self.pid
        self.signal(signal.SIGTERM)

        def another() -> bool:
            found = self._find()
            return found is not None and found.pid != old

        wait_until(another, CHANGE_LIMIT, f"{self.name} wasn't started again")

    def remove(self) -> None:
        """Ends the pod."""
        self.stop()

    def _find(self) -> ProcessId | None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_it(entry):
                return identify(int(entry.name))
        return None

    def _is_it(self, process: Path) -> bool:
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[1:3] != [b"-m", MODULES[self._service]]:
                return False
            return f"/{self._cgroup}/" in (process / "cgroup").read_text()
        except OSError:
            return False

    def _gone(self) -> bool:
        return self._find() is None and not self._pods()

    def _pods(self) -> list[dict[str, Any]]:
        query = {
            "labelSelector": f"app.kubernetes.io/name={DAEMON_SETS[self._service]}",
            "fieldSelector": f"spec.nodeName={self._node}",
        }
        path = f"/api/v1/namespaces/{keys.NAMESPACE}/pods"
        found: list[dict[str, Any]] = self._api().get(path, query)["items"]
        return found

    def _starts(self) -> int:
        statuses = [
            status
            for pod in self._pods()
            for status in pod.get("status", {}).get("containerStatuses", [])
        ]
        return sum(int(status["restartCount"]) + 1 for status in statuses)

    def _labels(self) -> dict[str, str]:
        node = self._api().get(f"/api/v1/nodes/{self._node}")
        labels: dict[str, str] = node["metadata"].get("labels", {})
        return labels

    def _label(self, value: str | None) -> None:
        change = {"metadata": {"labels": {stopper(self._service): value}}}
        self._api().patch(f"/api/v1/nodes/{self._node}", change)


def _started_at(process: ProcessId) -> float:
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + process.started / _TICKS


def _unsupervised(request: dict[str, Any]) -> Any:
    raise NotFoundError(f"{request.get('name')} runs as a pod; the supervisor doesn't know it")
