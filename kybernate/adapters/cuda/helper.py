"""The processes that make the CUDA driver's checkpoint calls, so that a hung call can be killed.

The *mother* is started first thing by the agent: it imports the driver's binding, never calls it,
and forks one *helper* per seat on request. A helper initialises the driver once and then serves
its seat's orders, one at a time, over a SOCK_SEQPACKET socket: one JSON object per message.
`kybernate.adapters.cuda.driver` is the other end. Helpers die with the mother, the mother with the
agent.

The order of calls and what is done after a failed one follow the driver's documentation and the
failures that were observed: states are read before anything is locked, since asking one process
may hang while another of the same job is locked; all processes of a seat are locked, and moved, at
the same time, since the ranks of a job wait for each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Pairs = Sequence[tuple[bytes, bytes]]

_MESSAGE_LIMIT = 1 << 16
_MAX_PARALLEL = 16
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_INVALID_VALUE = 1
_ILLEGAL_STATE = 401
_NO_LIBRARY = 303
_NO_CUDA_CODES = frozenset({_INVALID_VALUE, 3, 201})
"""Invalid value, not initialised, invalid context: the process has nothing on a GPU."""


_PASSING = frozenset({4, 5})
"""CHECKPOINTING and RESTORING of drivers of 13.4 and later: an operation continues."""
_PASSING_POLL = 0.005
_ENDING = 0.5


class State(IntEnum):
    """CUprocessState, as far as a process can stay in it."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class CallError(Exception):
    """A driver call failed: its name, the driver's number and the driver's name for it."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(call, code, name)
        self.call = call
        self.code = code
        self.name = name


class Driver(Protocol):
    """The driver calls that are needed; each raises CallError."""

    def init(self) -> None:
        """Once, before all others."""

    def gpus(self) -> Sequence[bytes]:
        """The UUIDs of all GPUs that the kernel driver shows."""

    def state(self, pid: int) -> int:
        """The process's state, a number of `State` or above."""

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Let no further CUDA work of the process begin, and wait for what runs."""

    def checkpoint(self, pid: int) -> None:
        """Move its device memory to its host memory and give the GPUs back."""

    def restore(self, pid: int, pairs: Pairs) -> None:
        """The other way round; `pairs` (old UUID, new UUID) name every GPU, or none."""

    def unlock(self, pid: int) -> None:
        """Let it run on."""


class CudaDriver:
    """`Driver` on the vendor's binding."""

    def __init__(self) -> None:
        from cuda.bindings import driver  # noqa: PLC0415  (an extra of node images, and slow)

        self._driver: Any = driver

    def init(self) -> None:
        """Load libcuda and initialise it."""
        try:
            self._call("cuInit", 0)
        except RuntimeError as error:
            raise CallError("cuInit", _NO_LIBRARY, str(error)) from error

    def gpus(self) -> Sequence[bytes]:
        """UUIDs by index."""
        count = self._call("cuDeviceGetCount")
        devices = [self._call("cuDeviceGet", index) for index in range(count)]
        return [bytes(self._call("cuDeviceGetUuid", device).bytes) for device in devices]

    def state(self, pid: int) -> int:
        """CUprocessState's number."""
        return int(self._call("cuCheckpointProcessGetState", pid))

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Lock with a time limit: 0 would wait for ever."""
        args = self._driver.CUcheckpointLockArgs()
        args.timeoutMs = max(1, timeout_ms)
        self._call("cuCheckpointProcessLock", pid, args)

    def checkpoint(self, pid: int) -> None:
        """Checkpoint into the process's own host memory."""
        self._call("cuCheckpointProcessCheckpoint", pid, self._driver.CUcheckpointCheckpointArgs())

    def restore(self, pid: int, pairs: Pairs) -> None:
        """Restore, onto other GPUs if `pairs` says so."""
        args = self._driver.CUcheckpointRestoreArgs()
        if pairs:
            args.gpuPairs = [self._pair(old, new) for old, new in pairs]
            args.gpuPairsCount = len(pairs)
        self._call("cuCheckpointProcessRestore", pid, args)

    def unlock(self, pid: int) -> None:
        """Unlock."""
        self._call("cuCheckpointProcessUnlock", pid, self._driver.CUcheckpointUnlockArgs())

    def _pair(self, old: bytes, new: bytes) -> Any:
        pair = self._driver.CUcheckpointGpuPair()
        for name, value in (("oldUuid", old), ("newUuid", new)):
            buffer = ctypes.create_string_buffer(value, 16)
            # The assignment copies the bytes out of the buffer.
            setattr(pair, name, self._driver.CUuuid(ctypes.addressof(buffer)))
        return pair

    def _call(self, name: str, *args: Any) -> Any:
        error, *values = getattr(self._driver, name)(*args)
        if int(error) != 0:
            raise CallError(name, int(error), error.name)
        return values[0] if values else None


