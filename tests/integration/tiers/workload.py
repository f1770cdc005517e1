"""A server that counts its answers, says who it is, and prints a line now and then."""

import http.server
import itertools
import os
import sys
import threading
import time

answers = itertools.count(1)
memory = os.urandom(4 << 20)


class Handler(http.server.BaseHTTPRequestHandler):
    """One answer: number, PID, and what no other process knows."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{next(answers)} {os.getpid()} {hash(memory)}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Only `tick` prints."""


def tick() -> None:
    for number in itertools.count(1):
        print("line", number, flush=True)
        time.sleep(0.1)


threading.Thread(target=tick, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
