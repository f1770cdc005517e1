"""Models that may be on any GPU of their box, and are moved by the driver while they are parked."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.local.conftest import Box, ask_in_vain, boxes, eventually
from tests.local.test_acts import act, model
from tests.simgpu import read_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODELS = "abc"


def gpu_of(box: Box, pid: int) -> str:
    """The GPU that the process holds memory of now, by the driver's own log; empty if none."""
    held: dict[str, int] = {}
    for record in read_log(box.gpus):
        if record.pid == pid:
            held[record.gpu] = record.held
    (found,) = [gpu for gpu, size in held.items() if size] or [""]
    return found


def three(box: Box, **keys: Any) -> dict[str, dict[str, Any]]:
    """Of three models that each need most of a GPU, a and b have one each, and c has had a's."""
    for name in MODELS:
        box.has(name, **keys)
    box.start()
    told = {name: box.ask(name) for name in MODELS}
    assert gpu_of(box, told["a"]["pid"]) == ""
    assert len({gpu_of(box, told[name]["pid"]) for name in "bc"}) == 2
    return told


def let_go(box: Box, name: str, pid: int) -> str:
    """Park it by hand; the GPU that is empty now."""
    there = gpu_of(box, pid)
    assert act(box, f"park/{name}")[0] == 200
    assert gpu_of(box, pid) == ""
    return there


def test_a_parked_model_wakes_on_the_other_gpu_with_its_state(wide_box: Box):
    told = three(wide_box)
    empty = let_go(wide_box, "b", told["b"]["pid"])
    again = wide_box.ask("a")
    assert (again["pid"], again["counter"]) == (told["a"]["pid"], 2)
    assert again["device"] == [2]
    assert gpu_of(wide_box, again["pid"]) == empty
    assert model(wide_box, "a")["gpus"] == [empty]
    (row,) = [r for r in json.loads(wide_box.get("/running"))["running"] if r["model"] == "a"]
    assert row["kyb"]["gpus"] == [empty]
    assert "c (box/c): active" not in wide_box.log
    assert wide_box.never_two()


def test_a_moved_model_is_adopted_where_it_is_after_a_kill(wide_box: Box):
    told = three(wide_box)
    empty = let_go(wide_box, "b", told["b"]["pid"])
    wide_box.ask("a")
    wide_box.end(signal.SIGKILL)
    wide_box.start()
    assert model(wide_box, "a")["gpus"] == [empty]
    other = let_go(wide_box, "c", told["c"]["pid"])
    assert wide_box.ask("b")["counter"] == 2
    assert gpu_of(wide_box, told["b"]["pid"]) == other != empty
    let_go(wide_box, "a", told["a"]["pid"])
    wide_box.end(signal.SIGKILL)
    wide_box.start()
    after = {name: wide_box.ask(name) for name in "cab"}
    for name in MODELS:
        assert after[name]["pid"] == told[name]["pid"]
    assert [after[name]["counter"] for name in MODELS] == [3, 3, 2]
    assert wide_box.never_two()


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.2])
def test_killed_in_the_middle_of_a_move_nothing_is_lost(wide_box: Box, moment: float):
    told = three(wide_box)
    let_go(wide_box, "b", told["b"]["pid"])
    asking = threading.Thread(target=ask_in_vain, args=(wide_box,))
    asking.start()
    time.sleep(moment)
    wide_box.end(signal.SIGKILL)
    asking.join()
    wide_box.start()
    for name in "abca":
        again = wide_box.ask(name)
        assert again["pid"] == told[name]["pid"]
        assert [gpu_of(wide_box, again["pid"])] == model(wide_box, name)["gpus"]
    assert wide_box.never_two()


def test_without_a_journal_running_models_are_found_and_parked_ones_start_again(wide_box: Box):
    told = three(wide_box)
    wide_box.end(signal.SIGKILL)
    (wide_box.folder / ".local/state/kybernate/journal").unlink()
    wide_box.start()
    for name in "bc":
        again = wide_box.ask(name)
        assert again["pid"] == told[name]["pid"]
        assert [gpu_of(wide_box, again["pid"])] == model(wide_box, name)["gpus"]
    assert wide_box.ask("a")["boot"] != told["a"]["boot"]
    assert "no record says on which GPU it was" in wide_box.log
    assert wide_box.never_two()


def test_a_model_that_lists_its_gpu_stays_there(wide_box: Box):
    wide_box.has("a", gpus=[0])
    wide_box.has("b", gpus=[0])
    wide_box.start()
    asked = [wide_box.ask(name) for name in "aba"]
    first = model(wide_box, "a")["gpus"]
    assert first == model(wide_box, "b")["gpus"] == [gpu_of(wide_box, asked[2]["pid"])]
    assert [one["counter"] for one in asked] == [1, 1, 2]


@pytest.fixture
def old_box(libraries: Path) -> Iterator[Box]:
    """Two GPUs of a driver that moves nothing."""
    yield from boxes(libraries, 2, driver_version="570.86.10")


def test_a_driver_before_580_leaves_models_where_they_began(old_box: Box):
    told = three(old_box)
    let_go(old_box, "b", told["b"]["pid"])
    began = gpu_of(old_box, told["c"]["pid"])
    assert old_box.ask("a")["counter"] == 2
    assert gpu_of(old_box, told["a"]["pid"]) == began
    eventually(lambda: model(old_box, "c")["state"] == "parked")
