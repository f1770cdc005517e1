"""The file changes while models run: only what changed is touched."""

from __future__ import annotations

import requests

from tests.local.conftest import Box, eventually, lives


def _changed(box: Box) -> None:
    seen = box.log.count("was read again")
    box.write()
    eventually(lambda: box.log.count("was read again") > seen)


def test_models_are_added_removed_and_changed(box: Box):
    for name in "abc":
        box.has(name)
    box.start()
    before = {name: box.ask(name) for name in "abc"}
    box.has("b", options="--seed 7")
    del box.models["c"]
    box.has("d")
    _changed(box)
    eventually(lambda: not lives(before["c"]["pid"]))
    after = {name: box.ask(name) for name in "abd"}
    assert after["a"]["boot"] == before["a"]["boot"]
    assert after["a"]["counter"] == before["a"]["counter"] + 1
    assert after["b"]["boot"] != before["b"]["boot"]
    assert after["b"]["expected"] != before["b"]["expected"]
    assert after["d"]["counter"] == 1
    assert box.never_two()


def test_a_model_that_comes_back_while_it_ends_is_started_anew(box: Box):
    box.has("a")
    box.has("b")
    held = box.models["a"]
    # A shell that heeds no SIGTERM, so that it takes until its grace is over.
    held["cmd"] = f"sh -c 'trap \"\" TERM; {held['cmd']}; sleep 1000'"
    held["unloadTimeout"] = 1
    box.start()
    before = box.ask("a")
    del box.models["a"]
    _changed(box)
    box.models["a"] = held
    _changed(box)
    eventually(lambda: not lives(before["pid"]))
    after = box.ask("a")
    assert (after["counter"], after["pid"] != before["pid"]) == (1, True)
    assert box.ask("b")["counter"] == 1
    assert len(box.inits()) == 4  # two of them are the roots of the models' trees
    assert box.never_two()


def test_a_file_that_is_wrong_changes_nothing(box: Box):
    box.has("a")
    box.start()
    first = box.ask("a")
    box.file.write_text("models: {a: {cmd: 7, vram: many}}")
    eventually(lambda: "the models stay as they are" in box.log)
    assert box.ask("a")["counter"] == first["counter"] + 1


def test_another_time_to_end_counts_once_the_file_says_so(box: Box):
    box.has("a")
    box.models["a"]["cmd"] = f"sh -c 'trap \"\" TERM; {box.models['a']['cmd']}; sleep 1000'"
    box.models["a"]["unloadTimeout"] = 1000
    box.start()
    box.ask("a")
    box.models["a"]["unloadTimeout"] = 1
    _changed(box)
    answer = requests.post(f"http://127.0.0.1:{box.port}/api/models/unload/a", timeout=100)
    assert answer.status_code == 200
