"""NVML: what GPUs a node has, how they are linked, and who holds how much of their memory.

NVML calls can hang while a GPU falls off the bus, and a C call can't be interrupted. So they run
in a worker thread that is given up at its deadline and replaced.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kybernate.errors import DeadlineError, DriverError
from kybernate.types import Gpu, GpuUuid, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
log = logging.getLogger(__name__)

DEADLINE = 5.0
"""Seconds that one question to NVML may take."""

_AT_ONCE = 0.001
"""Seconds that an event loop waits on the spot: most answers take a tenth of it, less than it takes
the loop to be told of them."""

_MAX_HUNG = 8
_MAX_NVLINKS = 36
_P2P_NVLINK = 2
_P2P_OK = 0
_NODE_SCOPE = 0
_NODE_WORDS = 16
_PCI_DEVICES = Path("/sys/bus/pci/devices")

_ANCESTOR_LINK = {
    0: Link.PCIE_SWITCH,  # two GPUs of one board
    10: Link.PCIE_SWITCH,
    20: Link.PCIE_SWITCH,
    30: Link.HOST_BRIDGE,
    40: Link.NUMA_NODE,
    50: Link.SYSTEM,
}


class Nvml:
    """Implements `kybernate.ports.Gpus`, and the inventory, with the vendor's Python binding.

    Any thread may call. NVML is loaded at the first call, and again at the next one if that
    fails. `pci_devices` is where sysfs lists PCI devices.
    """

    def __init__(self, deadline: float = DEADLINE, pci_devices: Path = _PCI_DEVICES) -> None:
        self._deadline = deadline
        self._worker = _Worker()
        self._pci_devices = pci_devices
        self._library: Any = None
        self._handles: dict[GpuUuid, Any] = {}
        self._seen: dict[GpuUuid, Gpu] = {}

    def devices(self) -> tuple[Gpu, ...]:
        """All GPUs by index. One that was seen before and is lost now comes as unhealthy.

        Raises DriverError if NVML can't be loaded, DeadlineError if it hangs.
        """
        return self._ask(self._devices)

    def links(self) -> Mapping[frozenset[GpuUuid], Link]:
        """The best path between each two GPUs that answer. Raises DriverError, DeadlineError."""
        return self._ask(self._links)

    def used(self, gpu: GpuUuid) -> int:
        """Bytes of the GPU's memory in use by anyone. Raises DriverError, DeadlineError."""
        return self._ask(
            lambda nvml: int(
                self._on(gpu, "nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo).used
            )
        )

    def processes(self, gpu: GpuUuid) -> tuple[tuple[int, int | None], ...]:
        """(PID, bytes or None) of each process that holds it. Raises DriverError, DeadlineError."""
        return self._ask(
            lambda nvml: tuple(
                (int(process.pid), process.usedGpuMemory)
                for process in self._on(
                    gpu,
                    "nvmlDeviceGetComputeRunningProcesses",
                    nvml.nvmlDeviceGetComputeRunningProcesses,
                )
            )
        )

    def driver_versions(self) -> tuple[str, str]:
        """(driver, CUDA), such as ("580.95.05", "13.0"). Raises DriverError, DeadlineError."""
        return self._ask(_versions)

    async def ask(self, call: Callable[[], T], deadline: float) -> T:
        """Make a call that asks one thing or several, from an event loop, without blocking it.

        Raises what the call raises, and DeadlineError after `deadline` seconds.
        """
        return await self._worker.answer(call, deadline)

    def _ask(self, question: Callable[[Any], T]) -> T:
        return self._worker.run(lambda: question(self._load()), self._deadline)

    def _load(self) -> Any:
        if self._library is None:
            import pynvml  # noqa: PLC0415  (the binding is an extra of node images)

            _call(pynvml, "nvmlInit", pynvml.nvmlInit)
            self._library = pynvml
        return self._library

    def _on(self, gpu: GpuUuid, name: str, function: Callable[..., Any]) -> Any:
        """Call a function of one GPU by its handle, which a lost GPU gets anew afterwards."""
        nvml = self._library
        if gpu not in self._handles:
            self._handles[gpu] = _call(
                nvml, "nvmlDeviceGetHandleByUUID", nvml.nvmlDeviceGetHandleByUUID, gpu
            )
        try:
            return _call(nvml, name, function, self._handles[gpu])
        except DriverError:
            self._handles.pop(gpu, None)
            raise

    def _devices(self, nvml: Any) -> tuple[Gpu, ...]:
        found: dict[GpuUuid, Gpu] = {}
        for index in range(_call(nvml, "nvmlDeviceGetCount", nvml.nvmlDeviceGetCount)):
            try:
                gpu = self._describe(nvml, index)
            except DriverError as error:
                log.warning("GPU %d gives no answer: %s", index, error)
                continue
            # Indices of the others move up when a GPU falls off the bus; names are made of them.
            known = self._seen.get(gpu.uuid)
            found[gpu.uuid] = replace(gpu, index=known.index) if known else gpu
        lost = {uuid: replace(gpu, healthy=False) for uuid, gpu in self._seen.items()}
        self._seen = {**lost, **found}
        return tuple(sorted(self._seen.values(), key=lambda gpu: gpu.index))

    def _describe(self, nvml: Any, index: int) -> Gpu:
        handle = _call(nvml, "nvmlDeviceGetHandleByIndex", nvml.nvmlDeviceGetHandleByIndex, index)
        memory = _call(nvml, "nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo, handle)
        return Gpu(
            uuid=GpuUuid(_text(_call(nvml, "nvmlDeviceGetUUID", nvml.nvmlDeviceGetUUID, handle))),
            index=index,
            product=_text(_call(nvml, "nvmlDeviceGetName", nvml.nvmlDeviceGetName, handle)),
            memory=int(memory.total),
            numa=self._numa(nvml, handle),
        )

    def _numa(self, nvml: Any, handle: Any) -> int:
        with suppress(DriverError, OSError, ValueError):
            bus = _call(nvml, "nvmlDeviceGetPciInfo", nvml.nvmlDeviceGetPciInfo, handle).busId
            # NVML writes the domain with eight digits, sysfs with four.
            name = _text(bus).lower().removeprefix("0000")
            node = int((self._pci_devices / name / "numa_node").read_text())
            if node >= 0:
                return node
        with suppress(DriverError):
            words = _call(
                nvml,
                "nvmlDeviceGetMemoryAffinity",
                nvml.nvmlDeviceGetMemoryAffinity,
                handle,
                _NODE_WORDS,
                _NODE_SCOPE,
            )
            mask = sum(int(word) << (64 * place) for place, word in enumerate(words))
            return (mask & -mask).bit_length() - 1
        return -1

    def _links(self, nvml: Any) -> Mapping[frozenset[GpuUuid], Link]:
        handles = {
            gpu.uuid: _call(
                nvml, "nvmlDeviceGetHandleByUUID", nvml.nvmlDeviceGetHandleByUUID, gpu.uuid
            )
            for gpu in self._devices(nvml)
            if gpu.healthy
        }
        return {
            frozenset((a, b)): _link(nvml, handles[a], handles[b])
            for a, b in itertools.combinations(handles, 2)
        }


class _Worker:
    """Asks NVML in a thread, and takes another one when a question outlives its deadline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._given_up: list[_Thread] = []

    def run(self, question: Callable[[], T], deadline: float) -> T:
        """The answer, or what it raised. Raises DeadlineError after `deadline` seconds."""
        if isinstance(threading.current_thread(), _Thread):
            return question()  # part of a call that `answer` watches over
        thread, future = self._begin(question)
        try:
            return future.result(deadline)
        except TimeoutError as error:
            raise self._given_up_by(thread, deadline) from error

    async def answer(self, question: Callable[[], T], deadline: float) -> T:
        """Like `run`, for an event loop, which is held up for `_AT_ONCE` at most."""
        thread, future = self._begin(question)
        try:
            return future.result(_AT_ONCE)
        except TimeoutError:
            pass
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline)
        except TimeoutError as error:
            raise self._given_up_by(thread, deadline) from error

    def _begin(self, question: Callable[[], T]) -> tuple[_Thread, Future[T]]:
        future: Future[T] = Future()
        thread = self._current()
        thread.questions.put((future, question))
        return thread, future

    def _given_up_by(self, thread: _Thread, deadline: float) -> DeadlineError:
        self._give_up(thread)
        return DeadlineError(f"NVML gave no answer within {deadline:g} s.")

    def _current(self) -> _Thread:
        with self._lock:
            self._given_up = [thread for thread in self._given_up if thread.is_alive()]
            if len(self._given_up) >= _MAX_HUNG:
                raise DeadlineError("NVML hangs: reset the node's GPUs, or reboot it.")
            if self._thread is None:
                self._thread = _Thread()
            return self._thread

    def _give_up(self, thread: _Thread) -> None:
        with self._lock:
            if self._thread is thread:
                self._thread = None
                thread.given_up = True
                self._given_up.append(thread)


class _Thread(threading.Thread):
    """Answers one question after the other until it is given up."""

    def __init__(self) -> None:
        super().__init__(name="nvml", daemon=True)
        self.questions: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = (
            queue.SimpleQueue()
        )
        self.given_up = False
        self.start()

    def run(self) -> None:
        """The thread's life."""
        while not self.given_up:
            future, question = self.questions.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(question())
            except Exception as error:  # noqa: BLE001  (carried to the caller)
                future.set_exception(error)


def _call(nvml: Any, name: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except nvml.NVMLError as error:
        raise DriverError(name, int(error.value), str(error)) from error


def _versions(nvml: Any) -> tuple[str, str]:
    driver = _call(nvml, "nvmlSystemGetDriverVersion", nvml.nvmlSystemGetDriverVersion)
    cuda = _call(nvml, "nvmlSystemGetCudaDriverVersion", nvml.nvmlSystemGetCudaDriverVersion_v2)
    return _text(driver), f"{cuda // 1000}.{cuda % 1000 // 10}"


def _link(nvml: Any, a: Any, b: Any) -> Link:
    if _has_nvlink(nvml, a, b):
        return Link.NVLINK
    level = _call(
        nvml,
        "nvmlDeviceGetTopologyCommonAncestor",
        nvml.nvmlDeviceGetTopologyCommonAncestor,
        a,
        b,
    )
    return _ANCESTOR_LINK.get(int(level), Link.SYSTEM)


def _has_nvlink(nvml: Any, a: Any, b: Any) -> bool:
    # P2P answers for links through an NVSwitch too; older drivers know only direct ones.
    with suppress(DriverError):
        status = _call(
            nvml, "nvmlDeviceGetP2PStatus", nvml.nvmlDeviceGetP2PStatus, a, b, _P2P_NVLINK
        )
        return int(status) == _P2P_OK
    with suppress(DriverError):
        other = _text(_call(nvml, "nvmlDeviceGetPciInfo", nvml.nvmlDeviceGetPciInfo, b).busId)
        return other in _nvlink_neighbours(nvml, a)
    return False


def _nvlink_neighbours(nvml: Any, handle: Any) -> set[str]:
    found = set()
    for link in range(_MAX_NVLINKS):
        with suppress(DriverError):
            if _call(nvml, "nvmlDeviceGetNvLinkState", nvml.nvmlDeviceGetNvLinkState, handle, link):
                remote = _call(
                    nvml,
                    "nvmlDeviceGetNvLinkRemotePciInfo",
                    nvml.nvmlDeviceGetNvLinkRemotePciInfo,
                    handle,
                    link,
                )
                found.add(_text(remote.busId))
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
