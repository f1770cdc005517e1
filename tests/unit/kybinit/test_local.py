"""kyb-init in no container: any process of a user, told where the agent listens."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.kybinit.conftest import LIMIT, Agent, children, comm


@pytest.fixture
def local(binary, agent: Agent):
    started = []

    def start(*words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*before, str(binary), "--local", str(agent.path), "--", *words]
        environment = {"PATH": "/usr/bin:/bin", "ASAN_OPTIONS": "detect_leaks=0"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_command_waits_for_its_turn_and_its_status_is_kept(local, agent: Agent):
    process = local("sh", "-c", "echo up; exit 7")
    line = agent.accept()
    assert line.pid == process.pid
    assert line.receive()[:4] == ["hello", "1", "waiting", "0"]
    line.send("go", "1")
    assert line.receive() == ["exit", "7"]
    assert process.wait(LIMIT) == 7
    assert process.stdout.read() == "up\n"


def test_it_says_hello_again_to_the_next_agent(local, agent: Agent):
    local("sleep", "1000")
    line = agent.accept()
    line.receive()
    line.send("go", "4")
    agent.die()
    agent.listen()
    assert agent.accept().receive()[:4] == ["hello", "1", "running", "4"]


@pytest.mark.parametrize("victim", ["init", "tree"])
def test_nothing_of_a_tree_outlives_what_is_above_it(local, agent: Agent, victim: str):
    process = local("sleep", "1000")
    line = agent.accept()
    line.receive()
    line.send("go", "1")
    (tree,) = children(process.pid)
    until = time.monotonic() + LIMIT
    while not (below := children(tree)) or comm(below[0]) != "sleep":
        assert time.monotonic() < until
    os.kill(process.pid if victim == "init" else tree, signal.SIGKILL)
    while not (_gone(tree) and _gone(below[0])):
        assert time.monotonic() < until


def test_its_user_may_look_into_the_tree(local, agent: Agent):
    unprivileged = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    process = local("sleep", "1000", before=unprivileged)
    line = agent.accept()
    line.receive()
    line.send("go", "1")
    (tree,) = children(process.pid)
    until = time.monotonic() + LIMIT
    while comm(tree) != "kyb-tree":
        assert time.monotonic() < until
    read = ["dd", f"if=/proc/{tree}/auxv", "of=/dev/null"]
    assert subprocess.run([*unprivileged, *read], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("path", ["seat.sock", "/" + "x" * 108])
def test_a_path_that_cant_be_a_sockets_is_usage(binary, path: str):
    command = [str(binary), "--local", path, "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is no path of a socket" in done.stderr


def test_without_local_it_is_process_1_or_nothing(binary):
    done = subprocess.run([str(binary), "--", "true"], capture_output=True, check=False)
    assert done.returncode == 1
