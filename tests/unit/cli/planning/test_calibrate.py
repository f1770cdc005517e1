"""`kybernate calibrate --url`, beside boxes that are none, or busy, or old."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from kybernate.cli import main as kybernate

GIB = 1 << 30
LANES = {"GPU-0": {"memory": 80 * GIB}, "GPU-1": {"memory": 48 * GIB}}
BOX = {"acts": ["park", "wake", "pin", "unload"], "lanes": LANES}
PARK = {"checkpoint": 2.0, "freeze": 0.25, "confirm": 0.25, "all": 3.0}
WAKE = {"thaw": 0.1, "restore": 1.0, "all": 1.5}


def model(state, phases, **more):
    tier = "ram" if state == "parked" else ""
    return {"state": state, "tier": tier, "bytes": 10 * GIB, "phases": phases, **more}


@contextmanager
def served(page=BOX, park=None, wake=None):
    """A box that answers so, or by a status and a text; its URL, and what it was asked."""
    asked = []
    answers = {
        "park": park or model("parked", PARK),
        "wake": wake or model("active", WAKE),
    }

    class Box(BaseHTTPRequestHandler):
        def do_GET(self):
            told = page if isinstance(page, tuple) else f"event: page\ndata: {json.dumps(page)}\n\n"
            self.say(told)

        def do_POST(self):
            act, _, name = self.path.removeprefix("/below/api/models/").partition("/")
            asked.append((act, name, self.headers.get("Authorization")))
            self.say(answers[act])

        def say(self, told):
            status, text = told if isinstance(told, tuple) else (200, told)
            body = (text if isinstance(text, str) else json.dumps(text)).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Box)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/below/", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def calibrated(*words):
    return CliRunner().invoke(kybernate, ["calibrate", *words])


def test_the_drivers_copy_is_told_from_the_rest_and_the_smallest_gpu_counts():
    with served() as (url, asked):
        done = calibrated("a", "org/b", "--url", url, "--key", "sesame", "--rounds", "1")
    assert done.exit_code == 0, done.output
    text = done.output[done.output.index("{") :]
    size = 10 * GIB / 1e9
    assert json.loads(text) == {
        "version": 1,
        "gpu_gb": pytest.approx(48 * GIB / 1e9, rel=1e-3),
        "wake": pytest.approx(size / 1.0, rel=1e-3),
        "park": pytest.approx(size / 2.0, rel=1e-3),
        "fixed": pytest.approx(0.75),  # between 1.0 and 0.5
    }
    each = [
        (act, name, "Bearer sesame") for name in ("a", "org/b") for act in ("wake", "park", "wake")
    ]
    assert asked == each


@pytest.mark.parametrize(
    ("box", "said"),
    [
        ({"page": (404, "<html>")}, "answers 404, as no box does: is --url right?"),
        ({"page": (200, "hello")}, "answers as no box does: is --url right?"),
        ({"page": {**BOX, "lanes": {}}}, "answers as no box does"),
        (
            {"page": {**BOX, "acts": []}},
            "it is a cluster's proxy. Calibrate on a node, by --socket",
        ),
        ({"page": (401, {"error": {"message": "Send a key."}})}, "Send a key; give one by --key"),
        ({"park": (409, {"error": "model a is pinned: unpin it"})}, "Error: model a is pinned"),
        ({"park": (504, {"error": "model a is draining: x"})}, "once that is done, run this again"),
        ({"park": (200, "OK")}, "is older than this command: update it"),
        ({"park": model("active", WAKE)}, "Run this while nobody asks for it"),
        ({"park": model("parked", {}, bytes=0)}, "seat a holds no GPU memory"),
        ({"park": model("parked", {})}, "what the park of a took is not known"),
    ],
)
def test_what_is_in_the_way_is_told_with_what_to_do(box, said):
    with served(**box) as (url, _):
        failed = calibrated("a", "--url", url)
    assert failed.exit_code == 1
    assert said in failed.output
    assert "Traceback" not in failed.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "box:8080"), "write http://HOST:PORT of kybernate serve"),
        (("--url", "http://me:secret@box:8080"), "write http://HOST:PORT of kybernate serve"),
        (("--url", "http://box", "--socket", "/run/a"), "name one of them"),
    ],
)
def test_a_url_is_a_boxs_alone(words, said):
    failed = calibrated("a", *words)
    assert failed.exit_code == 2
    assert said in failed.output
    assert "secret" not in failed.output


def test_without_an_agent_a_box_is_pointed_to(tmp_path):
    failed = calibrated("a", "--socket", str(tmp_path / "none.sock"))
    assert failed.exit_code == 1
    assert "a box (kybernate serve) has none: name it by --url" in failed.output
