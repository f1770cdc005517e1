"""What people ask of a box by hand: park, wake, pin, unload, logs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.local.conftest import PATIENCE, Box, lives


def _act(box: Box, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{box.port}/api/models/{path}"
    request = urllib.request.Request(url, b"")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _model(box: Box, name: str) -> dict[str, Any]:
    listed = json.loads(box.get("/v1/models"))["data"]
    return next(row["kyb"] for row in listed if row["id"] == name)


def test_a_model_is_parked_and_woken_by_hand(box: Box):
    box.has("a")
    box.start()
    first = box.ask("a")
    assert _act(box, "park/a")[0] == 200
    assert _model(box, "a")["state"] == "parked"
    assert _act(box, "park/a")[0] == 200  # again
    assert _act(box, "wake/a")[0] == 200
    assert _model(box, "a")["state"] == "active"
    assert box.ask("a")["counter"] == first["counter"] + 1


def test_an_unloaded_model_ends_and_is_started_by_the_next_request(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    before = {name: box.ask(name) for name in "ab"}  # a is parked now
    for name in "ab":
        assert _act(box, f"unload/{name}")[0] == 200
        assert not lives(before[name]["pid"])
        assert _act(box, f"unload/{name}")[0] == 200  # again
    after = {name: box.ask(name) for name in "ab"}
    assert all(after[name]["boot"] != before[name]["boot"] for name in "ab")


def test_a_pinned_model_is_not_parked_for_another(box: Box):
    box.has("a", pin=True)
    box.has("b")
    box.start()
    box.ask("a")
    status, said = _act(box, "park/a")
    assert status == 409
    assert "unpin it first" in said
    assert _act(box, "unpin/a")[0] == 200
    assert box.ask("b")["counter"] == 1
    assert _model(box, "a")["state"] == "parked"


def test_what_a_model_writes_is_kept(box: Box):
    box.has("a")
    box.start()
    box.ask("a")
    assert b'"model": "a"' in box.get("/logs")


def test_a_model_that_the_file_has_not_got_is_not_found(box: Box):
    box.has("a")
    box.start()
    assert _act(box, "park/x")[0] == 404
