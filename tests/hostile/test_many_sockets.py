"""A tree with ten thousand sockets is held back like others, and the agent goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.arrivals import NetworkGate, nftables
from kybernate.adapters.arrivals.namespace import inside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare(1)"
    ),
]
LIMIT = 30.0
MANY = 10_000
LISTENS = """
import resource, socket, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most + 100, most + 100))
ones = []
for port in range(10000, 10000 + most):
    ones.append(socket.socket())
    ones[-1].bind(("0.0.0.0", port))
    ones[-1].listen(1)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def tree() -> Iterator[int]:
    """Its PID, in a network of its own."""
    argv = ["unshare", "--net", sys.executable, "-c", LISTENS, str(MANY)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process.pid
    process.kill()
    process.communicate()


def test_ten_thousand_sockets_are_held_back_beside_everything_else(
    tree: int, tmp_path: Path
) -> None:
    looked_from: list[int] = []

    def processes(pid: int) -> tuple[int, ...]:
        looked_from.append(threading.get_ident())
        return (pid,)

    async def scene() -> None:
        gate = NetworkGate(tmp_path, processes)
        await gate.shut(tree, print, LIMIT)
        assert await inside(tree, nftables.is_shut)
        assert await gate.open(tree, LIMIT) == 0
        assert not await inside(tree, nftables.is_shut)
        gate.close()

    asyncio.run(scene())
    (thread,) = looked_from
    assert thread != threading.get_ident(), "the event loop stood still for it"
