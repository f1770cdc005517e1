"""`kybernate serve` is killed at any moment: the next one goes on with the same processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time

import pytest

from tests.local.conftest import ROOT, Box, ask_in_vain, eventually, lives


def test_parked_and_active_models_are_adopted(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    before = {name: box.ask(name) for name in "ab"}
    box.end(signal.SIGKILL)
    assert all(lives(told["pid"]) for told in before.values())
    box.start()
    after = {name: box.ask(name) for name in "ab"}
    for name in "ab":
        assert after[name]["pid"] == before[name]["pid"]
        assert after[name]["counter"] == before[name]["counter"] + 1
    assert box.never_two()
    assert len(box.inits()) == 4  # two of them are the roots of the models' trees


def test_with_keep_models_outlive_an_orderly_end(box: Box):
    box.has("a")
    box.has("b")
    box.start("--keep")
    before = {name: box.ask(name) for name in "ab"}
    assert box.end() == 0
    assert all(lives(told["pid"]) for told in before.values())
    box.start()
    assert box.ask("a")["counter"] == before["a"]["counter"] + 1


def test_models_outlive_a_start_that_fails(box: Box):
    box.has("a")
    box.start("--keep")
    before = box.ask("a")
    assert box.end() == 0
    box.has("b")
    box.write()
    with socket.create_server(("127.0.0.1", box.port)):
        failed = subprocess.run(box.command, env=box.environment, check=False, cwd=ROOT)
    assert failed.returncode == 1
    assert len(box.inits()) == 2  # b was not there before
    box.start()
    assert box.ask("a")["counter"] == before["counter"] + 1


def test_a_model_that_left_the_file_and_still_ends_does_not_outlive_the_box(box: Box):
    box.has("a")
    held = box.models["a"]
    held["cmd"] = f"sh -c 'trap \"\" TERM; {held['cmd']}; sleep 1000'"
    held["unloadTimeout"] = 3
    box.start()
    before = box.ask("a")
    del box.models["a"]
    box.write()
    eventually(lambda: "was read again" in box.log)
    assert box.end() == 0
    assert not lives(before["pid"])


def test_a_model_that_left_the_file_meanwhile_is_ended(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    before = {name: box.ask(name) for name in "ab"}
    box.end(signal.SIGKILL)
    del box.models["a"]
    box.write()
    box.start()
    eventually(lambda: not lives(before["a"]["pid"]))
    assert box.ask("b")["boot"] == before["b"]["boot"]


def test_a_lost_journal_costs_nothing(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    before = {name: box.ask(name) for name in "ab"}
    box.end(signal.SIGKILL)
    (box.folder / ".local/state/kybernate/journal").unlink()
    box.start()
    after = {name: box.ask(name) for name in "ab"}
    assert all(after[name]["pid"] == before[name]["pid"] for name in "ab")
    assert box.never_two()


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.6])
def test_killed_in_the_middle_of_a_swap_nothing_runs_twice(box: Box, moment: float):
    box.has("a")
    box.has("b")
    box.start()
    before = {name: box.ask(name) for name in "ab"}
    asking = threading.Thread(target=ask_in_vain, args=(box,))
    asking.start()
    time.sleep(moment)
    box.end(signal.SIGKILL)
    asking.join()
    box.start()
    after = {name: box.ask(name) for name in "ab"}
    assert all(after[name]["pid"] == before[name]["pid"] for name in "ab")
    assert box.never_two()
