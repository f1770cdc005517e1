"""Notices what arrives at the sockets of frozen trees: duplicates of them in an epoll set.

Nothing is polled: the event loop waits for the epoll descriptor of each tree. A duplicate that is
left open keeps alive what the tree's processes close, so all are closed before the tree runs on.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import resource
import select
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from kybernate.adapters.arrivals.look import has_input, is_own, words
from kybernate.adapters.arrivals.sockdiag import ESTABLISHED, LISTEN, InetRow, cannot_end
from kybernate.adapters.arrivals.survey import Survey, connection, survey_of
from kybernate.core.traffic import Traffic, outstanding
from kybernate.errors import DeadlineError
from kybernate.ports import WatchReport

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from kybernate.ports import WatchTerms

T = TypeVar("T")

log = logging.getLogger(__name__)

SETTLE = 0.03
"""Seconds after the freeze before the sockets are looked at: the switch that the park was for goes
first. What arrives meanwhile waits in the kernel."""

_RESERVE = 512
"""Descriptors that are kept for all else."""
_SLICE = 64
_SURVEY_DEADLINE = 10.0
_PIDFD_GETFD = 438
_BAD = select.EPOLLERR
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
_QUEUED = struct.Struct("=24xI")
"""In struct tcp_info of a listener: how many connections wait to be accepted."""
_LOOPBACK = ("127.", "::1", "::ffff:127.")

_libc = ctypes.CDLL(None, use_errno=True)


class SocketArrivals:
    """Implements `kybernate.ports.Arrivals`. `pids` lists the processes of a handle.

    `limit` says how many descriptors there may be of all trees. Needs CAP_SYS_PTRACE
    (pidfd_getfd), CAP_SYS_ADMIN (setns) and CAP_NET_ADMIN (resets).
    """

    def __init__(
        self,
        pids: Callable[[str], Sequence[int]],
        settle: float = SETTLE,
        limit: Callable[[], int] | None = None,
    ) -> None:
        self._pids = pids
        self._settle = settle
        self._limit = limit or descriptor_limit
        self._watches: dict[str, _Watch] = {}

    def watch(
        self,
        handle: str,
        terms: WatchTerms,
        on_arrival: Callable[[str], None],
        on_watched: Callable[[WatchReport], None],
    ) -> None:
        """Begin to watch a frozen tree; what was watched by this handle before is dropped."""
        self.unwatch(handle)
        one = self._watches[handle] = _Watch(terms, self._room())

        def arrived(what: str) -> None:
            self.unwatch(handle)
            on_arrival(what)

        one.begin(self._begin(one, handle, on_watched, arrived))

    def unwatch(self, handle: str) -> None:
        """Close the duplicates of this tree's sockets."""
        one = self._watches.pop(handle, None)
        if one is not None:
            one.close()

    async def traffic(self, handle: str, deadline: float) -> Traffic:
        """What comes to a running tree. Raises OSError, DeadlineError."""
        found = await survey_of(self._pids(handle), deadline)
        if found is None:
            return Traffic()
        found.diag.close()
        return found.traffic()

    def close(self) -> None:
        """End all watches."""
        for handle in tuple(self._watches):
            self.unwatch(handle)

    def _room(self) -> int:
        """How many descriptors may still be opened for duplicates."""
        return max(0, self._limit() - sum(len(one) for one in self._watches.values()))

    async def _begin(
        self,
        one: _Watch,
        handle: str,
        on_watched: Callable[[WatchReport], None],
        on_arrival: Callable[[str], None],
    ) -> None:
        await asyncio.sleep(self._settle)
        try:
            found = await survey_of(self._pids(handle), _SURVEY_DEADLINE)
            if found is None:
                self.unwatch(handle)
                return
            try:
                what = await one.look(found, on_arrival)
            finally:
                found.diag.close()
        except (OSError, DeadlineError) as error:
            self.unwatch(handle)
            on_watched(WatchReport(problem=_sentence(error)))
            return
        on_watched(one.report())
        if what is not None:
            on_arrival(what)


