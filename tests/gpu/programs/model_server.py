"""A PyTorch model of random weights behind /v1/chat/completions, for `kybernate serve`."""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.gpu.programs.weights import layers


class Handler(BaseHTTPRequestHandler):
    """One connection; the class's `answer` computes."""

    protocol_version = "HTTP/1.1"
    answer: Any = None
    lock = threading.Lock()

    def do_GET(self) -> None:
        """It listens once it serves."""
        self._send({"status": "ok"})

    def do_POST(self) -> None:
        """The same answer to whatever is asked."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.lock:
            found = type(self).answer()
        message = {"role": "assistant", "content": found}
        self._send({"object": "chat.completion", "choices": [{"index": 0, "message": message}]})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is inherited
        """Say nothing per request."""

    def _send(self, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = layers(options.bytes, seed=options.seed)
    Handler.answer = staticmethod(found)
    found()
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
