"""A toy model server: GPU memory with checked content behind an OpenAI-compatible API.

It answers with words that mean nothing, but each answer carries a counter kept in device memory and
a checksum over that memory, in a field `kyb` and in headers, so that lost or stale state shows:

    {"counter": 7, "device": [7], "checksum": "1c2f…", "expected": "1c2f…", "boot": "…", "pid": 1}

`boot` is drawn anew at each start, so a cold start is not taken for lost state. It runs unchanged
on a real GPU and listens only when its memory is filled.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

from tests.workloads import health
from tests.workloads.device import CudaError, Memory, given_gpus, size

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS = ("a", "seat", "waits", "until", "its", "model", "wakes", "with", "all", "it", "knew")
_METRICS = b"".join(
    b"vllm:%b 0\n" % one
    for one in (b"num_requests_waiting", b"num_requests_running", b"kv_cache_usage_perc")
)
"""By these an endpoint picker knows that the server isn't overloaded."""
_MAX_TOKENS = 65536
_MAX_BODY = 16 << 20


class BadRequestError(Exception):
    """What a client asked for can't be answered; `status` says how."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Model:
    """The one model that this server serves. `delay` is the time per token in seconds."""

    def __init__(self, name: str, memory: Memory, delay: float) -> None:
        self.name = name
        self.memory = memory
        self.delay = delay
        self.boot = uuid.uuid4().hex
        self.sick = threading.Event()

    def state(self) -> dict[str, Any]:
        """Count this request and say what the device memory holds."""
        counter, device, checksum = self.memory.count()
        return {
            "counter": counter,
            "device": device,
            "checksum": checksum,
            "expected": self.memory.expected,
            "boot": self.boot,
            "pid": os.getpid(),
        }

    def words(self, count: int, delay: float) -> Iterator[str]:
        """The answer, one token at a time."""
        for number, word in zip(range(count), itertools.cycle(_WORDS)):
            if delay:
                time.sleep(delay)
            yield word if number == 0 else f" {word}"


class Server(ThreadingHTTPServer):
    """HTTP server of a model; every connection has a thread."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], model: Model) -> None:
        super().__init__(address, Handler)
        self.model = model


