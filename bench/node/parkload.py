"""The servers that bench.node.park parks: what runs, what fills them, what they must still know."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kybernate.checkpoint.places import open_place
from tests.cluster.fetched import llama, servers
from tests.kit.clients.served import REDIS, Served, command

if TYPE_CHECKING:
    from tests.kit.servers.s3 import Server

VALUE = 1 << 12
"""Bytes of a value; nobody can compress them."""

PIPELINE = 256
NGINX = 8080
PIECE = 8 << 20
"""Bytes of one object, as artifacts are packed."""

TRANSFERS = 4
PROMPT = {"prompt": "a seat waits", "n_predict": 4, "temperature": 0, "cache_prompt": True}


@dataclass(frozen=True)
class Workload:
    """One server. `image` is the cluster's name of its image, `process` begins its own name."""

    name: str
    image: str
    image_name: str
    command: tuple[str, ...]
    port: int
    process: str
    samples: int
    in_image: bool = False
    """Whether the image runs the command by itself."""

    moves: bool = False
    """Whether it goes into the object store and to another node, too."""

    def answers(self, served: Served) -> bool:
        """Whether it answers on a new connection."""
        try:
            if self.name == "redis":
                return b"PONG" in served.redis("PING", limit=5)
            if self.name == "nginx":
                return served.http("/", self.port, limit=5).ok
            return bool(served.http("/completion", self.port, PROMPT, limit=30).ok)
        except OSError:
            return False

    def fill(self, served: Served, mib: int) -> None:
        """What it shall keep: so many MiB of values."""
        if self.name != "redis":
            return
        with served.connect(self.port) as link:
            for first in range(0, (mib << 20) // VALUE, PIPELINE):
                values = os.urandom(PIPELINE * VALUE)
                link.sendall(
                    b"".join(
                        command("SET", f"key:{first + n}", values[n * VALUE : (n + 1) * VALUE])
                        for n in range(PIPELINE)
                    )
                )
                expected = len(b"+OK\r\n") * PIPELINE
                while expected:
                    expected -= len(link.recv(expected))

    def known(self, served: Served) -> bytes:
        """A digest of all it keeps; empty if it keeps nothing."""
        return served.redis("DEBUG", "DIGEST") if self.name == "redis" else b""

    def wire(self, source: str, target: str) -> float:
        """Bytes per second that one connection between two nodes' addresses carries."""
        piece, count = bytes(PIECE), 64
        with socket.create_server((target, 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, source_address=(source, 0)) as out:
                inward, _ = server.accept()
                with inward, ThreadPoolExecutor(1) as pool:
                    began = time.monotonic()
                    sending = pool.submit(_send, out, piece, count)
                    left = count * PIECE
                    while left:
                        left -= len(inward.recv(min(left, 1 << 20)))
                    sending.result()
                    return count * PIECE / (time.monotonic() - began)

    def rates(self, server: Server, size: int) -> tuple[float, float]:
        """Bytes per second that the store takes and gives: so many bytes, several at once."""
        os.environ |= server.environment
        objects = open_place(server.url).objects
        keys = [f"tmp/rate/{number}" for number in range(max(TRANSFERS, size // PIECE))]
        piece = os.urandom(PIECE)
        with ThreadPoolExecutor(TRANSFERS) as pool:
            began = time.monotonic()
            list(pool.map(lambda key: objects.put(key, piece), keys))
            put = time.monotonic()
            list(pool.map(lambda key: len(objects.get(key)), keys))
            got = time.monotonic()
        total = len(keys) * PIECE
        return total / (put - began), total / (got - put)


def _send(link: socket.socket, piece: bytes, count: int) -> None:
    for _ in range(count):
        link.sendall(piece)


WORKLOADS = {
    one.name: one
    for one in (
        Workload(
            name="nginx",
            image="servers",
            image_name=servers.NAME,
            command=("/usr/sbin/nginx", "-c", "/etc/nginx.conf"),
            port=NGINX,
            process="nginx",
            samples=20,
        ),
        Workload(
            name="redis",
            image="servers",
            image_name=servers.NAME,
            command=(
                *("/usr/bin/redis-server", "--save", "", "--protected-mode", "no"),
                *("--enable-debug-command", "yes"),
            ),
            port=REDIS,
            process="redis",
            samples=6,
            moves=True,
        ),
        Workload(
            name="llama",
            image="llama",
            image_name=llama.NAME,
            command=llama.COMMAND,
            port=llama.PORT,
            process="llama",
            samples=10,
            in_image=True,
        ),
    )
}
