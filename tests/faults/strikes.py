"""The faults: each breaks one part while the seats are in their states, and mends what doesn't
mend itself. What a user must see meanwhile is checked on the way."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.control import wait_until
from tests.cluster.nodes import connects
from tests.cluster.readiness import answers, apiserver
from tests.cluster.spec import AGENT_PROBE_PORT, KUBELET_HEALTH_PORT, PLUGIN_PROBE_PORT
from tests.faults.scene import LIMIT, NODE, ROLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster import Process
    from tests.faults.scene import Scene

AWAY = 3.0
"""Seconds for which a part stays away that is not restarted at once."""


def agent(scene: Scene) -> None:
    """The agent is killed, and with it its helpers."""
    _kill(scene.node.agent)
    _await(scene, AGENT_PROBE_PORT)


def helper(scene: Scene) -> None:
    """All helpers are killed, and the process that they are forked from."""
    killed = [pid for pid in _processes("kybernate.adapters.cuda_helper") if _kill_pid(pid)]
    if len(killed) < 2:
        raise AssertionError("there was no helper to kill")


def plugin(scene: Scene) -> None:
    """The device plugin is killed."""
    _kill(scene.node.plugin)
    _await(scene, PLUGIN_PROBE_PORT)


def kyb_init(scene: Scene) -> None:
    """Process 1 of every container is killed."""
    for role in ROLES:
        _kill_one(scene, role, ("kyb-wait", "kyb-run", "kyb-hold", "kyb-parked"))


def workload(scene: Scene) -> None:
    """The command of every container is killed, or the process that would become it."""
    for role in ROLES:
        _kill_one(scene, role, ("kyb-gate",) if role == "waiting" else ("python3",))


def containerd(scene: Scene) -> None:
    """The runtime's daemon is killed; its shims live on."""
    _kill(scene.cluster.process(f"containerd-{NODE}"))
    socket = scene.cluster.layout.node(NODE).cri_socket
    wait_until(lambda: connects(socket), LIMIT, "containerd doesn't come back")


def kubelet(scene: Scene) -> None:
    """The kubelet is killed."""
    _kill(scene.node.kubelet)
    _await(scene, KUBELET_HEALTH_PORT, "healthz")


def api_server(scene: Scene) -> None:
    """The API server is away for a while, in which seats park, wake and answer."""
    server = scene.cluster.process("apiserver")
    server.stop()
    try:
        assert scene.streaming("active")
        scene.release()
        scene.send("parked")
        for role in ("taker", "waking", "parked"):
            assert scene.pending[role].result(LIMIT).status == 200, role
        time.sleep(AWAY)
    finally:
        server.start()
        apiserver(scene.cluster.layout, scene.cluster.server)


STRIKES: dict[str, Callable[[Scene], None]] = {
    "agent": agent,
    "helper": helper,
    "plugin": plugin,
    "kyb-init": kyb_init,
    "workload": workload,
    "containerd": containerd,
    "kubelet": kubelet,
    "api-server": api_server,
}


def _kill(process: Process) -> None:
    starts = process.starts
    process.kill9()
    wait_until(lambda: process.starts > starts, LIMIT, f"{process.name} isn't restarted")


def _await(scene: Scene, port: int, path: str = "readyz") -> None:
    url = f"http://{scene.node.ip}:{port}/{path}"
    wait_until(lambda: answers(url), LIMIT, f"{url} doesn't answer")


def _kill_one(scene: Scene, role: str, names: tuple[str, ...]) -> None:
    found = [task for task in scene.tasks(role) if task.comm in names]
    if len(found) != 1:
        raise AssertionError(f"{role}: {names} not found once: {scene.tasks(role)}")
    os.kill(found[0].pid, signal.SIGKILL)


def _processes(module: str) -> list[int]:
    """Processes of the host with this word on their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if module.encode() in words:
            found.append(int(folder.name))
    return found


def _kill_pid(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
