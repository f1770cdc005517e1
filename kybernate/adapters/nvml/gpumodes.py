"""The modes of a node's GPUs, for `kybernate doctor`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kybernate.core.doctor.nodefacts import DriverFacts, GpuFacts, Unseen
from kybernate.lib.deadline import CALL_S

if TYPE_CHECKING:
    from collections.abc import Callable


def read_driver(*, mps: bool) -> DriverFacts | Unseen:
    """What NVML says, within 10 s; a driver that hangs is left to itself."""
    answer: list[DriverFacts | Unseen] = []

    def ask() -> None:
        answer.append(_read(mps=mps))

    thread = threading.Thread(target=ask, name="nvml-doctor", daemon=True)
    thread.start()
    thread.join(CALL_S)
    return answer[0] if answer else Unseen(f"NVML gave no answer within {CALL_S:g} s: it hangs")


def _read(*, mps: bool) -> DriverFacts | Unseen:
    try:
        import pynvml  # noqa: PLC0415  (the binding is an extra of node images)
    except ImportError:
        return Unseen("the NVML binding is not installed: install kybernate with its extra `node`")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Unseen(f"NVML can't be used: {error}")
    try:
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        gpus = tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        version = _text(pynvml.nvmlSystemGetDriverVersion())
        return DriverFacts(version, f"{cuda // 1000}.{cuda % 1000 // 10}", gpus, mps)
    except pynvml.NVMLError as error:
        return Unseen(f"NVML fails: {error}")
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> GpuFacts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return GpuFacts(
        index,
        _text(nvml.nvmlDeviceGetName(handle)),
        int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        _mode(nvml, lambda: nvml.nvmlDeviceGetPersistenceMode(handle)),
        _mode(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0]),
    )


def _mode(nvml: Any, read: Callable[[], int]) -> bool | None:
    try:
        return bool(read())
    except nvml.NVMLError:
        return None  # a GPU without this mode


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
