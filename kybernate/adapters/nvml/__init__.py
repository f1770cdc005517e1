"""NVML: what GPUs a node has, how they are linked, and who holds how much of their memory.

NVML calls can hang while a GPU falls off the bus, and a C call can't be interrupted. So they run
in a worker thread that is given up at its deadline and replaced.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kybernate.adapters.nvml.calls import call, text
from kybernate.adapters.nvml.events import EventSet, Listener
from kybernate.adapters.nvml.worker import Worker
from kybernate.core.doctor.health import Checkup, Readings
from kybernate.errors import DeadlineError, DriverError
from kybernate.types import Gpu, GpuUuid, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.doctor.health import GpuEvent

T = TypeVar("T")
log = logging.getLogger(__name__)

DEADLINE = 5.0
"""Seconds that one question to NVML may take."""

_CHECKUP = 2.0
_RENEW_EVERY = 1.0
_SESSION_OVER = frozenset({1, 9, 999})  # not initialised, no driver, unknown
_END_SESSION = 1.0
_FIELDS = (230, 145)  # recovery action, failed remapping of rows

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
    fails. `pci_devices` is where sysfs lists PCI devices. With `renews` a session that ended with
    the driver is begun again without `reload`, at most once a second.
    """

    def __init__(
        self,
        deadline: float = DEADLINE,
        pci_devices: Path = _PCI_DEVICES,
        *,
        renews: bool = False,
    ) -> None:
        self._deadline = deadline
        self._renews = renews
        self._doubted = False
        self._renew_at = 0.0
        self._worker = Worker()
        self._pci_devices = pci_devices
        self._library: Any = None
        self._handles: dict[GpuUuid, Any] = {}
        self._seen: dict[GpuUuid, Gpu] = {}
        self._silent: set[int] = set()
        self._session = 0
        self._sessions = 0
        self._gate = threading.Lock()

    def devices(self) -> tuple[Gpu, ...]:
        """All GPUs by index. One that was seen before and is lost now comes as unhealthy.

        Raises DriverError if NVML can't be loaded, DeadlineError if it hangs.
        """
        self._refuse_if_hung()
        return self._ask(self._devices)

    def links(self) -> Mapping[frozenset[GpuUuid], Link]:
        """The best path between each two GPUs that answer. Raises DriverError, DeadlineError."""
        self._refuse_if_hung()
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

    def checkup(self, gpu: GpuUuid) -> Checkup:
        """How the GPU is. Takes at most two seconds; not to answer is an answer, too."""
        try:
            return self._worker.run(lambda: self._checkup(self._load(), gpu), _CHECKUP)
        except (DriverError, DeadlineError) as error:
            return Checkup(gone=str(error))

    def reload(self) -> None:
        """End the session with the driver and begin another: one that came back needs that.

        Raises DriverError if there is no driver, DeadlineError if a call hangs.
        """
        self._refuse_if_hung()
        self._ask(self._reload)

    def watch(self, tell: Callable[[GpuEvent], None], stop: threading.Event) -> None:
        """Tell of the driver's events about the GPUs of `devices` until `stop` is set; blocks."""
        Listener(
            lambda: EventSet(self._library, tuple(self._seen), self._bounded),
            lambda: tuple(self._seen),
            lambda: self._session,
            self._gate,
            tell,
        ).run(stop)

    async def ask(self, call: Callable[[], T], deadline: float) -> T:
        """Make a call that asks one thing or several, from an event loop, without blocking it.

        Raises what the call raises, and DeadlineError after `deadline` seconds.
        """
        return await self._worker.answer(call, deadline)

    def _ask(self, question: Callable[[Any], T]) -> T:
        return self._worker.run(lambda: question(self._load()), self._deadline)

    def _load(self) -> Any:
        if self._doubted and time.monotonic() >= self._renew_at:
            self._doubted, self._renew_at = False, time.monotonic() + _RENEW_EVERY
            self._reload(self._library)
        if self._library is None:
            import pynvml  # noqa: PLC0415  (the binding is an extra of node images)

            call(pynvml, "nvmlInit", pynvml.nvmlInit)
            self._library = pynvml
            self._begin()
        return self._library

    def _begin(self) -> None:
        self._handles.clear()
        self._sessions += 1
        self._session = self._sessions

    def _reload(self, nvml: Any) -> None:
        # The listener leaves its wait within moments when there is no session.
        self._session = 0
        if not self._gate.acquire(timeout=_END_SESSION):
            self._session = self._sessions
            raise DeadlineError("NVML hangs in a wait for events: reset its GPUs, or reboot.")
        try:
            self._library = None
            with suppress(DriverError):
                call(nvml, "nvmlShutdown", nvml.nvmlShutdown)
            self._load()
        finally:
            self._gate.release()

    def _bounded(self, gpu: GpuUuid, question: Callable[[], T]) -> T:
        """A call about a GPU; one that hangs costs a thread and is never made twice."""
        if self._worker.hung(gpu):
            raise DeadlineError(f"NVML still hangs in a call about {gpu}.")

        def about() -> T:
            with self._worker.about(gpu):
                return question()

        return self._worker.run(about, _CHECKUP)

    def _refuse_if_hung(self) -> None:
        if self._worker.hung():
            raise DeadlineError("a GPU doesn't answer NVML: reset it, or reboot the node.")

    def _on(self, gpu: GpuUuid, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of one GPU by its handle, which a lost GPU gets again afterwards."""
        nvml = self._library
        if self._worker.hung(gpu):
            raise DeadlineError(f"NVML still hangs in a call about {gpu}.")
        with self._worker.about(gpu):
            try:
                if gpu not in self._handles:
                    self._handles[gpu] = call(
                        nvml, "nvmlDeviceGetHandleByUUID", nvml.nvmlDeviceGetHandleByUUID, gpu
                    )
                return call(nvml, name, function, self._handles[gpu], *args)
            except DriverError as error:
                self._handles.pop(gpu, None)
                self._doubted = self._renews and error.code in _SESSION_OVER
                raise

    def _checkup(self, nvml: Any, gpu: GpuUuid) -> Checkup:
        memory = self._on(gpu, "nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo)
        recovery, remap_failed, mig, mps = None, None, [0, 0], []
        with suppress(DriverError):
            get = nvml.nvmlDeviceGetFieldValues
            values = self._on(gpu, "nvmlDeviceGetFieldValues", get, _FIELDS)
            recovery, remap_failed = (_number(value) for value in values)
        with suppress(DriverError):
            mig = self._on(gpu, "nvmlDeviceGetMigMode", nvml.nvmlDeviceGetMigMode)
        with suppress(DriverError):
            name = "nvmlDeviceGetMPSComputeRunningProcesses"
            mps = self._on(gpu, name, nvml.nvmlDeviceGetMPSComputeRunningProcesses)
        readings = Readings(int(memory.used), int(memory.total), *self._measured(nvml, gpu))
        return Checkup("", recovery, bool(remap_failed), bool(mig[0]), bool(mps), readings)

    def _measured(self, nvml: Any, gpu: GpuUuid) -> tuple[float | None, float | None, float | None]:
        """How busy, watts, degrees; None of what this GPU doesn't tell."""
        busy = power = temperature = None
        with suppress(DriverError):
            get = nvml.nvmlDeviceGetUtilizationRates
            busy = self._on(gpu, "nvmlDeviceGetUtilizationRates", get).gpu / 100
        with suppress(DriverError):
            power = self._on(gpu, "nvmlDeviceGetPowerUsage", nvml.nvmlDeviceGetPowerUsage) / 1000
        with suppress(DriverError):
            get, sensor = nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU
            temperature = float(self._on(gpu, "nvmlDeviceGetTemperature", get, sensor))
        return busy, power, temperature

    def _devices(self, nvml: Any) -> tuple[Gpu, ...]:
        found: dict[GpuUuid, Gpu] = {}
        for index in range(call(nvml, "nvmlDeviceGetCount", nvml.nvmlDeviceGetCount)):
            try:
                gpu = self._describe(nvml, index)
            except DriverError as error:
                level = logging.DEBUG if index in self._silent else logging.WARNING
                log.log(level, "GPU %d gives no answer: %s", index, error)
                self._silent.add(index)
                continue
            self._silent.discard(index)
            # Indices of the others move up when a GPU falls off the bus; names are made of them.
            known = self._seen.get(gpu.uuid)
            found[gpu.uuid] = replace(gpu, index=known.index) if known else gpu
        lost = {uuid: replace(gpu, healthy=False) for uuid, gpu in self._seen.items()}
        self._seen = {**lost, **found}
        return tuple(sorted(self._seen.values(), key=lambda gpu: gpu.index))

    def _describe(self, nvml: Any, index: int) -> Gpu:
        handle = call(nvml, "nvmlDeviceGetHandleByIndex", nvml.nvmlDeviceGetHandleByIndex, index)
        memory = call(nvml, "nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo, handle)
        return Gpu(
            uuid=GpuUuid(text(call(nvml, "nvmlDeviceGetUUID", nvml.nvmlDeviceGetUUID, handle))),
            index=index,
            product=text(call(nvml, "nvmlDeviceGetName", nvml.nvmlDeviceGetName, handle)),
            memory=int(memory.total),
            minor=self._minor(nvml, handle),
            numa=self._numa(nvml, handle),
        )

    def _minor(self, nvml: Any, handle: Any) -> int:
        with suppress(DriverError):
            get = nvml.nvmlDeviceGetMinorNumber
            return int(call(nvml, "nvmlDeviceGetMinorNumber", get, handle))
        return -1

    def _numa(self, nvml: Any, handle: Any) -> int:
        with suppress(DriverError, OSError, ValueError):
            bus = call(nvml, "nvmlDeviceGetPciInfo", nvml.nvmlDeviceGetPciInfo, handle).busId
            # NVML writes the domain with eight digits, sysfs with four.
            name = text(bus).lower().removeprefix("0000")
            node = int((self._pci_devices / name / "numa_node").read_text())
            if node >= 0:
                return node
        with suppress(DriverError):
            words = call(
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
            gpu.uuid: call(
                nvml, "nvmlDeviceGetHandleByUUID", nvml.nvmlDeviceGetHandleByUUID, gpu.uuid
            )
            for gpu in self._devices(nvml)
            if gpu.healthy
        }
        return {
            frozenset((a, b)): _link(nvml, handles[a], handles[b])
            for a, b in itertools.combinations(handles, 2)
        }


def _versions(nvml: Any) -> tuple[str, str]:
    driver = call(nvml, "nvmlSystemGetDriverVersion", nvml.nvmlSystemGetDriverVersion)
    cuda = call(nvml, "nvmlSystemGetCudaDriverVersion", nvml.nvmlSystemGetCudaDriverVersion_v2)
    return text(driver), f"{cuda // 1000}.{cuda % 1000 // 10}"


def _link(nvml: Any, a: Any, b: Any) -> Link:
    if _has_nvlink(nvml, a, b):
        return Link.NVLINK
    level = call(
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
        status = call(
            nvml, "nvmlDeviceGetP2PStatus", nvml.nvmlDeviceGetP2PStatus, a, b, _P2P_NVLINK
        )
        return int(status) == _P2P_OK
    with suppress(DriverError):
        other = text(call(nvml, "nvmlDeviceGetPciInfo", nvml.nvmlDeviceGetPciInfo, b).busId)
        return other in _nvlink_neighbours(nvml, a)
    return False


def _nvlink_neighbours(nvml: Any, handle: Any) -> set[str]:
    found = set()
    for link in range(_MAX_NVLINKS):
        with suppress(DriverError):
            if call(nvml, "nvmlDeviceGetNvLinkState", nvml.nvmlDeviceGetNvLinkState, handle, link):
                remote = call(
                    nvml,
                    "nvmlDeviceGetNvLinkRemotePciInfo",
                    nvml.nvmlDeviceGetNvLinkRemotePciInfo,
                    handle,
                    link,
                )
                found.add(text(remote.busId))
    return found


def _number(value: Any) -> int | None:
    """A field's value; None if the driver doesn't know the field."""
    return int(value.value.uiVal) if value.nvmlReturn == 0 else None
