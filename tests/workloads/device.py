"""GPU memory whose content can be checked. Needs nothing but cuda-bindings."""

from __future__ import annotations

import ctypes
import random
import re
import threading
import uuid
import zlib
from typing import Any

from cuda.bindings import driver

HEADER = 64
"""Bytes at the beginning of a filled allocation that hold the counter."""

_CHUNK = 1 << 20
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


class CudaError(Exception):
    """A driver call failed; the message names the call and the driver's error."""


def size(text: str) -> int:
    """Bytes written as a number with an optional unit, such as 2GiB or 512Mi. Raises ValueError."""
    found = re.fullmatch(r"(\d+)\s*([KMGT]?i?)B?", text.strip())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write bytes or for example 2GiB")
    return int(found[1]) * _UNITS[found[2]]


def call(name: str, *arguments: Any) -> Any:
    """Call a driver function and return what it returns beside the error. Raises CudaError."""
    error, *values = getattr(driver, name)(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{name}: {error.name}")
    return values[0] if len(values) == 1 else values


def given_gpus() -> list[str] | None:
    """UUIDs of all GPUs that the driver lets this process open, whatever CUDA_VISIBLE_DEVICES
    leaves of them: NVML doesn't read it. None without NVML, or if it refuses."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    count, handle = ctypes.c_uint(), ctypes.c_void_p()
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        uuids = []
        for index in range(count.value):
            failed |= nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            failed |= nvml.nvmlDeviceGetUUID(handle, text, len(text))
            uuids.append(text.value.decode())
        return None if failed else uuids
    finally:
        nvml.nvmlShutdown()


class Gpu:
    """A context on one visible GPU and, if `amount` isn't 0, one allocation of so many bytes.

    The first `fill` bytes of it hold a counter and a pattern made from `seed`; the rest is never
    touched. Unless it is `unlike`, the pattern repeats itself. Not thread-safe.
    """

    def __init__(
        self, ordinal: int, amount: int, fill: int, seed: int, *, unlike: bool = False
    ) -> None:
        device = call("cuDeviceGet", ordinal)
        self.uuid = f"GPU-{uuid.UUID(bytes=bytes(call('cuDeviceGetUuid', device).bytes)[:16])}"
        self._context = call("cuDevicePrimaryCtxRetain", device)
        self.enter()
        self._base = int(call("cuMemAlloc", amount)) if amount else 0
        self._fill = fill if amount else 0
        self._unlike = unlike
        self.has_counter = self._fill >= HEADER
        self.expected = self._write_pattern(random.Random(f"{seed}/{ordinal}"))
        self.write_counter(0)

    def enter(self) -> None:
        """Make this GPU the current one of the calling thread."""
        call("cuCtxSetCurrent", self._context)

    def read_counter(self) -> int:
        """The counter in device memory; 0 where there is no room for one."""
        if not self.has_counter:
            return 0
        raw = bytearray(8)
        call("cuMemcpyDtoH", raw, self._base, len(raw))
        return int.from_bytes(raw, "little")

    def write_counter(self, value: int) -> None:
        """Replace the counter in device memory, where there is room for one."""
        if self.has_counter:
            call("cuMemcpyHtoD", self._base, value.to_bytes(8, "little"), 8)

    def checksum(self) -> int:
        """Checksum of the pattern as it is now; `expected` is what it was when written."""
        result = 0
        buffer = bytearray(_CHUNK)
        for offset, length in self._pieces():
            call("cuMemcpyDtoH", buffer, self._base + offset, length)
            result = zlib.crc32(memoryview(buffer)[:length], result)
        return result

    def _pieces(self) -> list[tuple[int, int]]:
        begin = HEADER if self.has_counter else 0
        return [
            (offset, min(_CHUNK, self._fill - offset))
            for offset in range(begin, self._fill, _CHUNK)
        ]

    def _write_pattern(self, source: random.Random) -> int:
        """One random chunk again and again, each time with its own beginning, so that a chunk in
        the wrong place shows as well; with `unlike` each chunk is drawn anew."""
        chunk = bytearray(source.randbytes(_CHUNK if self._fill else 0))
        result = 0
        for offset, length in self._pieces():
            if self._unlike:
                chunk[:] = source.randbytes(_CHUNK)
            chunk[:8] = offset.to_bytes(8, "little")
            piece = bytes(chunk[:length])
            call("cuMemcpyHtoD", self._base + offset, piece, length)
            result = zlib.crc32(piece, result)
        return result


class Memory:
    """The memory of all visible GPUs, and a counter that is kept in each. Thread-safe.

    `fill` of None fills the whole allocations; `unlike`: with bytes of which none repeat. Raises
    CudaError if a GPU has not enough memory.
    """

    def __init__(self, amount: int, fill: int | None, seed: int, *, unlike: bool = False) -> None:
        call("cuInit", 0)
        filled = amount if fill is None else min(fill, amount)
        self._lock = threading.Lock()
        self._count = 0
        self.gpus = [
            Gpu(ordinal, amount, filled, seed, unlike=unlike)
            for ordinal in range(call("cuDeviceGetCount"))
        ]

    @property
    def expected(self) -> str:
        """The checksum that intact memory has, over all GPUs."""
        return "-".join(f"{gpu.expected:08x}" for gpu in self.gpus)

    def count(self) -> tuple[int, list[int], str]:
        """Count up. Returns the counter in host memory, those in device memory, the checksum."""
        with self._lock:
            self._count += 1
            counters, sums = [], []
            for gpu in self.gpus:
                gpu.enter()
                gpu.write_counter(gpu.read_counter() + 1)
                counters += [gpu.read_counter()] if gpu.has_counter else []
                sums.append(f"{gpu.checksum():08x}")
            return self._count, counters, "-".join(sums)
