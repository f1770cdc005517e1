"""Questions from inside the container: `kyb-init status` and `kyb-init probe`."""

from __future__ import annotations

import os
import subprocess

import pytest


@pytest.fixture
def ask(binary, agent):
    """Starts `kyb-init ARGS`; the caller plays the agent."""
    started = []

    def start(*args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(binary), *args],
            env={
                **os.environ,
                "KYB_SEAT_SOCKET": str(agent.path),
                "KYB_POD_SOCKET": str(agent.pod_path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_status_prints_state_and_sentence(ask, agent):
    process = ask("status")
    line = agent.accept()
    assert line.receive() == ["status"]
    line.send("status", "parked", "another seat of G0 is active")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "parked: another seat of G0 is active\n")


def test_status_without_an_agent_fails_with_a_sentence(ask, agent):
    agent.die()
    process = ask("status")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "does not answer" in err


@pytest.mark.parametrize(
    ("answer", "code", "out"), [("run", 5, "ran\n"), ("alive", 0, ""), ("dead", 1, "")]
)
def test_a_probe_does_what_the_agent_says(ask, agent, answer, code, out):
    process = ask("probe", "--", "sh", "-c", "echo ran; exit 5")
    line = agent.accept()
    assert line.receive() == ["probe"]
    line.send(answer)
    assert process.communicate(timeout=60)[0] == out
    assert process.returncode == code


def test_a_probe_without_an_agent_gets_nobody_killed(ask, agent):
    agent.die()
    process = ask("probe", "--", "false")
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_an_agent_that_hangs_up_counts_as_away(ask, agent):
    process = ask("probe", "--", "false")
    agent.accept().close()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_an_agent_that_keeps_silent_counts_as_away(ask, agent):
    process = ask("probe", "--", "false")
    agent.accept()
    process.communicate(timeout=60)
    assert process.returncode == 0
