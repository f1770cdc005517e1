"""The faults: each breaks one part while the seats are in their states, and mends what doesn't
mend itself. What a user must see meanwhile is checked on the way."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate import keys
from tests.cluster.parts.nodes import connects
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import AGENT_PROBE_PORT, KUBELET_HEALTH_PORT, PLUGIN_PROBE_PORT
from tests.cluster.start.readiness import apiserver
from tests.faults.scenes.reboot import power_off, power_on, wipe
from tests.faults.scenes.scene import GROUPS, NODE, ROLES, STEADY
from tests.faults.scenes.stream import LIMIT
from tests.simgpu import Call, Fault, holdings, read_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.faults.scenes.look import Task
    from tests.faults.scenes.scene import Scene

GATES = ("kyb-wait", "kyb-run", "kyb-hold", "kyb-parked")
"""Names that kyb-init as process 1 goes by."""

REQUESTS = f"/apis/{keys.API_VERSION}/namespaces/default/checkpointrequests"

PAGE = 4096
RECORD = 500
"""Bytes: less than a seat's record in the journal."""

AWAY = 3.0
"""Seconds for which a part stays away that is not restarted at once."""


def agent(scene: Scene) -> None:
    """The agent is killed, and with it its helpers."""
    scene.kill(scene.node.agent)
    scene.wait_answer(AGENT_PROBE_PORT)


def helper(scene: Scene) -> None:
    """All helpers are killed, and the process that they are forked from."""
    killed = [pid for pid in (*scene.helpers(), *scene.mothers()) if _kill_pid(pid)]
    if len(killed) < 2:
        raise AssertionError("there was no helper to kill")


def plugin(scene: Scene) -> None:
    """The device plugin is killed."""
    scene.kill(scene.node.plugin)
    scene.wait_answer(PLUGIN_PROBE_PORT)


def kyb_init(scene: Scene) -> None:
    """Process 1 of every container is killed."""
    for role in ROLES:
        _kill_one(scene, role, lambda task: task.comm in GATES)


def workload(scene: Scene) -> None:
    """The command of every container is killed, or the process that would become it."""
    for role in ROLES:
        _kill_one(scene, role, _waits if role == "waiting" else _serves)
    # With cgroup version 1 a frozen process dies only when somebody wants it thawed.
    scene.send("parked")


def sidecar(scene: Scene) -> None:
    """The sidecars are killed; the kubelet starts them again, and probes go on being asked."""
    for role in ROLES:
        _kill_one(scene, role, _answers_probes)
    scene.wait_sidecars(ROLES)
    time.sleep(AWAY)


def containerd(scene: Scene) -> None:
    """The runtime's daemon is killed; its shims live on."""
    scene.kill(scene.cluster.process(f"containerd-{NODE}"))
    socket = scene.cluster.layout.node(NODE).cri_socket
    wait_until(lambda: connects(socket), LIMIT, "containerd doesn't come back")


def kubelet(scene: Scene) -> None:
    """The kubelet is killed."""
    scene.kill(scene.node.kubelet)
    scene.wait_answer(KUBELET_HEALTH_PORT, "healthz")


def controller(scene: Scene) -> None:
    """The controller is killed when the seats' requests are made, and while they are under way."""
    process = scene.cluster.process("controller")
    asked = [ask_to_park(scene, role) for role in ROLES]
    scene.kill(process)
    try:
        wait_until(lambda: all(standing(scene, one)[0] for one in asked), LIMIT, "none is taken up")
        scene.kill(process)
        assert scene.streaming("active")
        scene.release()
        assert scene.pending["waking"].result(LIMIT).status == 200
        for one in asked:
            wait_until(
                lambda one=one: standing(scene, one)[1:] == ("True", "Parked"),  # type: ignore[misc]
                LIMIT,
                lambda one=one: f"{one}: {standing(scene, one)}",  # type: ignore[misc]
            )
    finally:
        for one in asked:
            scene.cluster.api().delete(f"{REQUESTS}/{one}")


def ask_to_park(scene: Scene, role: str) -> str:
    """The name of a CheckpointRequest that is made for the role's pod."""
    pod = scene.cast.pods[role]
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.CHECKPOINT_REQUEST_KIND}
    spec = {"pod": pod, "mode": "Park", "deadlineSeconds": int(LIMIT)}
    scene.cluster.api().post(REQUESTS, {**kind, "metadata": {"name": pod}, "spec": spec})
    return pod


def standing(scene: Scene, name: str) -> tuple[str, str, str]:
    """Of a CheckpointRequest its operation, whether that is complete, and the reason."""
    status = scene.cluster.api().get(f"{REQUESTS}/{name}").get("status") or {}
    found = (status.get("conditions") or [{"status": "", "reason": ""}])[0]
    return status.get("operation", ""), found["status"], found["reason"]


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


