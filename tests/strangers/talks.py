"""Clients: each asks for the next number on a connection of its own, kept or new."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import uuid
from contextlib import suppress
from typing import Any, Protocol

import psycopg
import websocket

from tests.kit.clients.served import said

PORT = 8000
LIMIT = 30.0


class Talk(Protocol):
    """One connection to the server at an address."""

    def __init__(self, address: str) -> None:
        """Raises OSError while nobody listens there."""
        ...

    def next(self) -> tuple[int, str]:
        """A number one above that of the last answer of all, and what no other server knows."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Http:
    """HTTP, kept alive: the answer's body is both."""

    def __init__(self, address: str) -> None:
        self._link = http.client.HTTPConnection(address, PORT, timeout=LIMIT)
        self._link.connect()

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        self._link.request("GET", "/")
        answer = self._link.getresponse()
        body = answer.read().decode()
        if answer.status != 200:
            raise AssertionError(f"{answer.status}: {body[:500]}")
        number, _, token = body.partition(" ")
        return int(number), token

    def close(self) -> None:
        """See `Talk`."""
        self._link.close()


class Memcached:
    """Its text protocol: a counter, and who has it by the server's start."""

    def __init__(self, address: str) -> None:
        self._link = socket.create_connection((address, PORT), LIMIT)
        self._read = self._link.makefile("rb")

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        self._say(b"add count 0 0 1\r\n0")
        number = int(self._say(b"incr count 1"))
        self._link.sendall(b"stats\r\n")
        stats = {}
        while (line := self._line()) != "END":
            _, name, value = line.split(" ", 2)
            stats[name] = value
        return number, f"{stats['pid']} {stats['threads']}"

    def _say(self, words: bytes) -> str:
        self._link.sendall(words + b"\r\n")
        return self._line()

    def _line(self) -> str:
        line = self._read.readline()
        if not line:
            raise ConnectionError("memcached hung up")
        return line.decode().strip()

    def close(self) -> None:
        """See `Talk`."""
        self._read.close()
        self._link.close()


class Redis:
    """Its protocol: a counter, and the server's own name for its run."""

    def __init__(self, address: str) -> None:
        self._link = socket.create_connection((address, PORT), LIMIT)

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        number = said(self._link, "INCR", "count")
        told = said(self._link, "INFO", "server").decode().splitlines()
        return int(number[1:]), next(line for line in told if line.startswith("run_id:"))

    def close(self) -> None:
        """See `Talk`."""
        self._link.close()


class Beanstalk:
    """Its protocol: the number of the next job, and the server's own name for itself."""

    def __init__(self, address: str) -> None:
        self._link = socket.create_connection((address, PORT), LIMIT)
        self._read = self._link.makefile("rb")

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        self._link.sendall(b"put 0 0 60 1\r\nx\r\n")
        number = int(self._read.readline().split()[1])
        self._link.sendall(b"stats\r\n")
        size = int(self._read.readline().split()[1])
        told = self._read.read(size + 2).decode().splitlines()
        return number, next(line for line in told if line.startswith("id: "))

    def close(self) -> None:
        """See `Talk`."""
        self._read.close()
        self._link.close()


class Etcd:
    """Its JSON over HTTP: the revision, which each write makes one more, and who leads since
    when."""

    def __init__(self, address: str) -> None:
        self._link = http.client.HTTPConnection(address, PORT, timeout=LIMIT)
        self._link.connect()

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        self._link.request("POST", "/v3/kv/put", json.dumps({"key": "eA==", "value": "eA=="}))
        head = json.load(self._link.getresponse())["header"]
        return int(head["revision"]) - 1, f"{head['member_id']} {head['raft_term']}"

    def close(self) -> None:
        """See `Talk`."""
        self._link.close()


