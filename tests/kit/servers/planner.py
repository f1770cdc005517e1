"""An extender that answers questions for plans as a test says, over mutual TLS."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Json = dict[str, Any]


class Extender:
    """Answers all questions for plans with `answer`, or as `answers` says, given the path, and
    keeps what was asked."""

    def __init__(self, tls: Path) -> None:
        self.asked: list[str] = []
        self.answer: Json = {}
        self.answers: Callable[[str], Json] = lambda _: self.answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                answer = outer.answers(self.path)
                body = json.dumps(answer).encode()
                self.send_response(200 if "room" in answer else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Not told."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls / "ca.crt"))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(tls / "extender.crt", tls / "extender.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def plans(self, namespace: str, uid: str, name: str = "a", hash_: str = "h1") -> None:
        """That this pod goes to G1."""
        step = {
            "kind": "move",
            "pod": f"{namespace}/{name}",
            "uid": uid,
            "from": {"node": "n1", "group": "G0"},
            "to": {"node": "n1", "group": "G1"},
            "seconds": 3.0,
            "bytes": 1 << 30,
        }
        plan = {"room": True, "id": hash_, "moves": 1, "seconds": 3.0, "steps": [step]}
        self.answer = {**plan, "sentences": ["1 move makes room, for 3 s in all."]}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
