"""The programs that these tests park."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.node.containers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.node.parking import Seat

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
COUNTER = """
import mmap, os
with open("/app/count", "r+b") as file:
    memory = mmap.mmap(file.fileno(), 8)
number = 0
while True:
    number += 1
    memory[:8] = number.to_bytes(8, "little")
"""
PAIR = """
import socket, time
one = socket.create_server(("127.0.0.1", 7000))
out = socket.create_connection(("127.0.0.1", 7000))
into, _ = one.accept()
number = 0
while True:
    out.sendall(b"%d" % number)
    assert into.recv(100) == b"%d" % number
    if number == 1:
        print("ready")
    if number % 10 == 0:
        print("said", number)
    number += 1
    time.sleep(0.01)
"""
"""A process that talks to itself over loopback, and ends if it can't."""


def nginx(seat: Callable[..., Seat], **wish: object) -> Seat:
    """A master and two workers on port 8080."""
    found = seat("nginx", "-c", "/etc/nginx.conf", **wish)
    wait_for(lambda: serves(found), "nginx doesn't serve")
    return found


def serves(seat: Seat) -> bool:
    """Whether nginx answers a new connection."""
    try:
        return b"nginx is here" in seat.container.ask(8080, GET)
    except OSError:
        return False


def redis(seat: Callable[..., Seat], keys: int = 0, size: int = 200, **wish: object) -> Seat:
    """Redis with so many keys of so many bytes."""
    options = ("--save", "", "--protected-mode", "no", "--enable-debug-command", "yes")
    found = seat("redis-server", *options, **wish)
    wait_for(lambda: b"PONG" in ask(found, "PING"), "redis doesn't serve")
    if keys:
        assert ask(found, "DEBUG", "POPULATE", str(keys), "key", str(size), limit=60) == b"+OK\r\n"
    return found


def ask(seat: Seat, *words: str, limit: float = 20.0) -> bytes:
    """Redis's answer, on a connection of its own."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    try:
        return seat.container.ask(6379, request.encode(), limit)
    except OSError as error:
        return str(error).encode()


def digest(seat: Seat) -> bytes:
    """Of all keys."""
    found = ask(seat, "DEBUG", "DIGEST", limit=60)
    assert found.startswith(b"+"), found
    return found


def python(seat: Callable[..., Seat], folder: Path, script: str, **wish: object) -> Seat:
    """A script, and the folder as /app; returns once it has printed "ready"."""
    for one in (folder, *folder.parents[:2]):
        one.chmod(0o755)
    (folder / "app.py").write_text(script)
    mounts = {folder: "/app", **wish.pop("mounts", {})}  # type: ignore[dict-item]
    found = seat("python3", "-u", "/app/app.py", mounts=mounts, **wish)
    wait_for(lambda: "ready" in found.container.log, lambda: found.container.log)
    return found


def copy_of(module_file: str, folder: Path) -> str:
    """A module's source, as a script for `python`."""
    shutil.copy(module_file, folder)
    return Path(module_file).read_text()


def counter(seat: Callable[..., Seat], folder: Path) -> Seat:
    """A process that counts in memory that the test sees, without pause."""
    (folder / "count").write_bytes(bytes(8))
    return python(seat, folder, "print('ready')" + COUNTER)


def progress(folder: Path) -> int:
    """How far `counter` is."""
    return int.from_bytes((folder / "count").read_bytes(), "little")


def stands_still(folder: Path) -> bool:
    """Whether `counter` doesn't count."""
    before = progress(folder)
    time.sleep(0.05)
    return progress(folder) == before
