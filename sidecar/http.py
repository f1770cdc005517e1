"""HTTP and TCP probes, both of which come as HTTP requests; scrapes are no different.

A TCP probe is turned into one by the webhook, since a listening socket of ours would complete
the kubelet's handshake before we know whether the workload's would.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from sidecar.verdict import Verdict

if TYPE_CHECKING:
    from sidecar.turn import Socket, Turn

_HEAD_LIMIT = 16384
_HEAD_SECONDS = 5.0
_PIECE = 65536


def serve(turn: Turn) -> None:
    """Read the kubelet's request and answer it. Raises OSError if the kubelet hangs up."""
    turn.client.settimeout(_HEAD_SECONDS)
    head = _read_head(turn.client)
    if not head:
        return
    verdict = turn.verdict()
    if verdict is not Verdict.ASK:
        _say(turn, verdict, turn.sentence())
        return
    try:
        upstream = _connect(turn)
    except OSError as error:
        _failed(turn, f"port {turn.probe.port} of the workload: {error.strerror or error}")
        return
    with upstream:
        if turn.probe.kind == "tcp":
            turn.succeeded()
            _say(turn, Verdict.YES, f"port {turn.probe.port} accepts connections")
        else:
            _relay(turn, upstream, head)


def _read_head(client: Socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        part = client.recv(4096)
        if not part or len(head) > _HEAD_LIMIT:
            return b""
        head += part
    return head


def _connect(turn: Turn) -> Socket:
    upstream = turn.connect()
    if turn.probe.kind == "https":
        # The kubelet verifies no certificate either. Loaded only where it is used: it is large.
        import ssl  # noqa: PLC0415

        context = ssl._create_unverified_context()  # noqa: S323, SLF001
        return context.wrap_socket(upstream)
    return upstream


def _relay(turn: Turn, upstream: Socket, head: bytes) -> None:
    """Pass the request on, and the answer back once its status is known."""
    upstream.sendall(_for_workload(turn, head))
    upstream.setblocking(False)
    answer = _begin(turn, upstream)
    if isinstance(answer, Verdict):
        _say(turn, answer, turn.sentence())
        return
    status = _status(answer)
    if 200 <= status < 400:
        turn.succeeded()
    elif turn.spared():
        _failed(turn, f"port {turn.probe.port} answers {status or 'no HTTP'}")
        return
    else:
        turn.failed(f"port {turn.probe.port} answers {status or 'no HTTP'}")
    turn.client.sendall(answer)
    _pump(turn, upstream)


def _for_workload(turn: Turn, head: bytes) -> bytes:
    """The request as the workload would get it: with its own port in Host, and alone."""
    lines = [line for line in head.split(b"\r\n") if line[:11].lower() != b"connection:"]
    lines.insert(1, b"Connection: close")
    ours = b":%d" % turn.probe.listen
    for number, line in enumerate(lines):
        if line[:5].lower() == b"host:" and line.endswith(ours):
            lines[number] = line.removesuffix(ours) + b":%d" % turn.probe.port
    return b"\r\n".join(lines)


def _begin(turn: Turn, upstream: Socket) -> bytes | Verdict:
    """The answer's first bytes, its status line among them; or what the seat says meanwhile."""
    answer = b""
    while b"\r\n" not in answer:
        ready = turn.wait(upstream, turn.client)
        if not ready:
            return Verdict.YES
        if None in ready and (verdict := turn.verdict()) is not Verdict.ASK:
            return verdict
        if turn.client in ready:
            raise OSError("the kubelet has hung up")
        part = _receive(upstream) if upstream in ready else None
        if part == b"":
            return answer
        answer += part or b""
    return answer


def _receive(upstream: Socket) -> bytes | None:
    """What has come, empty at the end, None if nothing has."""
    try:
        return upstream.recv(_PIECE)
    except BlockingIOError:
        return None
    except OSError as error:
        # ssl.SSLWantReadError, without loading ssl to name it.
        if error.errno == 2 and type(error) is not OSError:
            return None
        raise


def _status(answer: bytes) -> int:
    words = answer.split(b"\r\n", 1)[0].split(b" ")
    if not words[0].startswith(b"HTTP/") or len(words) < 2 or not words[1].isdigit():
        return 0
    return int(words[1])


def _pump(turn: Turn, upstream: Socket) -> None:
    """The rest of the answer, until one of the two hangs up or the seat is being parked."""
    while True:
        part = _receive(upstream)
        if part == b"":
            return
        if part:
            turn.client.sendall(part)
            continue
        ready = turn.wait(upstream, turn.client, patient=True)
        if turn.client in ready:
            return
        if None in ready and turn.verdict() is not Verdict.ASK:
            return


def _failed(turn: Turn, sentence: str) -> None:
    turn.failed(sentence)
    if turn.spared():
        _say(turn, Verdict.YES, f"{sentence}; it is in its start-up time")
    else:
        _say(turn, Verdict.NO, sentence)


def _say(turn: Turn, verdict: Verdict, sentence: str) -> None:
    status = "200 OK" if verdict is Verdict.YES else "503 Service Unavailable"
    # To Prometheus a comment: no samples, and no failed scrape either.
    body = f"{'# ' if turn.probe.role == 'scrape' else ''}{sentence}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    turn.client.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
    turn.client.shutdown(socket.SHUT_WR)
