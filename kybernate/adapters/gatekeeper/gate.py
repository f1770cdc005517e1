"""The gate before a parked pod: TCP of its tree's ports is dropped, so that it is sent again."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kybernate.adapters import smallfile
from kybernate.errors import DeadlineError, NotFoundError

from .nftables import Gate
from .tap import open_tap, understand

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_SYS_ADMIN = 1 << 21
_CAPABILITY_VERSION_3 = 0x20080522
_ANSWER = 2.0
_BATCH = 64
_GONE = (FileNotFoundError, ProcessLookupError)

_libc = ctypes.CDLL(None, use_errno=True)


class _Watch:
    """One namespace's tap, and whom it tells."""

    def __init__(
        self, tap: socket.socket, ports: frozenset[int], on_arrival: Callable[[str], None]
    ) -> None:
        self.tap, self._ports, self._on_arrival = tap, ports, on_arrival
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(tap, self._readable)

    def close(self) -> None:
        """Tell of nothing more."""
        self._loop.remove_reader(self.tap)
        self.tap.close()

    def _readable(self) -> None:
        for _ in range(_BATCH):
            try:
                packet = self.tap.recv(256)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._tell(f"the network went down: {error.strerror}")
                return
            found = understand(packet)
            if found and found[2] and found[1] in self._ports:
                self._tell(f"TCP from {found[0]} to port {found[1]}")
                return

    def _tell(self, words: str) -> None:
        self._loop.remove_reader(self.tap)
        self._on_arrival(words)


class NetGate:
    """Implements `kybernate.ports.Gatekeeper`. Calls come from one running event loop.

    Only the ports that the processes below `init` have are shut: other containers of the pod, as
    the sidecar that answers its probes, go on. A gate that is shut already keeps its ports.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._watches: dict[str, _Watch] = {}

    async def shut(self, init: int, on_arrival: Callable[[str], None], deadline: float) -> None:
        """Drop TCP from now on, and tell of the first that arrives; see the port."""
        name = self._namespace(init)
        ports = tree_ports(init, self._proc)

        def shut_inside() -> tuple[socket.socket, frozenset[int]]:
            gate = Gate(_ANSWER)
            try:
                # Opened first: what comes before the rule is there is seen as well.
                tap = open_tap()
                try:
                    gate.shut(ports)
                    return tap, gate.ports() or frozenset()
                except BaseException:
                    tap.close()
                    raise
            finally:
                gate.close()

        tap, shut = await self._inside(init, shut_inside, deadline, lambda got: got[0].close())
        self._forget(name)
        self._watches[name] = _Watch(tap, shut, on_arrival)

    async def open(self, init: int, deadline: float) -> None:
        """Let TCP pass, and tell of nothing any more; see the port."""

        def open_inside() -> None:
            gate = Gate(_ANSWER)
            try:
                gate.open()
            finally:
                gate.close()

        try:
            name = self._namespace(init)
            await self._inside(init, open_inside, deadline)
        except NotFoundError:
            return
        self._forget(name)

    async def dropped(self, init: int, deadline: float) -> int:
        """Packets dropped since it was shut. Raises NotFoundError, OSError, DeadlineError."""

        def ask_inside() -> int:
            gate = Gate(_ANSWER)
            try:
                return gate.dropped()
            finally:
                gate.close()

        return await self._inside(init, ask_inside, deadline)

    def _forget(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.close()

    def _namespace(self, init: int) -> str:
        try:
            return os.readlink(self._proc / str(init) / "ns/net")
        except _GONE as error:
            raise NotFoundError(f"There is no process {init} any more.") from error

    async def _inside(
        self,
        init: int,
        call: Callable[[], T],
        deadline: float,
        drop: Callable[[T], None] = lambda _: None,
    ) -> T:
        """What `call` returns in the namespace, from a thread that enters it and ends there."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: list[T], error: Exception | None) -> None:
            if answer.done():
                for one in result:
                    drop(one)
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result[0])

        def run() -> None:
            result: list[T] = []
            problem: Exception | None = None
            try:
                enter(self._proc / str(init) / "ns/net")
                result.append(call())
            except _GONE as error:
                problem = NotFoundError(f"There is no process {init} any more: {error}")
            except (OSError, struct.error) as error:
                problem = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, result, problem)

        threading.Thread(target=run, daemon=True).start()
        try:
            async with asyncio.timeout(deadline):
                return await answer
        except TimeoutError as error:
            raise DeadlineError("The network namespace's gate didn't answer in time.") from error


def enter(namespace: Path) -> None:
    """Take the calling thread there for good. Raises OSError."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    sets = ctypes.create_string_buffer(24)
    if _libc.capget(header, sets) == 0:
        # The agent keeps this right permitted, not effective.
        words = list(struct.unpack("=6I", sets.raw))
        words[0] |= _SYS_ADMIN
        _libc.capset(header, ctypes.create_string_buffer(struct.pack("=6I", *words), 24))
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def tree_ports(init: int, proc: Path) -> frozenset[int]:
    """The local TCP ports of the processes below `init`."""
    held = {link for pid in _below(init, proc) for link in _sockets(pid, proc)}
    found = set()
    for table in ("net/tcp", "net/tcp6"):
        with suppress(*_GONE):
            for line in smallfile.read(f"{proc}/{init}/{table}").splitlines()[1:]:
                words = line.split()
                if f"socket:[{words[9]}]" in held:
                    found.add(int(words[1].rpartition(":")[2], 16))
    return frozenset(found)


def _below(pid: int, proc: Path) -> list[int]:
    found = [pid]
    for one in found:
        with suppress(*_GONE):
            for thread in os.listdir(proc / str(one) / "task"):
                with suppress(*_GONE):
                    children = smallfile.read(f"{proc}/{one}/task/{thread}/children")
                    found += [int(word) for word in children.split()]
    return found[1:]


def _sockets(pid: int, proc: Path) -> list[str]:
    folder = proc / str(pid) / "fd"
    found: list[str] = []
    with suppress(*_GONE):
        for name in os.listdir(folder):
            with suppress(*_GONE):
                found.append(os.readlink(folder / name))
    return found
