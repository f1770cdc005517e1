"""A bit of everything that a process can hold, and a port that says whether all of it still works.

One line in, one line of JSON out: each part by name, and whether it is as it was.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import multiprocessing
import os
import select
import signal
import socket
import tempfile
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.pool import Pool

PORT = 8080
BEAT = Path("/tmp/beat")
TEXT = b"as it was"


def square(number: int) -> int:
    """What the workers of the pool do."""
    return number * number


def daemon() -> None:
    """A process that loses its parent, and counts."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for count in range(1 << 30):
        BEAT.write_text(str(count))
        time.sleep(0.02)


def echo() -> int:
    """A child that answers on loopback TCP; its port."""
    server = socket.create_server(("127.0.0.1", 0))
    port: int = server.getsockname()[1]
    if os.fork() == 0:
        link, _ = server.accept()
        while data := link.recv(100):
            link.sendall(data)
        os._exit(0)
    server.close()
    return port


def advances(read: Callable[[], int]) -> bool:
    """Whether the number grows within five seconds."""
    before, end = read(), time.monotonic() + 5
    while read() <= before:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Kitchen:
    """Everything, opened once."""

    def __init__(self, pool: Pool, loopback: int) -> None:
        self.pool = pool
        self.link = socket.create_connection(("127.0.0.1", loopback))
        self.shared = shared_memory.SharedMemory(create=True, size=4096)
        self.buffer = self.shared.buf
        assert self.buffer is not None
        self.buffer[: len(TEXT)] = TEXT
        self.memory = os.memfd_create("kitchen")
        os.write(self.memory, TEXT)
        self.deleted = tempfile.TemporaryFile()  # noqa: SIM115 - held open on purpose
        self.deleted.write(TEXT)
        self.deleted.flush()
        self.pair = socket.socketpair()
        self.pipe = os.pipe()
        os.write(self.pipe[1], TEXT)
        self.locked = Path("/tmp/locked").open("w")  # noqa: SIM115
        fcntl.flock(self.locked, fcntl.LOCK_EX)
        self.poller = select.epoll()
        self.poller.register(self.pair[0], select.EPOLLIN)
        self.counts = [0] * 4
        self.rings = 0
        for number in range(len(self.counts)):
            threading.Thread(target=self._count, args=(number,), daemon=True).start()
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        os.sched_setaffinity(0, {0})

    def _count(self, number: int) -> None:
        while True:
            self.counts[number] += 1
            time.sleep(0.005)

    def _ring(self, *_: object) -> None:
        self.rings += 1

    def check(self) -> dict[str, bool]:
        """Each part by its name."""
        self.link.sendall(TEXT)
        self.pair[1].sendall(TEXT)
        polled = bool(self.poller.poll(1))
        self.deleted.seek(0)
        piped = os.read(self.pipe[0], 100)
        os.write(self.pipe[1], TEXT)
        return {
            "pool": self.pool.map(square, range(20)) == [n * n for n in range(20)],
            "loopback": self.link.recv(100) == TEXT,
            "shared": self.buffer is not None and bytes(self.buffer[: len(TEXT)]) == TEXT,
            "memfd": os.pread(self.memory, 100, 0) == TEXT,
            "deleted": self.deleted.read() == TEXT,
            "pair": polled and self.pair[0].recv(100) == TEXT,
            "pipe": piped == TEXT,
            "lock": not lockable("/tmp/locked"),
            "threads": all(advances(lambda n=n: self.counts[n]) for n in range(4)),  # type: ignore[misc]
            "timer": advances(lambda: self.rings),
            "daemon": advances(lambda: int(BEAT.read_text() or "0")),
            "affinity": os.sched_getaffinity(0) == {0},
            "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1,
        }


def lockable(path: str) -> bool:
    """Whether a stranger gets the lock."""
    with Path(path).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def main() -> None:
    """Serve, one caller after another."""
    BEAT.write_text("0")
    daemon()
    loopback = echo()
    with multiprocessing.Pool(2) as pool:
        kitchen = Kitchen(pool, loopback)
        server = socket.create_server(("0.0.0.0", PORT))
        print("ready", flush=True)
        while True:
            link, _ = server.accept()
            with link:
                while link.recv(100):
                    link.sendall(json.dumps(kitchen.check()).encode() + b"\n")
                    print("checked", flush=True)


if __name__ == "__main__":
    main()
