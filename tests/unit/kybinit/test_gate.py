"""The gate: nothing of the workload runs before the agent's grant."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress

import pytest

from .conftest import children, comm


def test_the_tree_waits_at_the_gate_until_granted(waiting):
    container, line = waiting("--", "python3", "-c", "import os; print(os.environ['KYB_SEAT_GEN'])")
    assert comm(container.init) == "kyb-wait"
    assert comm(container.tree) == "kyb-gate"
    assert children(container.tree) == []
    line.send("go", "42")
    assert container.end() == (0, "42\n", "")


def test_the_image_prefix_stands_before_the_own_arguments(waiting):
    container, line = waiting("--image", "--", "own", "")
    line.send("go", "1", "python3", "-c", "import sys; print(sys.argv[1:])", "from the image")
    assert container.end()[:2] == (0, "['from the image', 'own', '']\n")


def test_hello_names_the_mode(launch, agent):
    launch("--image", "--")
    assert agent.accept().receive()[:5] == ["hello", "1", "waiting", "0", "image"]


def test_the_agent_may_come_late(launch, agent):
    agent.die()
    process = launch("--", "true")
    agent.listen()
    line = agent.accept()
    line.receive()
    line.send("go", "1")
    assert line.receive() == ["exit", "0"]
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_waiting_container_ends_at_once(waiting, signum):
    container, line = waiting("--", "sleep", "60")
    subprocess.run(["kill", f"-{signum.value}", str(container.init)], check=True)
    assert line.receive() == ["exit", str(128 + signum)]
    assert container.end() == (128 + signum, "", "")


def test_other_signals_do_not_reach_a_command_that_has_not_started(waiting):
    container, line = waiting("--", "true")
    subprocess.run(["kill", "-USR1", str(container.init)], check=True)
    line.send("go", "1")
    assert container.end()[0] == 0


def test_a_refusal_is_printed_and_ends_the_container(waiting):
    container, line = waiting("--", "true")
    line.send("refuse", "this pod never passed the scheduler")
    assert container.end() == (1, "", "kyb-init: this pod never passed the scheduler\n")


def test_an_agent_of_another_protocol_is_told_apart(waiting):
    container, line = waiting("--", "true")
    line.send("start-v9")
    code, _, err = container.end()
    assert code == 1
    assert "does not speak protocol 1" in err


def test_a_frame_above_the_limit_ends_a_waiting_container(waiting):
    container, line = waiting("--", "true")
    line.connection.sendall(b"\xff\xff\xff\xff")
    code, _, err = container.end()
    assert code == 1
    assert "above 1 MiB" in err


def test_a_grant_that_comes_in_pieces_is_put_together(waiting):
    container, line = waiting("--image", "--")
    payload = "\0".join(["go", "1", "echo", "x" * 50_000]).encode()
    frame = len(payload).to_bytes(4, "big") + payload
    for at in (slice(0, 1), slice(1, 3), slice(3, 10), slice(10, None)):
        line.connection.sendall(frame[at])
    assert container.end()[:2] == (0, "x" * 50_000 + "\n")


def test_a_second_grant_changes_nothing(running, tmp_path):
    told = tmp_path / "told"
    wait = f"while not os.path.exists({str(told)!r}): time.sleep(0.01)"
    container, line = running(f"import os, time; print('up')\n{wait}\nprint('done')")
    line.send("go", "8")
    with suppress(BrokenPipeError):  # it may have hung up on the first of them already
        line.send("go", "9")
    told.touch()
    assert container.end()[:2] == (0, "done\n")


def test_it_refuses_to_be_anything_but_process_1(binary):
    result = subprocess.run(
        [str(binary), "--", "true"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "process 1" in result.stderr


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([], 2),
        (["--"], 2),
        (["true"], 2),
        (["probe"], 2),
        (["probe", "--"], 2),
        (["status", "x"], 2),
        (["--help"], 0),
        (["--version"], 0),
    ],
)
def test_arguments(binary, args, code):
    result = subprocess.run([str(binary), *args], capture_output=True, text=True, check=False)
    assert result.returncode == code
    assert bool(result.stdout) is (code == 0)
