"""What is here: hardware, driver, kernel, rights."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tests.gpu import machine
from tests.gpu.driver import ByBindings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.here import Answer, Here

_THP = "/sys/kernel/mm/transparent_hugepage"
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_CUSTOM_STORAGE = "cuCheckpointOperationComplete"


def answers(here: Here) -> Iterator[Answer]:
    """All of it takes no time."""
    nvml = machine.nvml()
    yield from _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(0), here)
    yield "machine.kernel", platform.release(), platform.version()
    ram = machine.available_ram() / machine.GIB
    yield "machine.ram_gib", ram, f"the host could give {ram:.1f} GiB"
    yield ("machine.torch", *_torch())
    enabled, defrag = (machine.first_line(f"{_THP}/{name}") for name in ("enabled", "defrag"))
    thp = f"{enabled}; {defrag}" if enabled else None
    yield "machine.thp", thp, "nothing here changes them" if thp else f"there is no {_THP}"
    mask = next((line.split()[1] for line in _status() if line.startswith("CapEff:")), "")
    yield "machine.capabilities", mask, f"of the user {os.geteuid()}"
    gvisor = machine.is_gvisor()
    said = "answers" if gvisor else "does not answer"
    yield "machine.gvisor", gvisor, f"gVisor {said} the system calls"
    yield "machine.root", os.geteuid() == 0, f"this is user {os.geteuid()}"
    scope = machine.first_line(_YAMA)
    yield "machine.ptrace", scope in ("", "0", "1"), f"ptrace_scope is {scope or 'not there'}"


def _gpu(nvml: Any, handle: Any, here: Here) -> Iterator[Answer]:
    product = str(nvml.nvmlDeviceGetName(handle))
    yield "machine.product", product, f"the first GPU is {here.uuid}"
    yield "machine.gpus", len(here.uuids), f"NVML shows {len(here.uuids)}"
    total = machine.memory(here.uuid).total / machine.GIB
    yield "machine.gpu_gib", total, f"it has {total:.1f} GiB"
    driver = str(nvml.nvmlSystemGetDriverVersion())
    major = int(driver.partition(".")[0])
    yield "machine.driver", driver, f"NVML says {driver}"
    yield "machine.driver_parks", major >= 570, f"the driver is {driver}"
    yield "machine.driver_remaps", major >= 580, f"the driver is {driver}"
    yield ("machine.custom_storage", *_custom_storage())
    yield ("machine.mig_off", *_mode(nvml, "nvmlDeviceGetMigMode", handle, wanted=False))
    persistence = _mode(nvml, "nvmlDeviceGetPersistenceMode", handle, wanted=True)
    yield ("machine.persistence", *persistence)


def _mode(nvml: Any, name: str, handle: Any, *, wanted: bool) -> tuple[bool | None, str]:
    """Whether a mode of NVML's is as wanted."""
    try:
        found = getattr(nvml, name)(handle)
    except nvml.NVMLError as error:
        if isinstance(error, nvml.NVMLError_NotSupported):
            return not wanted, f"this GPU has no such mode ({name})"
        return None, f"{name}: {error}"
    current = found[0] if isinstance(found, list | tuple) else found
    return bool(current) == wanted, f"{name} answers {current}"


def _custom_storage() -> tuple[bool | None, str]:
    try:
        bare = ByBindings()
        found = bare.call("cuGetProcAddress", _CUSTOM_STORAGE.encode(), 13040, 0)
    except Exception as error:  # noqa: BLE001 - a binding that lacks it says so in several ways
        return False, f"{_CUSTOM_STORAGE} is not found: {error}"
    return bool(found), f"{_CUSTOM_STORAGE} is {'found' if found else 'not found'}"


def _torch() -> tuple[str | None, str]:
    try:
        found = version("torch")
    except PackageNotFoundError:
        return None, "this Python has no PyTorch: toy models take its place; GPU_PYTHON names one"
    return found, f"PyTorch {found}"


def _status() -> list[str]:
    return machine.first_line("/proc/self/status").splitlines()
