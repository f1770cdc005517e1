"""A real supervisor with small processes; needs neither root nor Kubernetes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from kybernate.errors import KybernateError, NotFoundError
from tests.cluster.layout import Layout
from tests.cluster.processes.control import Supervisor, wait_until
from tests.cluster.processes.procs import ProcessId, identify
from tests.cluster.processes.supervisor import ProcessSpec
from tests.cluster.start import teardown
from tests.cluster.start.state import State


@pytest.fixture
def layout():
    folder = Path(tempfile.mkdtemp(prefix="kyb", dir="/tmp"))
    found = Layout(folder)
    found.logs.mkdir()
    yield found
    teardown.down(found, keep_logs=False)
    shutil.rmtree(folder)


@pytest.fixture
def supervisor(layout) -> Supervisor:
    found = Supervisor(layout)
    state = State(layout.state_file)
    state.supervisor = found.launch()
    state.write()
    return found


def _sleeper(layout: Layout, name: str = "sleeper", **more) -> ProcessSpec:
    return ProcessSpec(name=name, argv=("sleep", "600"), log=str(layout.logs / name), **more)


def test_a_process_that_is_killed_comes_back_with_another_pid(layout, supervisor) -> None:
    supervisor.add(_sleeper(layout))
    process = supervisor.process("sleeper")
    first, started = process.pid, process.started_at
    process.kill9()
    wait_until(lambda: process.info["pid"] not in {None, first}, 20, "it wasn't restarted")
    assert process.starts == 2
    assert process.started_at > started
    assert process.info["last_exit"] == -signal.SIGKILL


def test_a_stopped_process_stays_away_until_it_is_started(layout, supervisor) -> None:
    supervisor.add(_sleeper(layout))
    process = supervisor.process("sleeper")
    first = process.pid
    process.stop()
    assert process.info["state"] == "stopped"
    assert identify(first) is None
    with pytest.raises(NotFoundError, match="isn't running"):
        _ = process.pid
    process.start()
    assert process.pid != first


def test_restart_replaces_it_and_remove_forgets_it(layout, supervisor) -> None:
    supervisor.add(_sleeper(layout))
    process = supervisor.process("sleeper")
    first = process.pid
    process.restart()
    assert process.pid != first
    process.remove()
    with pytest.raises(NotFoundError, match="no process is named sleeper; there are: none"):
        process.stop()


def test_what_can_not_start_is_tried_again_and_says_why(layout, supervisor) -> None:
    supervisor.add(_sleeper(layout, inside="nobody"))
    process = supervisor.process("sleeper")
    wait_until(lambda: process.starts > 1, 20, "it wasn't tried again")
    assert (
        "nobody, whose namespaces it enters, isn't running" in (layout.logs / "sleeper").read_text()
    )


def test_a_process_that_ends_at_once_is_restarted_more_and_more_slowly(layout, supervisor) -> None:
    log = str(layout.logs / "short")
    supervisor.add(ProcessSpec(name="short", argv=("sh", "-c", "exit 3"), log=log))
    process = supervisor.process("short")
    wait_until(lambda: process.starts >= 3, 20, "it wasn't restarted")
    assert process.info["last_exit"] == 3
    wait_until(lambda: process.info["state"] == "restarting", 20, "it waits for nothing")


def test_behind_a_wrapper_the_process_itself_is_known_and_killed(layout, supervisor) -> None:
    argv = ("sh", "-c", "sleep 600; exit 1")
    spec = ProcessSpec(name="wrapped", argv=argv, log=str(layout.logs / "w"), forks=True)
    supervisor.add(spec)
    pid = supervisor.process("wrapped").pid
    assert Path(f"/proc/{pid}/comm").read_text().strip() in {"sleep", "sh"}
    wait_until(
        lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"), 20, "no sleep"
    )


def test_one_that_ignores_sigterm_is_killed(layout, supervisor) -> None:
    argv = ("sh", "-c", "trap '' TERM; echo on; while :; do sleep 1; done")
    log = layout.logs / "deaf"
    supervisor.add(ProcessSpec(name="deaf", argv=argv, log=str(log), stop_limit=0.2))
    wait_until(lambda: log.read_text() == "on\n", 20, "it didn't start")
    process = supervisor.process("deaf")
    pid = process.pid
    process.stop()
    assert identify(pid) is None


def test_a_bad_request_is_answered_and_the_supervisor_lives_on(layout, supervisor) -> None:
    supervisor.add(_sleeper(layout))
    with pytest.raises(NotFoundError, match="no process is named other"):
        supervisor.process("other")
    assert supervisor.reachable()


def test_down_ends_everything_though_the_supervisor_was_killed(layout, supervisor) -> None:
    for name in ("one", "two"):
        supervisor.add(_sleeper(layout, name))
    pids = [row["ids"][0] for row in supervisor.status()]
    state = State.read(layout.state_file)
    assert state is not None
    assert state.supervisor is not None
    os.kill(state.supervisor.pid, signal.SIGKILL)
    assert teardown.down(layout)
    assert not [one for one in pids if ProcessId(one["pid"], one["started"]).alive()]
    with pytest.raises(KybernateError, match="is the cluster up"):
        supervisor.status()
    assert not teardown.down(layout)


def test_down_leaves_alone_who_only_has_the_same_pid(layout) -> None:
    me = identify(os.getpid())
    assert me is not None
    stranger = {"pid": me.pid, "started": me.started - 1}
    layout.processes_file.write_text(json.dumps([{"ids": [stranger]}]))
    State(layout.state_file).write()
    assert teardown.down(layout)
