"""kyb-init that starts nothing, and waits for the tree of another container."""

from __future__ import annotations

import os
import signal
import time

import pytest


def comm_of(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_it_says_parked_and_starts_nothing(launch, agent):
    process = launch("--parked", "300")
    line = agent.accept()
    assert line.receive()[:5] == ["hello", "1", "parked", "0", "plain"]
    assert comm_of(line.pid) == "kyb-parked"
    with open(f"/proc/{line.pid}/task/{line.pid}/children") as file:
        assert file.read() == ""
    os.kill(line.pid, signal.SIGTERM)
    assert process.wait(60) == 143


def test_a_grant_starts_nothing(launch, agent):
    process = launch("--parked", "300")
    line = agent.accept()
    line.receive()
    line.send("go", "7")
    time.sleep(0.1)
    assert comm_of(line.pid) == "kyb-parked"
    assert process.poll() is None


def test_one_that_waits_is_parked_by_the_agent_and_starts_nothing(launch, agent):
    process = launch("--", "sh", "-c", "echo started")
    line = agent.accept()
    assert line.receive()[2] == "waiting"
    line.send("parked", "300")
    until(lambda: comm_of(line.pid) == "kyb-parked")
    with open(f"/proc/{line.pid}/task/{line.pid}/children") as file:
        assert file.read() == ""
    line.send("go", "7")
    line.close()
    again = agent.accept()
    assert again.receive()[2:4] == ["parked", "0"]
    os.kill(again.pid, signal.SIGTERM)
    assert process.wait(60) == 143
    assert process.stdout.read() == ""


def test_one_that_runs_is_not_parked_by_a_word(launch, agent):
    process = launch("--", "sleep", "60")
    line = agent.accept()
    line.receive()
    line.send("go", "1")
    until(lambda: comm_of(line.pid) == "kyb-run")
    line.send("parked", "300")
    line.send("refuse", "to see that the frame before was read")
    agent.accept().receive()
    assert comm_of(line.pid) == "kyb-run"
    process.kill()


@pytest.mark.parametrize("number", ["", "1", "x", "99999999"])
def test_a_number_that_no_tree_can_have_ends_one_that_waits(launch, agent, number):
    process = launch("--", "sh", "-c", "echo started")
    line = agent.accept()
    line.receive()
    line.send("parked", number)
    assert process.wait(60) == 1
    assert "names no process" in process.stderr.read()
    assert process.stdout.read() == ""


@pytest.mark.parametrize("number", ["", "1", "0", "-5", "x", "9x", "99999999"])
def test_numbers_that_no_tree_can_have_are_refused(launch, number):
    process = launch("--parked", number)
    assert process.wait(60) == 2
    assert "usage:" in process.stderr.read()


def test_nothing_but_the_number_is_taken(launch):
    assert launch("--parked", "300", "--", "true").wait(60) == 2
