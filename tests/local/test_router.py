"""What llama-swap's users expect of requests, on a box that parks: its router's scenarios here.
Which is which: tests/unit/local/test_scenarios.py."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.local.conftest import PATIENCE, Box, eventually, lives


def running(box: Box) -> dict[str, str]:
    """Each model that runs, and its state."""
    told = json.loads(box.get("/running"))
    return {one["model"]: one["state"] for one in [*told["running"], *told["parked"]]}


def post(box: Box, path: str, **body: object) -> tuple[int, dict]:
    """Status and JSON of a POST."""
    url, kind = f"http://127.0.0.1:{box.port}{path}", {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), kind)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            text = answer.read()
            return answer.status, json.loads(text) if text.startswith(b"{") else {}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_requests_for_a_model_that_does_not_run_start_it_once(box: Box):
    box.has("a")
    box.start()
    assert running(box) == {}
    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(lambda _: box.ask("a"), range(6)))
    assert len({one["pid"] for one in told}) == 1
    assert sorted(one["counter"] for one in told) == [1, 2, 3, 4, 5, 6]
    assert running(box) == {"a": "ready"}


def test_requests_for_two_models_at_once_are_all_answered_in_turn(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda number: box.ask("ab"[number % 2]), range(16)))
    for name in (0, 1):
        own = told[name::2]
        assert len({one["pid"] for one in own}) == 1
        assert sorted(one["counter"] for one in own) == list(range(1, 9))
    assert box.never_two()
    assert sorted(running(box).values()) == ["parked", "ready"]
    assert box.log.count("parking -> parked") <= 5, "who asks for the same model goes together"


def test_unload_ends_models_and_the_next_request_starts_them_again(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    pids = {name: box.ask(name)["pid"] for name in "ab"}
    assert post(box, "/api/models/unload/a")[0] == 200
    assert not lives(pids["a"])
    assert running(box) == {"b": "ready"}
    assert box.get("/unload") == b"OK"
    eventually(lambda: not lives(pids["b"]))
    assert running(box) == {}
    again = box.ask("a")
    assert again["counter"] == 1
    assert again["pid"] != pids["a"]


def test_a_model_is_parked_and_woken_by_hand(box: Box):
    box.has("a")
    box.start()
    before = box.ask("a")
    assert post(box, "/api/models/park/a")[0] == 200
    assert running(box) == {"a": "parked"}
    assert lives(before["pid"])
    assert post(box, "/api/models/wake/a")[0] == 200
    assert running(box) == {"a": "ready"}
    assert box.ask("a")["counter"] == 2


def test_a_name_of_no_model_is_answered_404_and_starts_nothing(box: Box):
    box.has("a")
    box.start()
    status, told = post(box, "/v1/chat/completions", model="nobody", messages=[])
    assert (status, told["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(urllib.error.HTTPError) as caught:
        box.get("/upstream/nobody/health")
    caught.value.close()
    assert caught.value.code == 404
    assert running(box) == {}


def test_aliases_and_paths_below_upstream_wake_the_same_model(box: Box):
    box.has("a", aliases=["gpt-4o-mini"], useModelName="a")
    box.has("b")
    box.start()
    first = box.ask("gpt-4o-mini")
    box.ask("b")
    with pytest.raises(urllib.error.HTTPError) as caught:
        box.get("/upstream/a/favicon.ico")
    caught.value.close()
    assert caught.value.code == 409
    assert running(box) == {"a": "parked", "b": "ready"}
    box.get("/upstream/gpt-4o-mini/health")
    assert running(box) == {"a": "ready", "b": "parked"}
    assert box.ask("a")["pid"] == first["pid"]


def test_ollamas_clients_load_a_model_and_let_it_go(box: Box):
    box.has("a")
    box.start()
    assert post(box, "/api/generate", model="a:latest")[1]["done_reason"] == "load"
    assert [one["name"] for one in json.loads(box.get("/api/ps"))["models"]] == ["a"]
    assert post(box, "/api/generate", model="a", keep_alive=0)[1]["done_reason"] == "unload"
    assert running(box) == {"a": "parked"}
    assert json.loads(box.get("/api/ps"))["models"] == []


def test_a_pinned_group_of_llama_swaps_file_stays(box: Box):
    box.has("a", size=20)
    box.has("b", size=40)
    box.has("c", size=40)
    box.write()
    with box.file.open("a") as file:
        file.write("groups: {forever: {members: [a], persistent: true, swap: false}}\n")
    box.start()
    for name in "abcbc":
        box.ask(name)
    assert running(box) == {"a": "ready", "b": "parked", "c": "ready"}


def stubborn(box: Box, name: str, seconds: int, **keys: object) -> None:
    """A model whose command heeds no SIGTERM, and may take so long to end."""
    box.has(name, size=20, unloadTimeout=seconds, **keys)
    held = box.models[name]
    held["cmd"] = f"sh -c 'trap \"\" TERM; {held['cmd']}; sleep 1000'"


@pytest.mark.slow
def test_models_that_heed_no_term_end_together_each_after_its_own_time(box: Box):
    for name, seconds in (("a", 2), ("b", 4), ("c", 4)):
        stubborn(box, name, seconds)
    box.start()
    pids = [box.ask(name)["pid"] for name in "abc"]
    began = time.monotonic()
    assert box.get("/unload") == b"OK"
    ends = [eventually(lambda pid=pid: not lives(pid) and time.monotonic()) for pid in pids]
    took = [end - began for end in ends]
    assert took[0] >= 2
    assert took[1] >= 4
    assert took[2] < 2 + 4 + 4, "one after the other"


def test_a_request_that_comes_while_its_model_ends_starts_it_again(box: Box):
    stubborn(box, "a", 3)
    box.start()
    before = box.ask("a")
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(post, box, "/api/models/unload/a")
        eventually(lambda: running(box).get("a") != "ready")
        assert lives(before["pid"])
        after = box.ask("a")
        assert ending.result()[0] == 200
    assert (after["counter"], after["pid"] != before["pid"]) == (1, True)
    assert not lives(before["pid"])
    assert box.never_two()


@pytest.mark.slow
def test_models_that_fit_start_at_the_same_time(box: Box):
    for name in "ab":
        box.has(name, size=20, options="--start-delay 3")
    box.start()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(box.ask, name) for name in "ab"]
        eventually(lambda: running(box) == {"a": "starting", "b": "starting"})
        assert [one.result()["counter"] for one in asked] == [1, 1]
    assert running(box) == {"a": "ready", "b": "ready"}


def leave(box: Box, model: str) -> None:
    """Ask, and go away without an answer."""
    body = json.dumps({"model": model, "messages": []}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", box.port)) as one:
        one.sendall(head.encode() + b"\r\n\r\n" + body)
        time.sleep(0.3)


def test_who_leaves_while_a_model_starts_is_served_nothing(box: Box):
    box.has("a", options="--start-delay 3")
    box.has("b")
    box.start()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(box.ask, "a")
        eventually(lambda: running(box) == {"a": "starting"})
        leave(box, "a")
        leave(box, "b")
        assert asked.result()["counter"] == 1
    assert box.ask("a")["counter"] == 2
    time.sleep(1.5)  # longer than minLoaded: b would be started now
    assert running(box) == {"a": "ready"}


@pytest.mark.slow
def test_who_waits_counts_for_the_limit_of_a_model(box: Box):
    box.has("a", options="--start-delay 3", concurrencyLimit=2)
    box.start()
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(box.ask, "a")
        eventually(lambda: running(box) == {"a": "starting"})
        leave(box, "a")  # what it had is free again
        other = pool.submit(box.ask, "a")
        time.sleep(0.3)
        status, told = post(box, "/v1/chat/completions", model="a", messages=[])
        assert (status, told["error"]["code"]) == (429, "too_many_requests")
        assert {asked.result()["counter"], other.result()["counter"]} == {1, 2}


def test_the_end_of_a_box_answers_who_waits(box: Box):
    box.has("a", checkEndpoint="/no-such-path")
    box.start()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, box, "/v1/chat/completions", model="a", messages=[])
        eventually(lambda: running(box) == {"a": "starting"})
        assert box.end() == 0
        assert asked.result()[0] == 503
