"""The agent's end of the helper processes that make the CUDA driver's checkpoint calls.

A driver call can hang for ever and can't be interrupted; a process can be killed. So every seat
has a helper process of its own, with a deadline on everything it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import orjson

from kybernate import keys
from kybernate.errors import DeadlineError, DriverError
from kybernate.ports import ProcessState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kybernate.ports import Phases
    from kybernate.types import GpuUuid, PodUid

HELPER_COMMAND = (sys.executable, "-m", "kybernate.adapters.cuda.helper")

START_DEADLINE = 30.0
"""Seconds within which a helper must have initialised the driver: its first user on a node without
persistence mode waits for the GPUs to come up."""

_PATIENCE = 0.5
"""Share of a deadline that a process's state may take to pass: there must be time to judge it."""
_MESSAGE_LIMIT = 1 << 16
_STATES = {
    None: ProcessState.NO_CUDA,
    0: ProcessState.RUNNING,
    1: ProcessState.LOCKED,
    2: ProcessState.CHECKPOINTED,
    3: ProcessState.FAILED,
}


class CudaHelper:
    """Implements `kybernate.ports.DriverHelper` by orders to one helper process."""

    def __init__(self, link: socket.socket, process: int) -> None:
        """Take over both descriptors: the socket, and the process's pidfd."""
        self._link = link
        self._process = process
        self._alive = True
        self._busy = False

    @property
    def running(self) -> bool:
        """Whether it can take orders."""
        return self._alive

    async def initialise(self, deadline: float) -> None:
        """Load and initialise the driver. Raises DriverError, DeadlineError."""
        await self._order(deadline, op="init")

    async def park(self, pids: Sequence[int], lock_timeout: float, deadline: float) -> Phases:
        """Lock all, then checkpoint all; on DriverError all run again as far as they can."""
        phases: Phases = await self._order(
            deadline,
            op="park",
            pids=list(pids),
            lock_ms=max(1, round(lock_timeout * 1000)),
            patience=deadline * _PATIENCE,
        )
        return phases

    async def wake(
        self, pids: Sequence[int], gpu_map: Mapping[GpuUuid, GpuUuid], deadline: float
    ) -> Phases:
        """Restore all, unlock all, from whatever state each of them is in, and see all running.

        Processes that are gone, or have nothing on a GPU, are passed over, unless all are. After a
        restore that ran out of memory (DriverError 2) the process can't be saved: end it, and start
        the workload again.
        """
        moved = dict(gpu_map) if any(old != new for old, new in gpu_map.items()) else {}
        phases: Phases = await self._order(
            deadline, op="wake", pids=list(pids), gpu_map=moved, patience=deadline * _PATIENCE
        )
        return phases

    async def states(self, pids: Sequence[int], deadline: float) -> Mapping[int, ProcessState]:
        """Each process's state by the driver."""
        known = await self._order(
            deadline, op="states", pids=list(pids), patience=deadline * _PATIENCE
        )
        return {int(pid): _STATES[state] for pid, state in known.items()}

    def kill(self) -> None:
        """End the process at once; a call in progress raises DeadlineError."""
        if not self._alive:
            return
        self._alive = False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        os.close(self._process)
        if self._busy:
            # The event loop still watches it: let it see the end, then `_order` closes it.
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)
        else:
            self._link.close()

    async def _order(self, deadline: float, **order: Any) -> Any:
        if not self._alive or self._busy:
            state = "has been ended" if not self._alive else "is busy with another call"
            raise DeadlineError(f"The CUDA helper {state}; start another one.")
        self._busy = True
        try:
            result = await self._exchange(orjson.dumps(order), str(order["op"]), deadline)
        except BaseException:
            # Whatever it does by now, its next answer would be that of an older question.
            self.kill()
            raise
        finally:
            self._busy = False
            if not self._alive:
                self._link.close()
        if "error" in result:
            call, code, name = result["error"]
            raise DriverError(call, code, name)
        return result["ok"]

    async def _exchange(self, message: bytes, op: str, deadline: float) -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline):
                await loop.sock_sendall(self._link, message)
                answer = await loop.sock_recv(self._link, _MESSAGE_LIMIT)
        except TimeoutError as error:
            raise DeadlineError(
                f"The CUDA driver did not finish {op} within {deadline:g} s; its helper was "
                "killed. Ask the processes' states, or start the workload again."
            ) from error
        except OSError as error:
            raise DeadlineError(f"The CUDA helper died during {op}: {error}.") from error
        if not answer:
            raise DeadlineError(f"The CUDA helper died during {op}.")
        return orjson.loads(answer)


class CudaHelpers:
    """Implements `kybernate.ports.DriverHelpers`.

    Making it starts the process that helpers are forked from, which loads the binding while the
    caller continues: make it first thing. `command` gets the number of its control socket appended.
    """

    def __init__(self, command: Sequence[str] = HELPER_COMMAND) -> None:
        self._command = tuple(command)
        self._helpers: list[CudaHelper] = []
        self._control, self._mother = self._spawn()

    async def start(self, uid: PodUid) -> CudaHelper:
        """A live helper with the driver initialised. Raises DriverError, DeadlineError."""
        end = time.monotonic() + START_DEADLINE
        link = self._fork(f"kyb-cuda-{uid}")
        link.setblocking(False)
        try:
            process = await _ready(link, START_DEADLINE)
        except BaseException:
            link.close()
            raise
        helper = CudaHelper(link, process)
        self._helpers = [known for known in self._helpers if known.running] + [helper]
        try:
            await helper.initialise(end - time.monotonic())
        except DriverError:
            helper.kill()
            raise
        return helper

    def close(self) -> None:
        """End all helpers and the process they are forked from."""
        for helper in self._helpers:
            helper.kill()
        self._helpers = []
        self._control.close()
        self._mother.kill()
        self._mother.wait()

    def _fork(self, name: str) -> socket.socket:
        """Our end of a new helper's socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._control, [name.encode()[:64]], [theirs.fileno()])
            except OSError:
                self._respawn()
                socket.send_fds(self._control, [name.encode()[:64]], [theirs.fileno()])
        return ours

    def _respawn(self) -> None:
        self._control.close()
        self._mother.kill()
        self._mother.wait()
        self._control, self._mother = self._spawn()

    def _spawn(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            # A map of GPUs names all of them, however few are left to us.
            whole = {k: v for k, v in os.environ.items() if k != keys.ENV_CUDA_VISIBLE}
            mother = subprocess.Popen(
                [*self._command, str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                env=whole,
            )
        return ours, mother


async def _ready(link: socket.socket, deadline: float) -> int:
    """The pidfd that a new helper sends of itself. Raises DeadlineError."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link, readable.set)
    try:
        async with asyncio.timeout(deadline):
            await readable.wait()
        _, descriptors, _, _ = socket.recv_fds(link, 64, 1)
    except (TimeoutError, OSError) as error:
        raise DeadlineError("No CUDA helper could be started.") from error
    finally:
        loop.remove_reader(link)
    if not descriptors:
        raise DeadlineError("The CUDA helper died at its start; the agent's output says why.")
    return descriptors[0]
