"""The first requests in the pod of a SnapshotTemplate."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench.processes import free_port
from sidecar import warmup
from tests.unit.sidecar.conftest import until
from tests.unit.sidecar.test_process import listening


class Model(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"")

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body):
        self.server.seen.append((self.command, self.path, body.decode()))
        loading = self.path == "/health" and len(self.server.seen) < 3
        self.send_response(503 if loading else 500 if self.path == "/broken" else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        if self.path == "/slow":
            self.server.held.wait(10)
        with suppress(OSError):
            self.wfile.write(b"{}")

    def log_message(self, *args):
        pass


@pytest.fixture
def model():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.daemon_threads = True
    server.seen, server.held = [], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.held.set()
    server.shutdown()
    server.server_close()


def told(port, ready="", within=5.0, *requests):
    return json.dumps({"port": port, "ready": ready, "requests": requests, "within": within})


def test_it_waits_until_it_is_ready_asks_in_order_and_says_so(model):
    asked = [("POST", "/v1/completions", '{"a": 1}'), ("GET", "/v1/models", "")]
    port = free_port()
    wanted = warmup.read(told(model.server_port, "/health", 5.0, *asked))
    threading.Thread(target=warmup.run, args=(wanted, port), daemon=True).start()
    until(lambda: listening(port), "it doesn't say that it is done")
    assert [one[1] for one in model.seen[:3]] == ["/health"] * 3
    assert model.seen[3:] == asked
    # Whoever asks finds it there each time.
    assert listening(port)


def test_a_process_that_fails_says_why(model):
    what = told(model.server_port, "", 5.0, ("POST", "/broken", "{}"))
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", f"--warm-up={what}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "kyb-sidecar: POST /broken was answered with 500\n"


def test_its_time_is_kept_also_by_an_answer_that_does_not_end(model):
    slow = warmup.read(told(model.server_port, "", 0.3, ("GET", "/slow", "")))
    with pytest.raises(warmup.ColdError, match="GET /slow was not answered"):
        warmup.run(slow)
    port = free_port()
    with pytest.raises(warmup.ColdError, match="its time is over: GET /health was not"):
        warmup.run(warmup.read(told(port, "/health", 0.3)))
    with pytest.raises(warmup.ColdError, match="warm-up="):
        warmup.read("{}")
