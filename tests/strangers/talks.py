"""Clients: each asks for the next number on a connection of its own, kept or new."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from contextlib import suppress
from typing import Protocol

import psycopg

from tests.kit.served import said

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
