"""A look at a tree's sockets: descriptors from /proc, the rest from its network namespace.

`in_namespace_of` runs in a fresh thread: a thread that entered a foreign namespace ends there.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kybernate.adapters.arrivals.rights import take_sys_admin
from kybernate.adapters.arrivals.sockdiag import (
    CLOSE_WAIT,
    ESTABLISHED,
    LISTEN,
    Diag,
    InetRow,
    open_diag,
)
from kybernate.core.traffic import Connection, Traffic
from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

MOST_SOCKETS = 65536
"""More than this of one tree are not looked at."""

_CLONE_NEWNET = 0x40000000
_STATES = (ESTABLISHED, CLOSE_WAIT, LISTEN)
_ANSWER = 2.0
_GONE = (errno.ENOENT, errno.ESRCH)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Survey:
    """A tree's sockets. `places` says which descriptor of which process a socket's inode is.

    `beyond` counts sockets that were left out for being too many. `diag` is for more questions;
    the receiver closes it.
    """

    diag: Diag
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    beyond: int = 0
    tcp: list[InetRow] = field(default_factory=list)
    udp: list[InetRow] = field(default_factory=list)

    def ours(self) -> list[InetRow]:
        """TCP sockets that the tree holds."""
        return [row for row in self.tcp if row.inode in self.places]

    def ports(self) -> frozenset[int]:
        """TCP ports on which the tree listens."""
        return frozenset(row.local[1] for row in self.ours() if row.state == LISTEN)

    def waiting(self) -> list[InetRow]:
        """Connections to the tree's ports that nobody has accepted yet."""
        ports = self.ports()
        loose = (row for row in self.tcp if not row.inode and row.state != LISTEN)
        return [row for row in loose if row.local[1] in ports]

    def outside(self) -> list[InetRow]:
        """The tree's connections whose other end isn't in the tree."""
        ends = self._ends()
        return [row for row in self._connections() if (row.peer, row.local) not in ends]

    def within(self) -> frozenset[int]:
        """Inodes of the tree's connections to itself."""
        ends = self._ends()
        mine = self._connections()
        return frozenset(row.inode for row in mine if (row.peer, row.local) in ends)

    def own_waiting(self, port: int | None = None) -> int:
        """Connections of the tree to itself that wait to be accepted, at one port or at all."""
        ends = self._ends()
        rows = (row for row in self.waiting() if port in (None, row.local[1]))
        return sum((row.peer, row.local) in ends for row in rows)

    def _connections(self) -> list[InetRow]:
        return [row for row in self.ours() if row.state != LISTEN]

    def _ends(self) -> frozenset[tuple[object, object]]:
        """(own address, peer's address) of each of the tree's connections, accepted or not."""
        return frozenset((row.local, row.peer) for row in (*self._connections(), *self.waiting()))

    def traffic(self) -> Traffic:
        """What comes to the tree from outside."""
        ports = self.ports()
        inbound = (row for row in self.outside() if row.local[1] in ports)
        unread = sum(row.unread for row in self.udp if row.inode in self.places)
        return Traffic(
            queued=len(self.waiting()) - self.own_waiting(),
            datagrams=unread,
            connections=tuple(connection(row, inbound=True) for row in inbound),
        )


def connection(row: InetRow, *, inbound: bool) -> Connection:
    """The row in the core's words."""
    return Connection(
        inbound=inbound,
        peer_open=row.state == ESTABLISHED,
        unread=row.unread,
        unsent=row.unsent,
        received=row.received,
        sent=row.sent,
        since_received=row.since_received,
        since_sent=row.since_sent,
    )


async def survey_of(pids: Sequence[int], deadline: float) -> Survey | None:
    """In a thread of its own. None if there is no process. Raises OSError, DeadlineError."""
    if not pids:
        return None
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Survey] = loop.create_future()

    def done(result: Survey | Exception) -> None:
        try:
            loop.call_soon_threadsafe(_settle, answer, result)
        except RuntimeError:  # the agent has ended
            _drop(result)

    in_namespace_of(pids[0], lambda: survey(pids), done)
    try:
        return await asyncio.wait_for(answer, deadline)
    except TimeoutError as error:
        raise DeadlineError(f"the kernel did not list its sockets in {deadline:g} s") from error
    except FileNotFoundError:
        return None


def _settle(answer: asyncio.Future[Survey], result: Survey | Exception) -> None:
    if answer.done():
        _drop(result)
    elif isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _drop(result: Survey | Exception) -> None:
    if isinstance(result, Survey):
        result.diag.close()


def survey(pids: Sequence[int], proc: Path = Path("/proc")) -> Survey:
    """Look at these processes' sockets. Blocks; only in a thread of `in_namespace_of`.

    Raises OSError.
    """
    found = Survey(open_diag(_ANSWER))
    try:
        for inode, place in _descriptors(pids, proc):
            if len(found.places) < MOST_SOCKETS or inode in found.places:
                found.places.setdefault(inode, place)
            else:
                found.beyond += 1
        found.tcp = found.diag.inet(socket.IPPROTO_TCP, _STATES)
        found.udp = found.diag.inet(socket.IPPROTO_UDP)
    except BaseException:
        found.diag.close()
        raise
    return found


def _descriptors(pids: Sequence[int], proc: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    for pid in pids:
        folder = proc / str(pid) / "fd"
        try:
            numbers = sorted(map(int, os.listdir(folder)))
        except OSError as error:
            if error.errno in _GONE:
                continue
            raise
        for number in numbers:
            try:
                target = os.readlink(f"{folder}/{number}")
            except OSError as error:
                if error.errno in _GONE:
                    continue
                raise
            if target.startswith("socket:["):
                yield int(target[8:-1]), (pid, number)


def in_namespace_of(pid: int, call: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
    """Run `call` in a thread in the process's network namespace, then tell `done` there."""

    def run() -> None:
        try:
            _enter(pid)
            result = call()
        except Exception as error:  # noqa: BLE001 - all of it is the receiver's
            done(error)
        else:
            done(result)

    threading.Thread(target=run, name=f"sockets-of-{pid}", daemon=True).start()


def _enter(pid: int) -> None:
    take_sys_admin()
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(namespace, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")
    finally:
        os.close(namespace)
