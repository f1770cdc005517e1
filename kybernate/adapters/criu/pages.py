"""The processes of CRIU's that serve the memory of lazily restored trees.

Where nobody has a userfaultfd open any more the kernel gives zeros for what is missing. So three
have each: the server, the kyb-enter that started it, and the agent. If the server dies the tree
waits, until somebody sees to it. kyb-enter outlives the agent, tells by a file in the agent's
folder how the server ended, and stays with what it has if that was not well. The next agent finds
the server again.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import select
import socket
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.adapters.criu import holders, running
from kybernate.adapters.criu.container import is_free
from kybernate.adapters.kernel import smallfile
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError, RestoreError
from kybernate.lib.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kybernate.adapters.criu.container import Container

STATUS = "pages.status"
"""There since a lazy restore was begun. kyb-enter writes over its first character."""

_SERVES, _WELL = "-", "0"
_SOCKET = "lazy-pages.socket"
_OURS = re.compile(
    rf"^\w+: \w+ \w+ ([0-9A-F]{{8}}) \w+ \w+ +(\d+) {re.escape(_SOCKET)}$",
    re.MULTILINE | re.ASCII,
)
_LISTENS = 1 << 16
"""Of its line in /proc/net/unix the flags, and one of these."""

_AT_ONCE = 200
"""Descriptors in a message; the kernel takes 253."""
_POLL = 0.005


@dataclass(slots=True)
class Served:
    """One tree's server, and what is held of it. `work` is the container's folder, `enter` the
    kyb-enter that this agent started; `keeper` leads there until it has what it is to hold."""

    work: Path
    enter: int = 0
    keeper: socket.socket | None = None
    held: list[int] = field(default_factory=list)

    @property
    def lock(self) -> Path:
        """Held while the server, or its kyb-enter, is there."""
        return self.work / running.PAGES

    @property
    def begun(self) -> bool:
        """Whether the last restore was a lazy one."""
        return bool(self._told())

    @property
    def well(self) -> bool | None:
        """Whether the server ended well; None while it serves. What nobody tells is not well."""
        told = self._told()
        if told == _SERVES and is_free(self.lock):
            told = self._told()  # who tells does so before it lets go of the lock
        elif told == _SERVES:
            return None
        return told == _WELL

    def _told(self) -> str:
        with suppress(FileNotFoundError):
            return smallfile.read(str(self.work / STATUS))[:1]
        return ""

    async def hold(self, until: Deadline) -> bool:
        """Its userfaultfds, here and in kyb-enter; to be called while the tree has not run.
        Whether it serves, or has ended well. Raises OSError, DeadlineError."""
        pids = tuple(holders.descendants(self.enter))
        for pid in pids:
            self.held += holders.duplicates(pid, self.lock)
        try:
            self._lend()
        except BrokenPipeError:
            # kyb-enter has ended, and told before: a server without it is none to rely on.
            self.let_go()
            return self._told() == _WELL
        # What it has closed by now is in, unless it died of it.
        while (well := self.well) is None:
            if not all(holders.has_ended(pid) for pid in pids):
                return True
            until.check("CRIU's lazy-pages has ended, and nobody tells how.")
            await asyncio.sleep(_POLL)
        self.let_go()
        return well

    def hold_again(self) -> None:
        """The same here after a restart: whoever has the lock may have some."""
        for pid in holders.find(self.lock):
            self.held += holders.duplicates(pid, self.lock)

    def _lend(self) -> None:
        """kyb-enter never reads them: they are open for as long as it lives."""
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            with keeper:
                for at in range(0, len(self.held), _AT_ONCE):
                    socket.send_fds(keeper, [b"."], self.held[at : at + _AT_ONCE])

    async def ended(self, until: Deadline, pidfd: int | None = None) -> bool:
        """Whether it did well. Raises DeadlineError; it serves on then. `pidfd`: of the container's
        process 1; raises NotFoundError if that has ended before."""
        end = select.poll()
        if pidfd is not None:
            end.register(pidfd, select.POLLIN)
        while (well := self.well) is None:
            # The server may hear of it no more: it waits for memory that is verified by nobody.
            if end.poll(0):
                raise NotFoundError("The container ended before its memory was in.")
            until.check("CRIU's lazy-pages took too long; it is left to end.")
            await asyncio.sleep(_POLL)
        return well

    async def seen_out(self) -> None:
        """Once it has ended well, nothing is held any more."""
        if await self.ended(Deadline(math.inf)):
            self.let_go()

    async def outlive(self, pidfd: int) -> None:
        """Holds on until this process has ended, and everything in its namespace with it."""
        end = select.poll()
        end.register(pidfd, select.POLLIN)
        try:
            while not end.poll(0):  # noqa: ASYNC110 - the loop that began this may be stopped
                await asyncio.sleep(_POLL)
        finally:
            os.close(pidfd)
            self.let_go()

    def end(self) -> None:
        """Its tree was never there, or is gone."""
        for pid in () if is_free(self.lock) else tuple(holders.find(self.lock)):
            holders.kill(pid, self.lock)
        self.let_go()

    def let_go(self) -> None:
        """All is in, or nobody can see what is missing."""
        if self.keeper is not None:
            self.keeper.close()
        while self.held:
            os.close(self.held.pop())


async def serve(
    tools: running.Tools,
    container: Container,
    images: Path,
    cgroups: Sequence[Path],
    until: Deadline,
) -> tuple[Served, running.Detached]:
    """Starts the process from which a lazily restored tree gets its memory, below a kyb-enter.
    Raises RestoreError, OSError."""
    (container.work / STATUS).write_text(_SERVES)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    served = Served(container.work, keeper=ours)
    run = running.Run(
        argv=["lazy-pages"],
        images=images,
        log="pages.log",
        lock=running.PAGES,
        cgroups=cgroups,
        status=container.work / STATUS,
        lent=(theirs.fileno(),),
    )
    try:
        with theirs:
            process = running.start_detached(tools, container, run)
        served.enter = process.pid
        await _listens(served, container, until)
    except BaseException:
        served.end()
        raise
    return served, process


async def reaped(process: running.Detached) -> None:
    """Returns once it has ended."""
    while process.poll() is None:  # noqa: ASYNC110 - asyncio doesn't know it
        await asyncio.sleep(_POLL)


async def _listens(served: Served, container: Container, until: Deadline) -> None:
    while not _is_open(container, served.enter):
        if served.well is not None or until.passed:
            said = running.complaints(container, "pages.log")
            raise RestoreError(f"CRIU's lazy-pages didn't start: {' / '.join(said[:3])}")
        await asyncio.sleep(_POLL)


def _is_open(container: Container, enter: int) -> bool:
    """Whether connections are taken: a moment after the socket's file is there, or long, where the
    disk has much to sync. `enter`: the kyb-enter that started the server."""
    # Others in the pod's network name their sockets as they like, by any bytes; on the node's own
    # network other servers' have the same name.
    sockets = smallfile.read(f"{container.proc}/{container.init}/net/unix")
    listening = {
        f"socket:[{inode}]" for flags, inode in _OURS.findall(sockets) if int(flags, 16) & _LISTENS
    }
    return bool(listening) and any(
        listening & holders.links(pid, container.proc) for pid in holders.descendants(enter)
    )


def left_by_another(root: Path, proc: Path) -> Iterator[Served]:
    """Servers of containers that live, by the folders of an agent that is no more; held. Others are
    ended: they may wait for what nobody brings."""
    for work in root.iterdir():
        served = Served(work)
        if served.well is not None:
            continue
        if _lives(work.name, proc):
            served.hold_again()
            yield served
        else:
            served.end()


async def clear(work: Path, until: Deadline) -> None:
    """Nothing is left of a lazy restore, whose tree is gone. Raises DeadlineError."""
    while not is_free(work / running.PAGES):
        Served(work).end()
        until.check("CRIU's lazy-pages was killed, and doesn't end.")
        await asyncio.sleep(_POLL)
    for name in (STATUS, _SOCKET):
        (work / name).unlink(missing_ok=True)


def _lives(name: str, proc: Path) -> bool:
    """Whether the process is there, and more than a zombie, that a folder is named after."""
    pid, _, start = name.partition("-")
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = smallfile.read(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        return fields[0] not in "ZX" and fields[19] == start
    return False