class Engine:
    """Parks and wakes the processes of one seat with a driver's calls."""

    def __init__(self, driver: Driver, patience: float = 0.0) -> None:
        """`patience`: seconds that a state which passes is given to pass."""
        self._driver = driver
        self.patience = patience
        self._pool: ThreadPoolExecutor | None = None

    def park(self, pids: Sequence[int], lock_ms: int) -> dict[str, float]:
        """Lock all, then checkpoint all; seconds of each phase.

        After a failure every process is brought back to running as far as the driver lets it,
        save those that were checkpointed before: there may be no room for them.
        """
        states = self._usable(pids)
        watch = _Watch()
        try:
            running = [pid for pid, state in states.items() if state is State.RUNNING]
            self._each(lambda pid: self._driver.lock(pid, lock_ms), running)
            watch.lap("lock")
            present = [pid for pid, state in states.items() if state is not State.CHECKPOINTED]
            self._each(self._driver.checkpoint, present)
            watch.lap("checkpoint")
        except CallError:
            before = {pid for pid, state in states.items() if state is State.CHECKPOINTED}
            self._bring_back([pid for pid in pids if pid not in before])
            raise
        return watch.laps

    def wake(self, pids: Sequence[int], gpu_map: Mapping[bytes, bytes]) -> dict[str, float]:
        """Restore all that are checkpointed, unlock all that are locked, see all running.

        If one can't be restored, those that were are checkpointed again: their memory is needed.
        """
        maps = self._maps(gpu_map)
        until, watch = time.monotonic() + self.patience, _Watch()
        while True:
            try:
                self._wake(pids, maps[0], watch)
            except CallError as error:
                if error.code == _INVALID_VALUE and len(maps) > 1:
                    del maps[0]
                    continue
                # A checkpoint whose caller died continues in the process and ends between a look
                # at its state and the next call: then that call was for another state.
                if error.code != _ILLEGAL_STATE or time.monotonic() >= until:
                    raise
                self._usable(pids)
                time.sleep(_PASSING_POLL)
            else:
                return watch.laps

    def _maps(self, gpu_map: Mapping[bytes, bytes]) -> list[Pairs]:
        """The driver wants each GPU named that a process could open, and no other one: those of
        its seat, or all of the node's where nothing keeps it from them. What is tried in turn."""
        own = tuple(gpu_map.items())
        whole = full_map(self._driver.gpus(), gpu_map) if gpu_map else own
        return [own] if own == whole else [own, whole]

    def _wake(self, pids: Sequence[int], pairs: Pairs, watch: _Watch) -> None:
        states = self._usable(pids)
        parked = [pid for pid, state in states.items() if state is State.CHECKPOINTED]
        try:
            self._each(lambda pid: self._driver.restore(pid, pairs), parked)
        except CallError:
            self._put_back(parked)
            raise
        watch.lap("restore")
        stopped = [pid for pid, state in states.items() if state is not State.RUNNING]
        self._each(self._driver.unlock, stopped)
        watch.lap("unlock")
        self._see_running(pids)
        watch.lap("canary")

    def _see_running(self, pids: Sequence[int]) -> None:
        left = self._usable(pids)
        for pid, state in left.items():
            if state is not State.RUNNING:
                raise CallError("cuCheckpointProcessUnlock", _ILLEGAL_STATE, f"{pid} is {state}")
        if pids and not left:
            raise CallError(
                "cuCheckpointProcessGetState", _INVALID_VALUE, "none of its processes is left"
            )

    def states(self, pids: Iterable[int]) -> dict[int, State | None]:
        """Each process's state; None if it is gone, or has nothing on a GPU."""
        return {pid: self._state(pid) for pid in pids}

    def _usable(self, pids: Iterable[int]) -> dict[int, State]:
        """The states of the processes that have one; a failed one is an error."""
        known = {pid: state for pid, state in self.states(pids).items() if state is not None}
        for pid, state in known.items():
            if state is State.FAILED:
                raise CallError(
                    "cuCheckpointProcessGetState", _ILLEGAL_STATE, f"process {pid} is FAILED"
                )
        return known

    def _state(self, pid: int) -> State | None:
        """Its state; one that should pass and doesn't is as good as FAILED."""
        until = time.monotonic() + self.patience
        while (value := self._answer(pid)) in _PASSING and time.monotonic() < until:
            time.sleep(_PASSING_POLL)
        if value is None:
            return None
        return State(value) if value <= State.FAILED else State.FAILED

    def _answer(self, pid: int) -> int | None:
        """The driver's word; None if the process is gone, or has nothing on a GPU."""
        until = time.monotonic() + min(self.patience, _ENDING)
        while True:
            try:
                return self._driver.state(pid)
            except CallError as error:
                if error.code in _NO_CUDA_CODES or not _lives(pid):
                    return None
                # One that is just dying can't be asked any more, and is there for a moment yet.
                if time.monotonic() >= until:
                    raise
            time.sleep(_PASSING_POLL)

    def _each(self, action: Callable[[int], None], pids: Sequence[int]) -> None:
        """Do it to all at the same time, wait for all, raise the first error of those left."""
        errors = self._errors(action, pids)
        for pid, error in errors:
            if error is not None and self._state(pid) is not None:
                raise error

    def _errors(
        self, action: Callable[[int], None], pids: Sequence[int]
    ) -> list[tuple[int, CallError | None]]:
        def attempt(pid: int) -> tuple[int, CallError | None]:
            try:
                action(pid)
            except CallError as error:
                return pid, error
            return pid, None

        if len(pids) <= 1:
            return [attempt(pid) for pid in pids]
        self._pool = self._pool or ThreadPoolExecutor(_MAX_PARALLEL)
        return list(self._pool.map(attempt, pids))

    def _bring_back(self, pids: Sequence[int]) -> None:
        """After a failed park; what fails again here is visible in the states."""
        with contextlib.suppress(CallError):
            states = self.states(pids)
            parked = [pid for pid, state in states.items() if state is State.CHECKPOINTED]
            self._errors(lambda pid: self._driver.restore(pid, ()), parked)
            states = self.states(pids)
            locked = [pid for pid, state in states.items() if state is State.LOCKED]
            self._errors(self._driver.unlock, locked)

    def _put_back(self, pids: Sequence[int]) -> None:
        """After a failed wake; what fails again here is visible in the states."""
        with contextlib.suppress(CallError):
            states = self.states(pids)
            restored = [pid for pid, state in states.items() if state is State.LOCKED]
            self._errors(self._driver.checkpoint, restored)