def descriptor_limit() -> int:
    """How many duplicates this process may have; its soft limit is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft - min(_RESERVE, soft // 2)


class _Watch:
    """One tree's duplicates. `room` is how many there may be."""

    def __init__(self, terms: WatchTerms, room: int) -> None:
        self._terms = terms
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._task: asyncio.Task[None] | None = None
        self._reading = False
        self._unwatched = self._ended = 0
        self._unanswered: frozenset[tuple[int, int]] = frozenset()
        self._problem = ""

    def __len__(self) -> int:
        return len(self._sockets)

    def begin(self, what: Coroutine[object, object, None]) -> None:
        self._task = self._loop.create_task(what)

    def close(self) -> None:
        """Synchronous: when it returns, no duplicate is left and none will be made."""
        if self._reading and not self._loop.is_closed():
            self._loop.remove_reader(self._epoll.fileno())
        self._reading = False
        self._epoll.close()
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()
        task = self._task
        if task and not task.done() and task is not asyncio.current_task(self._loop):
            task.cancel()

    def report(self) -> WatchReport:
        return WatchReport(
            len(self._sockets), self._unwatched, self._ended, self._unanswered, self._problem
        )

    async def look(self, found: Survey, on_arrival: Callable[[str], None]) -> str | None:
        """End what is idle, duplicate the rest; what has arrived already, or None."""
        left_out = await self._end_idle(found)
        await self._duplicate(found, left_out)
        what = self._arrived(found)
        if what is None:
            self._loop.add_reader(self._epoll.fileno(), self._ready, on_arrival)
            self._reading = True
        return what

    def _ready(self, on_arrival: Callable[[str], None]) -> None:
        what = self._arrived(None)
        if what is not None:
            on_arrival(what)

    # --- ending -------------------------------------------------------------------------------

    async def _end_idle(self, found: Survey) -> frozenset[int]:
        """Reset idle connections; the inodes of those, and of connections within the tree."""
        outside = [row for row in found.outside() if row.state == ESTABLISHED]
        ports, doubt = found.ports(), self._terms.doubt
        waiting = {
            row.inode
            for row in outside
            if outstanding(connection(row, inbound=row.local[1] in ports), doubt)
        }
        self._unanswered = frozenset(
            (int.from_bytes(row.name[40:48], "little"), row.received)
            for row in outside
            if row.inode in waiting and row.local[1] in ports
        )
        ended = set()
        idle = [row for row in outside if row.inode not in waiting] if self._terms.end_idle else []
        for number, row in enumerate(idle):
            if self._end(found, row):
                ended.add(row.inode)
            if self._problem:
                break
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        self._ended = len(ended)
        return frozenset(ended) | found.within()

    def _end(self, found: Survey, row: InetRow) -> bool:
        # A request may have come since the survey: look again, microseconds before.
        now = found.diag.ask_again(row)
        if now is None or now.state != ESTABLISHED or now.unread or now.unsent:
            return False
        try:
            return found.diag.end(now)
        except OSError as error:
            if not cannot_end(error):
                raise
            self._problem = (
                f"idle connections can't be ended ({error.strerror}): a timeout of the workload's "
                "may hit a request after a long park; the agent needs CAP_NET_ADMIN and a kernel "
                "with INET_DIAG_DESTROY"
            )
            return False

    # --- duplicating --------------------------------------------------------------------------

    async def _duplicate(self, found: Survey, left_out: frozenset[int]) -> None:
        pidfds: dict[int, int] = {}
        try:
            for number, inode in enumerate(_by_weight(found, left_out)):
                self._take(found.places[inode], pidfds)
                if number % _SLICE == _SLICE - 1:
                    await asyncio.sleep(0)
        finally:
            for pidfd in pidfds.values():
                os.close(pidfd)
        self._unwatched += found.beyond
        if self._unwatched:
            self._problem = (
                f"{self._unwatched} of its sockets are not watched, so that what arrives there "
                "wakes nobody; raise the agent's limit of open files (ulimit -n)"
            )

    def _take(self, place: tuple[int, int], pidfds: dict[int, int]) -> None:
        if len(self._sockets) >= self._room:
            self._unwatched += 1
            return
        try:
            descriptor = _duplicate_of(place, pidfds)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EBADF):  # its process was killed meanwhile
                return
            raise
        one = socket.socket(fileno=descriptor)
        if one.family not in _FAMILIES:
            one.close()
            return
        self._sockets[descriptor] = one
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    # --- looking ------------------------------------------------------------------------------

    def _arrived(self, found: Survey | None) -> str | None:
        """What has arrived, or None. `found` at the first look only.

        What is readable then may be the tree's own, frozen in the middle of a talk with itself.
        Later nothing can be.
        """
        while events := self._epoll.poll(0, 1):
            descriptor, event = events[0]
            one = self._sockets[descriptor]
            if not has_input(one, event):
                continue
            if found is None or not is_own(found, one, again=self._terms.again):
                return words(one)
        return None


def _by_weight(found: Survey, left_out: frozenset[int]) -> Iterable[int]:
    """Inodes to watch: those where new peers come first, for the case that not all can be."""
    listeners = {row.inode for row in found.ours() if row.state == LISTEN}
    connections = {row.inode for row in found.ours()} - listeners
    rest = [i for i in found.places if i not in left_out]
    return sorted(rest, key=lambda inode: (inode in connections, inode not in listeners))


def _duplicate_of(place: tuple[int, int], pidfds: dict[int, int]) -> int:
    pid, number = place
    if pid not in pidfds:
        pidfds[pid] = os.pidfd_open(pid)
    descriptor = int(_libc.syscall(_PIDFD_GETFD, pidfds[pid], number, 0))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"pidfd_getfd: {os.strerror(code)}")
    return descriptor


def _sentence(error: Exception) -> str:
    hint = ""
    if isinstance(error, PermissionError):
        hint = "; the agent needs CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_NET_ADMIN"
    elif isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "; raise the agent's limit of open files (ulimit -n)"
    return f"its sockets can't be watched, so that what arrives there wakes nobody: {error}{hint}"
