"""Holds TCP back from a pod whose tree was ended, and tells when somebody calls.

The rules live in the pod's network namespace and outlive the agent; a small file says which ports
they are about, so that an agent that was restarted listens at the same ones. It is believed only
of a namespace that has rules: the kernel gives the number of one that is gone to the next.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals import held, mptcp, nftables, tap
from kybernate.adapters.arrivals.closing import close_aside
from kybernate.adapters.arrivals.cut import cut_off
from kybernate.adapters.arrivals.duplicates import Duplicator, let_go
from kybernate.adapters.arrivals.namespace import inside
from kybernate.errors import DeadlineError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

_PACKETS_AT_ONCE = 64
_INET = (socket.AF_INET, socket.AF_INET6)
_FEW = 256
"""Up to so many sockets each is looked at by itself; the kernel's table of TCP costs more to read,
even if it is empty."""


class NetworkGate:
    """Implements `kybernate.ports.Gatekeeper`. `folder` is on a file system that a boot empties;
    `tree` lists all processes below a container's PID 1.

    Only what goes to or comes from the ports of the tree's own sockets is held back: the pod's
    other containers, its sidecar with the probes among them, continue. Needs CAP_SYS_ADMIN (setns),
    CAP_NET_ADMIN and CAP_NET_RAW.
    """

    def __init__(self, folder: Path, tree: Callable[[int], Iterable[int]]) -> None:
        self._folder = folder
        self._tree = tree
        self._taps: dict[int, socket.socket] = {}
        self._held: dict[int, socket.socket] = {}
        self._spaces: dict[int, int] = {}

    async def shut(
        self, init: int, on_arrival: Callable[[str], None], deadline: float, port: int = 0
    ) -> None:
        """See `ports.Gatekeeper.shut`."""
        try:
            space = _space_of(init)

            def do() -> socket.socket:
                # Not on the event loop: a tree may have ten thousand sockets.
                now = frozenset((*_ports_of(init, self._tree(init)), *((port,) if port else ())))
                self._hold(space)
                if nftables.is_shut():
                    return tap.open_tap(self._known(space) or now)
                self._remember(space, now)
                # Before the rules: what they drop is seen from the first packet on.
                opened = tap.open_tap(now)
                nftables.shut(now)
                return opened

            opened = await asyncio.wait_for(inside(init, do, close_aside), deadline)
        except TimeoutError as error:
            raise DeadlineError(f"TCP is not held back within {deadline:g} s") from error
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no process {init} any more.") from error
        self._spaces[init] = space
        self._listen(space, opened, on_arrival)

    async def open(self, init: int, deadline: float) -> int:
        """See `ports.Gatekeeper.open`."""
        shut = self._spaces.get(init)
        try:
            space = _space_of(init, shut)
            self._hang_up(space)
            queue = self._held.get(space)
            # Also on the node's network: older releases shut there.
            opening = inside(init, lambda: _open_again(queue), anywhere=True)
            dropped = await asyncio.wait_for(opening, deadline)
        except TimeoutError as error:
            raise DeadlineError(f"TCP is still held back after {deadline:g} s") from error
        except FileNotFoundError:
            # It is gone, perhaps with its namespace, which our tap would keep alive.
            if shut is not None:
                self._hang_up(shut)
                self._let_go(init, shut)
            return 0
        self._let_go(init, space)
        return dropped

    async def cut(self, init: int, deadline: float) -> None:
        """See `ports.Gatekeeper.cut`."""
        await self._change(init, cut_off, "its network is not cut off", deadline)

    async def plain(self, init: int, deadline: float) -> None:
        """See `ports.Gatekeeper.plain`."""
        await self._change(init, mptcp.switch_off, "MPTCP is not switched off", deadline)

    async def _change(
        self, init: int, change: Callable[[], None], late: str, deadline: float
    ) -> None:
        """Something of the pod's network that would be the node's where it has none of its own."""
        try:
            await asyncio.wait_for(inside(init, change), deadline)
        except TimeoutError as error:
            raise DeadlineError(f"{late} within {deadline:g} s") from error
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no process {init} any more.") from error

    def close(self) -> None:
        """Tell of nothing any more; what is held back is held back."""
        for space in tuple(self._taps):
            self._hang_up(space)
        for space in tuple(self._held):
            self._drop_held(space)

    def _hold(self, space: int) -> None:
        """Connections' first packets wait for the gate; where the kernel has no queue for them, or
        another has it, they are dropped like all others."""
        if space not in self._held:
            with suppress(OSError):
                self._held[space] = held.hold()

    def _drop_held(self, space: int) -> None:
        one = self._held.pop(space, None)
        if one is not None:
            held.drop(one)

    def _let_go(self, init: int, space: int) -> None:
        """Nothing is held back there any more. Not before: what is held keeps the namespace."""
        self._drop_held(space)
        self._file(space).unlink(missing_ok=True)
        self._spaces.pop(init, None)

    def _listen(self, space: int, one: socket.socket, on_arrival: Callable[[str], None]) -> None:
        self._hang_up(space)
        self._taps[space] = one

        def readable() -> None:
            for _ in range(_PACKETS_AT_ONCE):
                packet = tap.read(one)
                if not packet:
                    return
                if tap.calls(packet):
                    self._hang_up(space)
                    on_arrival(f"somebody sent to its port {tap.port_of(packet)}")
                    return

        asyncio.get_running_loop().add_reader(one.fileno(), readable)

    def _hang_up(self, space: int) -> None:
        one = self._taps.pop(space, None)
        if one is not None:
            asyncio.get_running_loop().remove_reader(one.fileno())
            close_aside(one)

    def _file(self, space: int) -> Path:
        return self._folder / f"{space}.json"

    def _known(self, space: int) -> frozenset[int]:
        try:
            found = json.loads(self._file(space).read_text())
        except (FileNotFoundError, ValueError):
            return frozenset()
        ports = found if isinstance(found, list) else []
        return frozenset(port for port in ports if isinstance(port, int))

    def _remember(self, space: int, ports: Iterable[int]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._folder / f"{space}.part"
        part.write_text(json.dumps(sorted(ports)))
        part.replace(self._file(space))


def _open_again(queue: socket.socket | None) -> int:
    """How many packets were not let through at once."""
    if queue is None:
        return nftables.open_again()
    waited = 0

    def let_go() -> None:
        nonlocal waited
        with suppress(OSError):  # it would be sent again
            waited = held.let_go(queue)

    return nftables.open_again(let_go) + waited


def _space_of(pid: int, expected: int | None = None) -> int:
    """What names a network namespace while it lives. Raises FileNotFoundError, also where another
    process has the number now."""
    found = Path(f"/proc/{pid}/ns/net").stat().st_ino
    if expected not in (None, found):
        raise FileNotFoundError(pid)
    return found


def _ports_of(init: int, tree: Iterable[int]) -> Iterator[int]:
    """Local ports of all TCP sockets that these processes hold. A connection that nobody has
    accepted yet is nobody's, and has its listener's."""
    mine = {inode: (pid, at) for pid in tree for inode, at in _sockets_of(pid)}
    return _ports_of_each(mine.values()) if len(mine) <= _FEW else _ports_of_tables(init, mine)


def _ports_of_each(places: Iterable[tuple[int, int]]) -> Iterator[int]:
    duplicator = Duplicator()
    try:
        for place in places:
            one = duplicator.duplicate(place)
            if one is not None:
                is_tcp = one.family in _INET and one.proto == socket.IPPROTO_TCP
                port = one.getsockname()[1] if is_tcp else 0
                let_go(one, place)
                if port:
                    yield int(port)
    finally:
        duplicator.close()


def _ports_of_tables(init: int, mine: Collection[str]) -> Iterator[int]:
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(f"/proc/{init}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[9] in mine:
                    yield int(words[1].rpartition(":")[2], 16)


def _sockets_of(pid: int) -> Iterator[tuple[str, int]]:
    """Inode and descriptor of each."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    yield target[8:-1], int(entry.name)