class Prometheus:
    """How often it said that it is well, by its own count, and since when it runs."""

    def __init__(self, address: str) -> None:
        self._link = http.client.HTTPConnection(address, PORT, timeout=LIMIT)
        self._link.connect()
        try:
            self._get("/-/ready")
        except OSError:
            self._link.close()
            raise

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        self._get("/-/healthy")
        lines = dict(line.rsplit(" ", 1) for line in self._get("/metrics").splitlines())
        number = lines['prometheus_http_requests_total{code="200",handler="/-/healthy"}']
        # By its own clock: `process_start_time_seconds` is the kernel's, and a restore's.
        told = json.loads(self._get("/api/v1/status/runtimeinfo"))
        return int(number), told["data"]["startTime"]

    def _get(self, path: str) -> str:
        self._link.request("GET", path)
        answer = self._link.getresponse()
        body = answer.read().decode()
        if answer.status != 200:
            raise ConnectionRefusedError(body)
        return body

    def close(self) -> None:
        """See `Talk`."""
        self._link.close()


class Llama:
    """A token more each time, by the server's own count; the model says always the same. It hangs
    up on whoever says nothing for 5 s, so each question has a connection of its own."""

    def __init__(self, address: str) -> None:
        self._link = http.client.HTTPConnection(address, PORT, timeout=LIMIT)
        if self._ask("GET", "/health")[0] != 200:
            raise ConnectionRefusedError("the model isn't loaded yet")

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        asked = {"prompt": "once upon", "n_predict": 1, "temperature": 0}
        status, answer = self._ask("POST", "/completion", json.dumps(asked))
        if status != 200:
            raise AssertionError(answer)
        _, told = self._ask("GET", "/metrics")
        lines = dict(line.split(" ", 1) for line in told.splitlines() if line[:1] != "#")
        return int(lines["llamacpp:tokens_predicted_total"]), json.loads(answer)["content"]

    def _ask(self, verb: str, path: str, body: str | None = None) -> tuple[int, str]:
        self._link.request(verb, path, body, {"Content-Type": "application/json"})
        answer = self._link.getresponse()
        said = answer.read().decode()
        self._link.close()
        return answer.status, said

    def close(self) -> None:
        """See `Talk`."""
        self._link.close()


TOKEN = "kyb"
"""A notebook server's: whoever has it may come from anywhere."""
_AUTHORIZED = {"Authorization": f"token {TOKEN}"}


class Notebook:
    """A cell that is run in the one kernel that there is, over a WebSocket of one's own."""

    _CELL = (
        "import os, uuid\nnumber = globals().get('number', 0) + 1\n"
        "token = globals().get('token') or f'{uuid.uuid4()} {os.getpid()}'\nprint(number, token)"
    )

    def __init__(self, address: str) -> None:
        link = http.client.HTTPConnection(address, PORT, timeout=LIMIT)
        link.connect()
        try:
            kernels = self._ask(link, "GET") or [self._ask(link, "POST", '{"name": "python3"}')]
        finally:
            link.close()
        self._id = kernels[0]["id"]
        self._socket = websocket.create_connection(
            f"ws://{address}:{PORT}/api/kernels/{self._id}/channels",
            timeout=LIMIT,
            header=_AUTHORIZED,
        )

    @staticmethod
    def _ask(link: http.client.HTTPConnection, verb: str, body: str | None = None) -> Any:
        link.request(verb, "/api/kernels", body, _AUTHORIZED)
        answer = link.getresponse()
        said = answer.read().decode()
        if answer.status >= 300:
            raise ConnectionRefusedError(said)
        return json.loads(said)

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        name = uuid.uuid4().hex
        head = {"msg_id": name, "msg_type": "execute_request", "session": name, "username": ""}
        content = {"code": self._CELL, "silent": False, "allow_stdin": False}
        sent = {"header": head, "parent_header": {}, "metadata": {}, "content": content}
        self._socket.send(json.dumps({**sent, "channel": "shell"}))
        while True:
            told = json.loads(self._socket.recv())
            if told["parent_header"].get("msg_id") != name:
                continue
            if told["msg_type"] == "error":
                raise AssertionError(told["content"])
            if told["msg_type"] == "stream":
                number, _, token = told["content"]["text"].partition(" ")
                return int(number), f"{self._id} {token}"

    def close(self) -> None:
        """See `Talk`."""
        self._socket.close()


