"""The pod's socket: what a sidecar and exec probes learn from process 1, and what it relays."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time

import pytest

from tests.unit.kybinit.conftest import SOURCE, Line, children

UP = "print('up'); import time; time.sleep(60)"


@pytest.fixture
def dial(agent):
    """Connects to the pod's socket as the sidecar or a probe does."""
    lines = []

    def connect(*first: str) -> Line:
        connection = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 60
        while True:
            try:
                connection.connect(str(agent.pod_path))
                break
            except OSError:
                assert time.monotonic() < deadline, "process 1 does not listen"
                time.sleep(0.01)
        lines.append(Line(connection))
        if first:
            lines[-1].send(*first)
        return lines[-1]

    yield connect
    for line in lines:
        line.close()


def state(line: Line) -> tuple[str, bool, str]:
    """State, whether a probe has succeeded, and the sentence of one frame."""
    verb, name, age, serves, sentence = line.receive()
    assert verb == "state"
    assert age == "-" or age.isdigit()
    return name, serves == "1", sentence


def test_a_watcher_hears_the_state_at_once_and_every_change(waiting, dial):
    container, line = waiting("--", "python3", "-uc", UP)
    watcher = dial("watch", "1", "none")
    assert state(watcher) == ("waiting", False, "")
    line.send("state", "waiting", "a-x has the GPU")
    assert state(watcher) == ("waiting", False, "a-x has the GPU")
    line.send("go", "1")
    assert state(watcher) == ("running", False, "")
    for name in ("starting", "active", "parking", "parked", "waking", "active"):
        line.send("state", name, f"now {name}")
        assert state(watcher) == (name, False, f"now {name}")
    assert container.process.poll() is None


def test_the_socket_is_open_to_any_user_and_replaced_at_the_next_start(waiting, dial, agent):
    agent.pod_path.write_text("left over")
    waiting("--", "python3", "-uc", UP)
    assert state(dial("look"))[0] == "waiting"
    assert agent.pod_path.stat().st_mode & 0o777 == 0o666


def test_the_state_is_known_while_the_agent_is_away(running, dial, agent):
    _, line = running(UP)
    line.send("state", "parked", "parked in RAM")
    watcher = dial("watch", "1", "none")
    while state(watcher)[0] != "parked":
        continue
    agent.die()
    assert state(dial("look")) == ("parked", False, "parked in RAM")


def test_an_agent_that_tells_no_state_leaves_it_at_running(running, dial):
    running(UP)
    assert state(dial("look"))[0] == "running"


def test_hello_says_what_this_build_understands(launch, agent):
    launch("--", "true")
    assert agent.accept().receive() == [
        "hello",
        "1",
        "waiting",
        "0",
        "plain",
        "state,cooperate,parked,alone,turn",
    ]


def test_cooperation_is_asked_of_the_sidecar_and_answered_to_the_agent(running, dial):
    _, line = running(UP)
    watcher = dial("watch", "1", "vllm")
    state(watcher)
    assert line.receive() == ["cooperates", "vllm"]
    line.send("cooperate", "park", "5000")
    assert watcher.receive() == ["cooperate", "park", "5000"]
    watcher.send("cooperated", "park", "done", "vLLM sleeps")
    assert line.receive() == ["cooperated", "park", "done", "vLLM sleeps"]
    watcher.send("progress", "loading 40 %")
    assert line.receive() == ["progress", "loading 40 %"]
    line.send("turn")
    settled(line, dial, "active")
    watcher.send("turn", "yield")
    assert line.receive() == ["turn", "yield"]
    watcher.close()
    assert line.receive() == ["cooperates", "none"]
    line.send("cooperate", "wake", "5000")
    assert line.receive()[:3] == ["cooperated", "wake", "failed"]


def test_a_new_agent_is_told_who_cooperates(running, dial, agent):
    _, line = running(UP)
    state(dial("watch", "1", "http"))
    assert line.receive() == ["cooperates", "http"]
    agent.die()
    agent.listen()
    line = agent.accept()
    assert line.receive()[0] == "hello"
    assert line.receive() == ["cooperates", "http"]


def test_a_new_agent_is_told_what_was_acquired_and_of_no_yield(running, dial, agent):
    _, line = running(UP)
    line.send("turn")
    settled(line, dial, "active")
    sidecar = dial("watch", "1", "none")
    state(sidecar)

    def away(*hints):
        agent.die()
        for hint in hints:
            sidecar.send("turn", hint)
        assert state(dial("look"))[0] == "active"
        agent.listen()
        again = agent.accept()
        assert again.receive()[0] == "hello"
        again.send("turn")
        again.send("ok")
        return again

    assert away("yield", "acquire").receive() == ["turn", "acquire"]
    last = away("acquire", "yield")
    settled(last, dial, "parked")
    sidecar.send("progress", "nothing came before")
    assert last.receive() == ["progress", "nothing came before"]