class _Watch:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._since
        self._since = now


def full_map(gpus: Sequence[bytes], given: Mapping[bytes, bytes]) -> Pairs:
    """A permutation of all GPUs that contains `given`, for a process that could open them all.

    GPUs that aren't named stay where they are, unless another one comes there. What comes from
    another node's GPUs names all that it had itself.
    """
    pairs = dict(given)
    if not given.keys() <= set(gpus):
        return tuple(pairs.items())
    free = [gpu for gpu in gpus if gpu not in set(given.values())]
    for gpu in gpus:
        if gpu not in pairs and gpu in free:
            pairs[gpu] = gpu
            free.remove(gpu)
    for gpu in gpus:
        if gpu not in pairs:
            pairs[gpu] = free.pop(0)
    return tuple(pairs.items())


def processes(ids: Iterable[int]) -> list[int]:
    """The processes of these IDs, each once: the driver takes a thread's for its process's, and
    would be asked to lock the same process twice."""
    return list(dict.fromkeys(_process_of(number) for number in ids))


def _process_of(number: int) -> int:
    try:
        with open(f"/proc/{number}/status") as status:
            groups = [line.split()[1] for line in status if line.startswith("Tgid:")]
    except OSError:
        return number
    return int(groups[0]) if groups else number


def _lives(pid: int) -> bool:
    """Whether there is such a process; one that nobody has reaped yet can't be asked either."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def uuid_bytes(uuid: str) -> bytes:
    """The driver's 16 bytes of NVML's "GPU-<uuid>"."""
    return bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))


def answer(engine: Engine, driver: Driver, order: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one order of the agent's."""
    op = order["op"]
    if op == "init":
        driver.init()
        return {}
    engine.patience = float(order.get("patience", 0))
    pids = [int(pid) for pid in order["pids"]]
    if op == "park":
        return engine.park(processes(pids), int(order["lock_ms"]))
    if op == "wake":
        gpu_map = {uuid_bytes(old): uuid_bytes(new) for old, new in order["gpu_map"].items()}
        return engine.wake(processes(pids), gpu_map)
    if op == "states":
        return {
            str(pid): None if state is None else int(state)
            for pid, state in engine.states(pids).items()
        }
    raise ValueError(f"unknown order {op!r}")


def serve(link: socket.socket, driver: Driver) -> None:
    """The helper's life: orders in, results out, until the agent closes the socket."""
    engine = Engine(driver)
    while message := link.recv(_MESSAGE_LIMIT):
        result: dict[str, Any]
        try:
            result = {"ok": answer(engine, driver, json.loads(message))}
        except CallError as error:
            result = {"error": [error.call, error.code, error.name]}
        link.send(json.dumps(result).encode())


def _become_helper(link: socket.socket, name: bytes, mother: int, driver: Driver) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
    if os.getppid() != mother:
        return  # it died before the kernel was asked to tell us
    handle = os.pidfd_open(os.getpid())
    socket.send_fds(link, [b"ready"], [handle])
    os.close(handle)
    serve(link, driver)


def mother(control: socket.socket, driver: Driver) -> None:
    """Fork a helper for every socket that the agent hands over, until the agent is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent says when it is over
    me = os.getpid()
    while True:
        name, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not name:
            return
        for descriptor in descriptors:
            if os.fork() == 0:
                control.close()
                try:
                    _become_helper(socket.socket(fileno=descriptor), name, me, driver)
                finally:
                    os._exit(0)
            os.close(descriptor)


def main(driver: Callable[[], Driver] = CudaDriver) -> None:
    """The mother's process; its one argument is the number of its end of the control socket."""
    mother(socket.socket(fileno=int(sys.argv[1])), driver())


if __name__ == "__main__":
    main()
