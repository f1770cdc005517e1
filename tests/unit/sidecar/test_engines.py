"""Cooperation: what engines are asked, and what becomes of those that fail or hang."""

from __future__ import annotations

import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sidecar.engines import Engine
from sidecar.link import Link
from tests.unit.sidecar.conftest import Process1, until


class Api(BaseHTTPRequestHandler):
    def do_POST(self):
        alone = self.server.one.acquire(blocking=False)
        self.server.beside = self.server.beside or not alone
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.seen.append((self.path, body))
        if self.path == self.server.hangs:
            self.server.held.wait(10)
        if alone:
            self.server.one.release()
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def api():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads = True
    server.seen, server.status, server.hangs = [], 200, ""
    server.held, server.one, server.beside = threading.Event(), threading.Lock(), False
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.held.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def first():
    with tempfile.TemporaryDirectory(prefix="kyb-") as folder:
        made = Process1(Path(folder) / "init.sock")
        yield made
        made.hang_up()


def begin(first, kind, port):
    engine = Engine(kind, port)
    link = Link(str(first.path), kind, engine.on_cooperate)
    engine.serve(link)
    link.start()
    until(lambda: first.verbs("watch"), "the link does not connect")
    assert first.verbs("watch") == [["watch", "1", kind]]


def ask(first, phase, limit="5000"):
    before = len(first.verbs("cooperated"))
    first.send("cooperate", phase, limit)
    until(lambda: len(first.verbs("cooperated")) > before, "no answer")
    return first.verbs("cooperated")[-1][1:]


@pytest.mark.parametrize(
    ("kind", "park", "wake"),
    [
        ("vllm", ("/sleep?level=1", ""), ("/wake_up", "")),
        (
            "sglang",
            ("/release_memory_occupation", '{"tags": ["kv_cache"]}'),
            ("/resume_memory_occupation", '{"tags": ["kv_cache"]}'),
        ),
        ("http", ("/kyb/park", "{}"), ("/kyb/wake", "{}")),
    ],
)
def test_each_engine_is_asked_in_its_own_words(first, api, kind, park, wake):
    begin(first, kind, api.server_address[1])
    assert ask(first, "park")[:2] == ["park", "done"]
    assert ask(first, "wake")[:2] == ["wake", "done"]
    assert api.seen == [park, wake]


def test_an_engine_that_refuses_or_is_not_there_is_told_as_such(first, api):
    begin(first, "vllm", api.server_address[1])
    api.status = 404
    phase, result, said = ask(first, "park")
    assert (phase, result) == ("park", "failed")
    assert "POST /sleep?level=1 is answered by 404" in said
    api.shutdown()
    api.server_close()
    phase, result, said = ask(first, "wake")
    assert (phase, result) == ("wake", "failed")
    assert "refused" in said


def test_an_engine_that_hangs_is_given_up_at_the_deadline(first, api):
    api.hangs = "/kyb/park"
    begin(first, "http", api.server_address[1])
    phase, result, said = ask(first, "park", "100")
    assert (phase, result) == ("park", "failed")
    assert "time" in said


def test_an_engine_for_which_no_thread_can_start_is_told_as_such(first, api, monkeypatch):
    begin(first, "http", api.server_address[1])
    start = threading.Thread.start

    def full(thread):
        if thread.name.startswith("engine-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", full)
        assert ask(first, "park") == ["park", "failed", "can't start new thread"]
    assert ask(first, "park")[:2] == ["park", "done"]


def test_a_limit_that_no_clock_can_wait_for_is_told_as_such(first, api):
    begin(first, "http", api.server_address[1])
    assert ask(first, "park", "9" * 300)[:2] == ["park", "failed"]
    assert ask(first, "park")[:2] == ["park", "done"]


def test_a_later_question_makes_the_earlier_void(first, api):
    api.hangs = "/kyb/park"
    begin(first, "http", api.server_address[1])
    first.send("cooperate", "park", "300")
    until(lambda: api.seen, "the engine was not asked")
    assert ask(first, "wake")[:2] == ["wake", "done"]
    assert [fields[1] for fields in first.verbs("cooperated")] == ["wake"]


def test_a_park_waits_until_a_wake_is_answered(first, api):
    """The engine would carry out a wake that was given up: beside the park, or behind it."""
    api.hangs = "/kyb/wake"
    begin(first, "http", api.server_address[1])
    first.send("cooperate", "wake", "10000")
    until(lambda: api.seen, "the engine was not asked")
    threading.Timer(0.5, api.held.set).start()
    assert ask(first, "park", "10000")[:2] == ["park", "done"]
    assert not api.beside
    assert [path for path, _ in api.seen] == ["/kyb/wake", "/kyb/park"]


def test_a_park_behind_a_wake_that_hangs_is_given_up_at_its_deadline(first, api):
    api.hangs = "/kyb/wake"
    begin(first, "http", api.server_address[1])
    first.send("cooperate", "wake", "10000")
    until(lambda: api.seen, "the engine was not asked")
    phase, result, said = ask(first, "park", "100")
    assert (phase, result, len(api.seen)) == ("park", "failed", 1)
    assert "not answered yet" in said


def test_an_engine_left_asleep_by_a_park_that_was_given_up_is_woken(first, api):
    begin(first, "vllm", api.server_address[1])
    ask(first, "park")
    first.tell("parking")
    first.tell("active")
    until(lambda: ("/wake_up", "") in api.seen, "it was left asleep")


def test_an_engine_that_was_never_asked_is_left_alone(first, api):
    begin(first, "vllm", api.server_address[1])
    first.tell("parking")
    first.tell("active")
    assert ask(first, "what")[1] == "failed"
    assert api.seen == []
