"""kyb-init that starts nothing, and waits for the tree of another container."""

from __future__ import annotations

import os
import signal
import time

import pytest


def comm_of(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


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


@pytest.mark.parametrize("number", ["", "1", "0", "-5", "x", "9x", "99999999"])
def test_numbers_that_no_tree_can_have_are_refused(launch, number):
    process = launch("--parked", number)
    assert process.wait(60) == 2
    assert "usage:" in process.stderr.read()


def test_nothing_but_the_number_is_taken(launch):
    assert launch("--parked", "300", "--", "true").wait(60) == 2
