"""Ports of servers that begin later."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from bench.processes import REPOSITORY, free_port

PROCESSES, PORTS, ROW = 5, 40, 3
SCRIPT = f"""
from bench.processes import free_port
print(*(free_port({ROW}) for _ in range({PORTS})), flush=True)
input()
"""


def test_processes_that_live_beside_each_other_get_other_ports():
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", SCRIPT],
                    cwd=REPOSITORY,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(PROCESSES)
        ]
        given = [{int(port) for port in one.stdout.readline().split()} for one in running]
        for one in running:
            one.communicate("\n")
    rows = [{port + i for port in ports for i in range(ROW)} for ports in given]
    assert [len(one) for one in rows] == [PORTS * ROW] * PROCESSES
    assert len(set().union(*rows)) == PROCESSES * PORTS * ROW


def test_the_kernel_gives_them_to_no_connection():
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert free_port() < int(first)


def test_no_row_has_a_port_that_somebody_listens_on():
    with socket.create_server(("127.0.0.1", free_port())) as server:
        taken = server.getsockname()[1]
        # More than there are, so that it would be its turn again.
        rows = [free_port(4) for _ in range(100)]
    assert len(set(rows)) < len(rows)
    assert [row for row in rows if row <= taken < row + 4] == []