def test_an_agent_that_knows_no_hints_is_sent_none(running, dial):
    _, line = running(UP)
    sidecar = dial("watch", "1", "none")
    sidecar.send("turn", "acquire")
    sidecar.send("progress", "10 %")
    assert line.receive() == ["progress", "10 %"]
    line.send("turn")
    assert line.receive() == ["turn", "acquire"]


@pytest.mark.parametrize(
    "rubbish",
    [("what",), ("watch", "2", "none"), ("watch", "1", "x" * 16), ("watch", "1"), ("progress",)],
)
def test_a_caller_that_speaks_something_else_is_dropped(running, dial, rubbish):
    container, _ = running(UP)
    caller = dial(*rubbish)
    with contextlib.suppress(EOFError):
        assert caller.receive()[0] == "refuse"
    with pytest.raises(EOFError):
        caller.receive()
    assert container.process.poll() is None


def looked(dial) -> str:
    """The state, once there is a place among the callers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return state(dial("look"))[0]
        except (EOFError, OSError):
            assert time.monotonic() < deadline, "no place got free"


def test_floods_and_endless_frames_hurt_nobody_else(running, dial):
    container, _ = running(UP)
    flood = dial()
    with contextlib.suppress(OSError):
        for _ in range(1000):
            flood.connection.sendall(b"\0\x0f\xff\xff" + b"x" * 1000)
    first = dial("watch", "1", "none")
    assert state(first)[0] == "running"
    many = [dial() for _ in range(8)]
    for line in (first, *many):
        line.close()
    assert looked(dial) == "running"
    assert container.process.poll() is None


def test_a_command_that_ends_while_it_is_parked_is_noticed(running, dial, probe):
    container, line = running(UP)
    # A stopped kyb-tree can't reap or report, as a frozen one can't.
    os.kill(container.tree, signal.SIGSTOP)
    settled(line, dial, "parked")
    time.sleep(2.5)
    assert probe("--", "true") == 0
    (command,) = children(container.tree)
    os.kill(command, signal.SIGKILL)
    watcher = dial("watch", "1", "none")
    while (told := state(watcher))[0] == "parked":
        continue
    assert told == ("failed", False, "the parked process has gone")
    assert probe("--", "true") == 1
    os.kill(container.tree, signal.SIGCONT)


@pytest.mark.parametrize("name", ["a)b", ") S", ""])
def test_a_command_that_ends_while_it_is_parked_is_noticed_by_any_name(running, dial, name):
    named = f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r}); {UP}"
    container, line = running(named)
    os.kill(container.tree, signal.SIGSTOP)
    settled(line, dial, "parked")
    (command,) = children(container.tree)
    os.kill(command, signal.SIGKILL)
    watcher = dial("watch", "1", "none")
    while (told := state(watcher))[0] == "parked":
        continue
    assert told == ("failed", False, "the parked process has gone")
    os.kill(container.tree, signal.SIGCONT)


@pytest.fixture
def probe(binary, agent):
    """Runs `kyb-init probe ARGS` in the container's place and returns its status."""

    def run(*args: str) -> int:
        env = {
            **os.environ,
            "KYB_SEAT_SOCKET": str(agent.path),
            "KYB_POD_SOCKET": str(agent.pod_path),
        }
        return subprocess.run(
            [str(binary), "probe", *args], env=env, timeout=60, check=False
        ).returncode

    return run


def settled(line, dial, name):
    """The agent tells a state; returns once process 1 knows it."""
    line.send("state", name, "")
    watcher = dial("watch", "1", "none")
    while state(watcher)[0] != name:
        continue
    watcher.close()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("waiting", 0),
        ("starting", 3),
        ("active", 3),
        ("draining", 3),
        ("parking", 0),
        ("parked", 0),
        ("waking", 0),
        ("failed", 1),
    ],
)
def test_exec_probes_follow_the_state_without_asking_the_agent(running, dial, probe, name, code):
    _, line = running(UP)
    settled(line, dial, name)
    assert probe("--", "sh", "-c", "exit 3") == code


def test_a_liveness_probe_waits_for_the_first_success_or_the_start_up_time(running, dial, probe):
    _, line = running(UP)
    settled(line, dial, "active")
    assert probe("--liveness", "600", "--", "false") == 0
    assert probe("--liveness", "0", "--", "false") == 1
    assert probe("--", "false") == 1
    assert probe("--", "true") == 0
    assert state(dial("look")) == ("active", True, "")
    assert probe("--liveness", "600", "--", "false") == 1


@pytest.mark.parametrize("wrong", ["", "x", "-1", "1s"])
def test_a_wrong_start_up_time_is_usage(probe, wrong):
    assert probe("--liveness", wrong, "--", "true") == 2


def test_no_variable_leads_a_real_build_elsewhere(tmp_path):
    subprocess.run(["make", "-s", "-C", str(SOURCE), f"OUT={tmp_path}", "all"], check=True)
    built = (tmp_path / "kyb-init").read_bytes()
    assert b"/run/kyb/seat.sock" in built
    assert b"KYB_SEAT_SOCKET" not in built
    assert b"KYB_POD_SOCKET" not in built
