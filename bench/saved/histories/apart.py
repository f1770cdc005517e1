"""A network that fails, below registries and their clients.

All of it runs in a network namespace of its own, on its loopback: clients, registry and database.
One way at a time is cut between clients and a replica, or between a replica and PostgreSQL, or all
is slow. What is cut is routed into a black hole: connections stay, and what was sent comes late.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from bench.saved.histories.rounds import Figures
from bench.saved.histories.story import Story
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kit.servers.registryserver import Server

PATIENCE_S = 0.4
"""Seconds after which a client takes an answer for lost: less than most cuts last."""
_WHOLE_S, _CUT_S = (0.05, 0.3), (0.2, 1.0)
_LIMIT_S = 900.0
_SLOW = "tc qdisc replace dev lo root tbf rate 3mbit burst 16kb latency 2s"
_NOT_SLOW = "tc qdisc del dev lo root"


def made(database: str, histories: int, seed: int) -> Figures:
    """Histories on `sqlite` or `postgresql` in such a namespace. Raises KybernateError."""
    argv = ["unshare", "--net", sys.executable, "-m", "bench.saved.histories.inside", database]
    run = subprocess.run(
        [*argv, str(histories), str(seed)],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if run.returncode:
        raise KybernateError(f"no histories in a network namespace: {run.stderr.strip()[-1000:]}")
    said = json.loads(run.stdout.splitlines()[-1])
    wrong = []
    for name, calls in said.pop("wrong"):
        wrong.append(Story(name, "", 0.0))
        wrong[-1].calls = calls
    return Figures(**said, wrong=wrong)


class Network:
    """The namespace's loopback, on which packets can be kept from going one way."""

    def __init__(self) -> None:
        """Raises KybernateError."""
        _do("ip link set lo mtu 1500 up")
        # Rules are asked before the table that knows of loopback.
        _do("ip rule add pref 100 lookup local")
        _do("ip rule del pref 0")
        self._undo = ""

    def cut(self, which: str) -> None:
        """What matches goes nowhere from now on; or all is slow."""
        _do(_SLOW if which == _SLOW else f"ip rule add pref 10 {which} blackhole")
        self._undo = _NOT_SLOW if which == _SLOW else "ip rule del pref 10"

    def heal(self) -> None:
        """All goes everywhere."""
        if self._undo:
            _do(self._undo)
        self._undo = ""


class Trouble:
    """Cuts and heals, again and again, while histories are made."""

    def __init__(self, network: Network, ways: Sequence[str], seed: int) -> None:
        """`ways`: what may be cut."""
        self._network, self._ways, self._random = network, ways, Random(f"{seed} cuts")
        self.cuts = 0

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """While this lasts."""
        over = threading.Event()
        thread = threading.Thread(target=self._go_on, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _go_on(self, over: threading.Event) -> None:
        while not over.wait(self._random.uniform(*_WHOLE_S)):
            self._network.cut(self._random.choice(self._ways))
            self.cuts += 1
            over.wait(self._random.uniform(*_CUT_S))
            self._network.heal()


def ways_of(servers: Sequence[Server], hosts: Sequence[str], database: int) -> list[str]:
    """What can be cut, as `ip rule` selects it. `hosts`: where each replica finds PostgreSQL, if it
    does, and `database` the port there."""
    ports = [one.port for one in servers]
    found = [f"{end} {port}" for port in ports for end in ("dport", "sport")]
    for host in hosts:
        found += [f"to {host} dport {database}", f"from {host} sport {database}"]
    return [*found, _SLOW]


def host_of(url: str, at: int) -> tuple[str, str]:
    """The address at which that replica finds the database, and the URL with it."""
    parts = urlsplit(url)
    host = f"127.0.0.{10 + at}"
    place = parts.netloc.replace("127.0.0.1:", f"{host}:")
    return host, urlunsplit(parts._replace(netloc=place))


def _do(line: str) -> None:
    run = subprocess.run(line.split(), capture_output=True, text=True, timeout=10, check=False)
    if run.returncode:
        raise KybernateError(f"{line}: {run.stderr.strip()}")