class MariaDb:
    """Its protocol, as far as one value is asked for: a sequence, and what is in the
    server's memory alone."""

    _MADE = (
        "create database if not exists kyb",
        "create sequence if not exists kyb.count nocache",
        "create table if not exists kyb.own (name char(36)) engine=memory",
        "insert into kyb.own select uuid() from dual where not exists (select * from kyb.own)",
    )
    _ASKED = "select concat(nextval(kyb.count), ' ', (select name from kyb.own))"

    def __init__(self, address: str) -> None:
        self._link = socket.create_connection((address, PORT), LIMIT)
        self._read = self._link.makefile("rb")
        self._packet()
        # 4.1's protocol, plain authentication; nobody is asked who he is.
        flags = struct.pack("<IIB23x", 0x8A200, 1 << 24, 45)
        self._send(flags + b"root\0" + b"\0", 1)
        while self._packet()[:1] == b"\xfe":
            self._send(b"", 3)
        for words in self._MADE:
            self._done(words)

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        self._send(b"\x03" + self._ASKED.encode())
        if (first := self._packet())[:1] == b"\xff":
            raise AssertionError(first)
        self._packet()
        self._packet()
        row = self._packet()
        self._packet()
        number, _, token = row[1:].decode().partition(" ")
        return int(number), token

    def _done(self, words: str) -> None:
        self._send(b"\x03" + words.encode())
        if (answer := self._packet())[:1] != b"\0":
            raise AssertionError(answer)

    def _send(self, data: bytes, number: int = 0) -> None:
        self._link.sendall(len(data).to_bytes(3, "little") + bytes((number,)) + data)

    def _packet(self) -> bytes:
        head = self._read.read(4)
        if len(head) < 4:
            raise ConnectionError("MariaDB hung up")
        return self._read.read(int.from_bytes(head[:3], "little"))

    def close(self) -> None:
        """See `Talk`."""
        self._read.close()
        self._link.close()


class FastCgi:
    """A request of FastCGI's on a connection that is kept."""

    _VARIABLES = (
        (b"SCRIPT_FILENAME", b"/app/count.php"),
        (b"REQUEST_METHOD", b"GET"),
        (b"SCRIPT_NAME", b"/count.php"),
    )

    def __init__(self, address: str) -> None:
        self._link = socket.create_connection((address, PORT), LIMIT)
        self._read = self._link.makefile("rb")

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        variables = b"".join(
            bytes((len(name), len(value))) + name + value for name, value in self._VARIABLES
        )
        begin = struct.pack(">HB5x", 1, 1)
        self._link.sendall(
            _record(1, begin) + _record(4, variables) + _record(4, b"") + _record(5, b"")
        )
        said = b""
        while True:
            _, kind, _, length, padding, _ = struct.unpack(">BBHHBB", self._read.read(8))
            data = self._read.read(length + padding)[:length]
            if kind == 6:
                said += data
            elif kind == 3:
                break
        number, _, token = said.partition(b"\r\n\r\n")[2].decode().partition(" ")
        return int(number), token

    def close(self) -> None:
        """See `Talk`."""
        self._read.close()
        self._link.close()


def _record(kind: int, data: bytes) -> bytes:
    return struct.pack(">BBHHBB", 1, kind, 1, len(data), 0, 0) + data


class Sql:
    """PostgreSQL: a sequence, and who it is by the server's start."""

    def __init__(self, address: str) -> None:
        try:
            self._link = psycopg.connect(
                f"host={address} port={PORT} user=kyb dbname=postgres connect_timeout=30",
                autocommit=True,
            )
        except psycopg.OperationalError as error:
            raise ConnectionRefusedError(str(error)) from error

    def next(self) -> tuple[int, str]:
        """See `Talk`."""
        self._link.execute("create sequence if not exists count")
        asked = "select nextval('count'), pg_postmaster_start_time()::text"
        row = self._link.execute(asked).fetchone()
        assert row is not None
        return int(row[0]), str(row[1])

    def close(self) -> None:
        """See `Talk`."""
        with suppress(psycopg.Error):
            self._link.close()
