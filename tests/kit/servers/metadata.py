"""A cloud's metadata server, as far as spot notices go: AWS's by IMDSv2, and Google's."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "a-token"


class Metadata:
    """`goes`: of AWS, the time in its notice, empty for none; of Google, anything for TRUE.
    `status`: what all is answered with instead, if it isn't 0."""

    def __init__(self) -> None:
        self.goes = ""
        self.status = 0
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        """Status and body."""
        self.asked.append(f"{method} {path}")
        if self.status:
            return self.status, "<html>"
        if (method, path) == ("PUT", "/latest/api/token"):
            known = headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit()
            return (200, TOKEN) if known else (400, "")
        if path == "/latest/meta-data/spot/instance-action":
            return self._aws(headers.get("X-aws-ec2-metadata-token"))
        if path == "/computeMetadata/v1/instance/preempted":
            known = headers.get("Metadata-Flavor") == "Google"
            return (200, "TRUE" if self.goes else "FALSE") if known else (403, "")
        return 404, ""

    def _aws(self, token: str) -> tuple[int, str]:
        if token != TOKEN:
            return 401, ""
        body = json.dumps({"action": "terminate", "time": self.goes})
        return (200, body) if self.goes else (404, "")


def _handler(metadata: Metadata) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            """Quiet."""

        def _answer(self) -> None:
            status, body = metadata.answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    return Handler
