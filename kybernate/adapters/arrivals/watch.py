"""Notices what arrives at the sockets of frozen trees: duplicates of them in an epoll set.

Nothing is polled: the event loop waits for the epoll descriptor of each tree. A duplicate that is
left open keeps alive what the tree's processes close, so all are closed before the tree runs on.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals.duplicates import SLICE, Duplicator, let_go
from kybernate.adapters.arrivals.look import has_input, is_own, words
from kybernate.adapters.arrivals.namespace import Network
from kybernate.adapters.arrivals.sockdiag import ESTABLISHED, cannot_end
from kybernate.adapters.arrivals.survey import Survey, connection, survey_of
from kybernate.core.swap.traffic import Traffic, outstanding
from kybernate.errors import DeadlineError
from kybernate.ports import WatchReport

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

    from kybernate.adapters.arrivals.duplicates import Place
    from kybernate.adapters.arrivals.sockdiag import Diag, InetRow
    from kybernate.ports import WatchTerms

SETTLE = 0.03
"""Seconds after the freeze before the sockets are looked at, unless somebody waits for that: the
switch that the park was for goes first. What arrives meanwhile waits in the kernel, and what the
tree has sent to itself just before has arrived then, and isn't taken for somebody else's."""

_RESERVE = 512
"""Descriptors that are kept for all else."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


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

        def heard(what: str) -> None:
            self.unwatch(handle)
            on_arrival(what)

        one.begin(self._begin(one, handle, on_watched, heard))

    def hasten(self, handle: str) -> None:
        """Look at this tree's sockets at once, if nobody has yet."""
        one = self._watches.get(handle)
        if one is not None:
            one.wanted.set()

    def unwatch(self, handle: str) -> None:
        """Close the duplicates of this tree's sockets."""
        one = self._watches.pop(handle, None)
        if one is not None:
            one.close()

    async def traffic(self, handle: str, deadline: float) -> Traffic:
        """What comes to a running tree. Raises OSError, DeadlineError."""
        try:
            return await asyncio.wait_for(_traffic(self._pids(handle)), deadline)
        except TimeoutError as error:
            raise DeadlineError(f"its sockets are not listed in {deadline:g} s") from error

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
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settle):
                await one.wanted.wait()
        pids = self._pids(handle)
        try:
            what = await one.look(pids, on_arrival) if pids else None
        except FileNotFoundError:
            pids = ()  # it has just ended
        except (OSError, DeadlineError) as error:
            self.unwatch(handle)
            on_watched(WatchReport(problem=_sentence(error)))
            return
        if not pids:
            self.unwatch(handle)
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
        self.wanted = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._places: dict[int, Place] = {}
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
        for descriptor, one in self._sockets.items():
            let_go(one, self._places[descriptor])
        self._sockets.clear()
        self._places.clear()
        task = self._task
        if task and not task.done() and task is not asyncio.current_task(self._loop):
            task.cancel()

    def report(self) -> WatchReport:
        return WatchReport(
            len(self._sockets), self._unwatched, self._ended, self._unanswered, self._problem
        )

    async def look(self, pids: Sequence[int], on_arrival: Callable[[str], None]) -> str | None:
        """End what is idle, duplicate the rest; what has arrived already, or None.

        Raises FileNotFoundError if the tree is gone, OSError, DeadlineError.
        """
        found = await survey_of(pids)
        network = Network(pids[0])
        try:
            ended = await self._end_idle(found, network)
            await self._duplicate(found, ended | found.within())
            what = await self._already(found, network)
        finally:
            network.close()
        if what is None:
            self._loop.add_reader(self._epoll.fileno(), self._ready, on_arrival)
            self._reading = True
        return what

    def _ready(self, on_arrival: Callable[[str], None]) -> None:
        # Who shares a socket with the tree can make events for ever: the rest is for the next call.
        for one in self._readable(SLICE):
            on_arrival(words(one))
            return

    # --- ending -------------------------------------------------------------------------------

    async def _end_idle(self, found: Survey, network: Network) -> frozenset[int]:
        """Reset idle connections with others; their inodes."""
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
        idle = [row for row in outside if row.inode not in waiting] if self._terms.end_idle else []
        ended = set()
        for number, row in enumerate(idle):
            if self._end(await network.diag(), row):
                ended.add(row.inode)
            if self._problem:
                break
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        self._ended = len(ended)
        return frozenset(ended)

    def _end(self, diag: Diag, row: InetRow) -> bool:
        # A request may have come since the survey: look again, microseconds before.
        now = diag.ask_again(row)
        if now is None or now.state != ESTABLISHED or now.unread or now.unsent:
            return False
        try:
            return diag.end(now)
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
        duplicator = Duplicator()
        try:
            for number, inode in enumerate(_by_weight(found, left_out)):
                self._take(duplicator, found.places[inode])
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
        finally:
            duplicator.close()
        self._unwatched += found.beyond
        if self._unwatched:
            self._problem = (
                f"{self._unwatched} of its sockets are not watched, so that what arrives there "
                "wakes nobody; raise the agent's limit of open files (ulimit -n)"
            )

    def _take(self, duplicator: Duplicator, place: Place) -> None:
        if len(self._sockets) >= self._room:
            self._unwatched += 1
            return
        one = duplicator.duplicate(place)
        if one is None:
            return
        if one.family not in _FAMILIES:
            one.close()
            return
        self._sockets[one.fileno()], self._places[one.fileno()] = one, place
        self._epoll.register(one.fileno(), select.EPOLLIN | select.EPOLLET)

    # --- looking ------------------------------------------------------------------------------

    async def _already(self, found: Survey, network: Network) -> str | None:
        """What has arrived before anybody watched, or None.

        What is readable now may be the tree's own, frozen in the middle of a talk with itself.
        Later nothing can be.
        """
        for one in self._readable(2 * len(self._sockets)):
            if not await is_own(found, network, one, again=self._terms.again):
                return words(one)
        return None

    def _readable(self, most: int) -> Iterator[socket.socket]:
        """Where somebody has sent something since the last look, among the next `most` events."""
        for _ in range(most):
            events = self._epoll.poll(0, 1)
            if not events:
                return
            descriptor, event = events[0]
            if has_input(self._sockets[descriptor], event):
                yield self._sockets[descriptor]


async def _traffic(pids: Sequence[int]) -> Traffic:
    found = await survey_of(pids)
    queued = found.queued()
    if queued:
        # The tree may be among those who connect to it.
        network = Network(pids[0])
        try:
            loose = await network.unaccepted()
        finally:
            network.close()
        # It runs meanwhile: what it has accepted of its own by now is in the first count only.
        queued = min(queued, found.strangers_waiting(loose))
    return found.traffic(queued)


def _by_weight(found: Survey, left_out: frozenset[int]) -> Iterable[int]:
    """Inodes to watch: those where new peers come first, for the case that not all can be."""
    listeners = {row.inode for row in found.listeners()}
    connections = {row.inode for row in found.tcp} - listeners
    rest = [i for i in found.places if i not in left_out]
    return sorted(rest, key=lambda inode: (inode in connections, inode not in listeners))


def _sentence(error: Exception) -> str:
    hint = ""
    if isinstance(error, PermissionError):
        hint = "; the agent needs CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_NET_ADMIN"
    elif isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "; raise the agent's limit of open files (ulimit -n)"
    return f"its sockets can't be watched, so that what arrives there wakes nobody: {error}{hint}"