class Handler(BaseHTTPRequestHandler):
    """One connection. Each response leaves in one write, so that no packet waits for another."""

    protocol_version = "HTTP/1.1"

    @property
    def model(self) -> Model:
        """The model behind this connection's server."""
        return cast("Server", self.server).model

    def setup(self) -> None:
        """Switch Nagle's algorithm off: streamed tokens are small."""
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        """Health, the list of models, metrics as vLLM's, and which GPUs this process uses and could
        open."""
        model = self.model
        if self.path == "/health":
            sick = model.sick.is_set()
            self._send(503 if sick else 200, {"status": "sick" if sick else "ok"})
        elif self.path == "/v1/models":
            entry = {"id": model.name, "object": "model", "created": 0, "owned_by": "toy"}
            self._send(200, {"object": "list", "data": [entry]})
        elif self.path == "/metrics":
            self._head(200, {"Content-Length": str(len(_METRICS))}, _METRICS)
        elif self.path == "/debug/gpus":
            env = {name: value for name, value in os.environ.items() if name.startswith("KYB_")}
            told = {"gpus": [gpu.uuid for gpu in model.memory.gpus], "given": given_gpus()}
            self._send(200, {**told, "pid": os.getpid(), "boot": model.boot, "env": env})
        else:
            self._fail(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        """Chat completions, plain or streamed."""
        try:
            request = self._read()
            if self.path == "/v1/chat/completions":
                self._complete(request)
            elif self.path == "/debug/sick":
                self.model.sick.set()
                self._send(200, {"status": "sick"})
            elif self.path in ("/kyb/park", "/kyb/wake"):
                print(json.dumps({"asked": self.path}), flush=True)
                self._send(200, {})
            else:
                self._fail(404, f"there is no {self.path}")
        except BadRequestError as error:
            self._fail(error.status, str(error))
        except CudaError as error:
            self._fail(500, f"the GPU refused: {error}")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is inherited
        """Say nothing per request."""

    def _read(self) -> dict[str, Any]:
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        try:
            request = json.loads(self._chunks() if chunked else self._whole())
        except ValueError as error:
            raise BadRequestError(400, f"the body is not JSON: {error}") from error
        if not isinstance(request, dict):
            raise BadRequestError(400, "the body must be a JSON object")
        return request

    def _whole(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self.close_connection = True
            raise BadRequestError(411, "send a Content-Length of at most 16 MiB, or chunks")
        return self.rfile.read(int(length))

    def _chunks(self) -> bytes:
        """A body of unknown length, as a gateway passes on that reads it on its way."""
        body = b""
        while size := int(self.rfile.readline(64).split(b";")[0], 16):
            if len(body) + size > _MAX_BODY:
                self.close_connection = True
                raise BadRequestError(413, "send at most 16 MiB")
            body += self.rfile.read(size)
            self.rfile.readline(64)
        while self.rfile.readline(4096).strip():
            pass
        return body

    def _complete(self, request: dict[str, Any]) -> None:
        model = self.model
        if request.get("model", model.name) != model.name:
            raise BadRequestError(404, f"this server has {model.name}, not {request['model']}")
        tokens = request.get("max_completion_tokens", request.get("max_tokens", 16))
        delay = request.get("token_delay", model.delay)
        if not isinstance(tokens, int) or not 1 <= tokens <= _MAX_TOKENS:
            raise BadRequestError(400, f"max_tokens must be from 1 to {_MAX_TOKENS}")
        if not isinstance(delay, int | float) or not 0 <= delay <= 60:
            raise BadRequestError(400, "token_delay must be from 0 to 60 seconds")
        state = model.state()
        prompt = len(str(request.get("messages", "")).split())
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
        }
        common = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}
        common["model"] = model.name
        if request.get("stream"):
            self._stream(common, state, usage, model.words(tokens, delay))
            return
        message = {"role": "assistant", "content": "".join(model.words(tokens, delay))}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        answer = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
        self._send(200, {**answer, "kyb": state}, _headers(state))

    def _stream(
        self,
        common: dict[str, Any],
        state: dict[str, Any],
        usage: dict[str, int],
        words: Iterator[str],
    ) -> None:
        """Server-sent events in chunks; the last event before [DONE] carries the state."""
        kind = {**common, "object": "chat.completion.chunk"}
        head = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        self._head(200, {**head, "Cache-Control": "no-cache", **_headers(state)})
        for number, word in enumerate(words):
            delta = {"role": "assistant", "content": word} if number == 0 else {"content": word}
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            self._event(json.dumps({**kind, "choices": [choice]}))
        choice = {"index": 0, "delta": {}, "finish_reason": "length"}
        self._event(json.dumps({**kind, "choices": [choice], "usage": usage, "kyb": state}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))

    def _fail(self, status: int, message: str) -> None:
        kind = "invalid_request_error" if status < 500 else "server_error"
        self._send(status, {"error": {"message": message, "type": kind, "code": None}})

    def _send(
        self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        raw = json.dumps(body).encode()
        kind = {"Content-Type": "application/json", "Content-Length": str(len(raw))}
        self._head(status, {**kind, **(headers or {})}, raw)

    def _head(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        """Send the head together with what follows it."""
        lines = [f"HTTP/1.1 {status} {self.responses[status][0]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if self.close_connection:
            lines.append("Connection: close")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def _headers(state: dict[str, Any]) -> dict[str, str]:
    return {
        "X-Kyb-Counter": str(state["counter"]),
        "X-Kyb-Checksum": state["checksum"],
        "X-Kyb-Expected": state["expected"],
    }


def main() -> int:
    """Serve until SIGTERM. The exit status is 1 if the GPU refused the memory."""
    options = _options()
    time.sleep(options.start_delay)
    try:
        memory = Memory(options.bytes, options.fill, options.seed, unlike=options.unlike)
    except CudaError as error:
        problem = f"cannot hold {options.bytes} bytes per GPU and fill {options.fill or 'all'}"
        print(f"{problem}: {error}", file=sys.stderr, flush=True)
        return 1
    server = Server((options.host, options.port), Model(options.model, memory, options.token_delay))
    for number in (signal.SIGTERM, signal.SIGINT):
        # shutdown() waits for the loop that this handler interrupts, hence the thread.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    if options.health_port:
        health.serve(options.host, options.health_port, lambda: not server.model.sick.is_set())
    port = server.server_address[1]
    uses = [gpu.uuid for gpu in memory.gpus]
    told = {"model": options.model, "port": port, "bytes": options.bytes, "gpus": uses}
    print(json.dumps({**told, "given": given_gpus()}), flush=True)
    with server:
        server.serve_forever(poll_interval=0.1)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="toy", help="the name it is served under")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--health-port", type=int, default=0, help="of gRPC health; 0: none")
    parser.add_argument("--bytes", type=size, default=size("1GiB"), help="per GPU; 0: a context")
    parser.add_argument(
        "--fill", type=size, default=None, help="so many of these are filled and checked; all"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--unlike", action="store_true", help="no MiB is filled as another: nothing repeats"
    )
    parser.add_argument("--start-delay", type=float, default=0.0, help="seconds")
    parser.add_argument("--token-delay", type=float, default=0.0, help="seconds per token")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