def gpu(scene: Scene) -> None:
    """The GPUs of all roles fall off the bus, and come back."""
    lost = [GROUPS[role] for role in ROLES]
    for index in lost:
        scene.faults.lose_gpu(index)
    try:
        wait_until(lambda: scene.unhealthy() == len(lost), LIMIT, "the loss goes unnoticed")
        scene.send("parked")
        scene.release()
        time.sleep(AWAY)
    finally:
        for index in lost:
            scene.faults.lose_gpu(index, lost=False)
    wait_until(lambda: not scene.unhealthy(), LIMIT, "the GPUs' recovery goes unnoticed")


def node_reboot(scene: Scene) -> None:
    """The node loses its power and boots in the worst order."""
    names = power_off(scene.cluster, NODE)
    wipe(scene.cluster, NODE)
    scene.clock.install()
    power_on(scene.cluster, NODE, names)
    scene.wait_answer(AGENT_PROBE_PORT)
    scene.wait_answer(PLUGIN_PROBE_PORT)


def driver_reload(scene: Scene) -> None:
    """The driver goes, with all that holds a GPU, and with what it knew of parked processes."""
    holding = {pod for gpu in holdings(read_log(scene.node.simgpu_root)).values() for pod in gpu}
    uids = {role: scene.uid(role) for role in (*STEADY, "waiting")}
    scene.faults.unload_driver()
    try:
        for role, uid in uids.items():
            if uid in holding:
                _kill_all(task for task in scene.tasks(role) if _serves(task))
            elif role not in ("waiting", "waking"):
                scene.faults.inject(Fault.FAILED, call=Call.RESTORE, pod=uid, times=1)
        scene.release()
        time.sleep(AWAY)
    finally:
        scene.faults.load_driver()
    wait_until(lambda: not scene.unhealthy(), LIMIT, "the driver's return goes unnoticed")
    for role in ("parked", "loser"):
        scene.send(role)


def disk_full(scene: Scene) -> None:
    """The file system of the agent's journal fills up, and is given room again."""
    state = scene.cluster.layout.node(NODE).root / "lib-kyb" / "state"
    filler = state / "filler"
    _use_up_the_page(scene, state / "journal")
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        assert scene.streaming("active")
        scene.release()
        assert scene.pending["waking"].result(LIMIT).status == 200
        scene.send("parked")
        time.sleep(AWAY)
        for role in ("taker", "parked"):
            assert not scene.pending[role].done(), role
    finally:
        filler.unlink()


def _use_up_the_page(scene: Scene, journal: Path) -> None:
    """Swap seats until no further record fits into the journal's last page, which it keeps."""

    def used_up() -> bool:
        if -journal.stat().st_size % PAGE < RECORD:
            return True
        for role in ("parked", "winner"):
            scene.ask(role)
        scene.wait_states({"parked": "parked", "winner": "active"})
        return False

    wait_until(used_up, LIMIT, "the journal never ends near the end of a page", every=0.0)


def clock_jump(scene: Scene) -> None:
    """The wall clock jumps a day ahead, then to an hour ago, then back."""
    try:
        for seconds in (86400.0, -3600.0):
            scene.clock.jump(seconds)
            time.sleep(1.0)
            assert scene.streaming("active")
        scene.release()
        scene.ask("parked")
    finally:
        scene.clock.jump(0)


STRIKES: dict[str, Callable[[Scene], None]] = {
    "agent": agent,
    "helper": helper,
    "plugin": plugin,
    "kyb-init": kyb_init,
    "sidecar": sidecar,
    "workload": workload,
    "containerd": containerd,
    "kubelet": kubelet,
    "controller": controller,
    "api-server": api_server,
    "gpu": gpu,
    "node-reboot": node_reboot,
    "driver-reload": driver_reload,
    "disk-full": disk_full,
    "clock-jump": clock_jump,
}


def _waits(task: Task) -> bool:
    return task.comm == "kyb-gate"


def _serves(task: Task) -> bool:
    return "toy_server" in task.command and task.comm not in GATES and task.comm != "kyb-tree"


def _answers_probes(task: Task) -> bool:
    return "sidecar" in task.command


def _kill_one(scene: Scene, role: str, which: Callable[[Task], bool]) -> None:
    found = [task for task in scene.tasks(role) if which(task)]
    if len(found) != 1:
        raise AssertionError(f"{role}: not one process to kill among {scene.tasks(role)}")
    os.kill(found[0].pid, signal.SIGKILL)


def _kill_all(tasks: Iterable[Task]) -> None:
    """Some may have ended meanwhile: the agent ends what uses a GPU that is lost."""
    for task in tasks:
        _kill_pid(task.pid)


def _kill_pid(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
