"""Taking a cluster down, whatever state it or its supervisor is in."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster.parts import host
from tests.cluster.processes.procs import ProcessId, wait_gone
from tests.cluster.start import state as kinds
from tests.cluster.start.state import State

if TYPE_CHECKING:
    from tests.cluster.layout import Layout

GONE_LIMIT = 20.0
"""Seconds that processes have to vanish after SIGKILL."""


def down(layout: Layout, *, keep_logs: bool = True) -> bool:
    """Ends every process of the cluster and undoes what it made. False if there was nothing.

    Raises KybernateError listing what is left, if anything is.
    """
    state = State.read(layout.state_file)
    if state is None:
        return False
    processes = _processes(layout, state)
    for process in processes:
        process.send(9)
    _wait(processes, [value for kind, value in state.made if kind == kinds.CGROUP])
    left = [f"process {one.pid}" for one in processes if one.alive()] + host.undo(state)
    if left:
        state.write()
        raise KybernateError("the cluster is down but for: " + "; ".join(left))
    _remove_files(layout, keep_logs=keep_logs)
    return True


def _processes(layout: Layout, state: State) -> list[ProcessId]:
    """The supervisor first, so that it restarts nothing."""
    found = [state.supervisor] if state.supervisor else []
    try:
        rows = json.loads(layout.processes_file.read_text())
    except (OSError, ValueError):
        rows = []
    for row in rows:
        found += [ProcessId(one["pid"], one["started"]) for one in row["ids"]]
    return found


def _wait(processes: list[ProcessId], cgroups: list[str]) -> None:
    """Waits until all are gone; frozen ones are thawed again and again, since an agent that is
    still dying may freeze them once more."""
    deadline = time.monotonic() + GONE_LIMIT
    while True:
        for cgroup in cgroups:
            host.thaw(cgroup)
        if not wait_gone(processes, 0.2) or time.monotonic() > deadline:
            return


def _keep_pod_logs(layout: Layout) -> None:
    """The logs of our own pods, beside those of the processes."""
    for file in layout.work.glob(f"*/pod-logs/{keys.NAMESPACE}_*/*/*.log"):
        pod = file.parents[1].name.split("_")[1]
        shutil.copyfile(file, layout.logs / f"{pod}-{file.name}")


def _remove_files(layout: Layout, *, keep_logs: bool) -> None:
    if keep_logs:
        _keep_pod_logs(layout)
    for entry in layout.work.iterdir():
        if entry.name == "log" and keep_logs:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
