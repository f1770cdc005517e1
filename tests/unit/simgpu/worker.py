"""A process that uses the simulated driver through the real bindings, one JSON line per request.

Requests are [verb, arguments...]; an answer is the value, or {"error": name}.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import threading
import zlib
from typing import Any

import pynvml
from cuda.bindings import driver

_background: dict[str, Any] = {}


class RefusedError(Exception):
    """A driver call failed; the message is the driver's name of the error."""


def cuda(name: str, *arguments: Any) -> Any:
    error, *values = getattr(driver, name)(*arguments)
    if int(error) != 0:
        raise RefusedError(error.name)
    return values[0] if len(values) == 1 else values


def plain(value: Any) -> Any:
    """A value as JSON can carry it."""
    if isinstance(value, int | str | float | None):
        return value
    if isinstance(value, bytes):
        return value.split(b"\0")[0].decode()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, driver.CUuuid):
        return bytes(value.bytes).hex()
    if isinstance(value, ctypes._Pointer):
        return ctypes.cast(value, ctypes.c_void_p).value
    return int(value) if hasattr(value, "__int__") else structure(value)


def structure(value: Any) -> dict[str, Any]:
    """The fields of one of pynvml's structures, or of what it makes of them."""
    names = [field[0] for field in getattr(value, "_fields_", ())] or list(vars(value))
    return {name: plain(getattr(value, name)) for name in names}


def context(ordinal: int) -> int:
    device = cuda("cuDeviceGet", ordinal)
    handle = cuda("cuDevicePrimaryCtxRetain", device)
    cuda("cuCtxSetCurrent", handle)
    _background["context"] = handle
    return int(handle)


def write(address: int, amount: int, seed: int) -> int:
    data = random.Random(seed).randbytes(amount)
    cuda("cuMemcpyHtoD", address, data, amount)
    return zlib.crc32(data)


def checksum(address: int, amount: int) -> int:
    data = bytearray(amount)
    cuda("cuMemcpyDtoH", data, address, amount)
    return zlib.crc32(data)


def lock(pid: int, timeout_ms: int = 0) -> None:
    arguments = driver.CUcheckpointLockArgs()
    arguments.timeoutMs = timeout_ms
    cuda("cuCheckpointProcessLock", pid, arguments)


def restore(pid: int, pairs: dict[str, str] | None = None) -> None:
    arguments = driver.CUcheckpointRestoreArgs()
    listed, keep = [], []
    for old, new in (pairs or {}).items():
        pair = driver.CUcheckpointGpuPair()
        for name, text in (("oldUuid", old), ("newUuid", new)):
            raw = ctypes.create_string_buffer(bytes.fromhex(text[4:].replace("-", "")), 16)
            keep.append(raw)
            setattr(pair, name, driver.CUuuid(ctypes.addressof(raw)))
        listed.append(pair)
    if listed:
        arguments.gpuPairs = listed
        arguments.gpuPairsCount = len(listed)
    cuda("cuCheckpointProcessRestore", pid, arguments)


def nvml(name: str, *arguments: Any) -> Any:
    """Call pynvml; {"gpu": i} stands for a handle."""
    resolved = [
        pynvml.nvmlDeviceGetHandleByIndex(value["gpu"]) if isinstance(value, dict) else value
        for value in arguments
    ]
    return getattr(pynvml, name)(*resolved)


def by_name(function: str, name: str) -> int:
    """The handle that pynvml finds by a UUID or a bus ID."""
    handle = getattr(pynvml, function)(name.encode())
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def memory_v2(gpu: int) -> Any:
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)


def field(number: int) -> int:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    value = pynvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    return int(value.value.uiVal) if value.nvmlReturn == 0 else -int(value.nvmlReturn)


def xids(timeout_ms: int) -> list[list[int]]:
    """Register all GPUs, say so in a line of its own, and wait for one event."""
    events = pynvml.nvmlEventSetCreate()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    print(json.dumps("registered"), flush=True)
    event = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
    return [[pynvml.nvmlDeviceGetIndex(event.device), event.eventData]]


def start(*request: Any) -> None:
    """Answer a request in a thread of its own; `finished` gives the answer when it is there."""
    _background.pop("answer", None)

    def run() -> None:
        driver.cuCtxSetCurrent(_background["context"])
        _background["answer"] = answer(request)

    threading.Thread(target=run, daemon=True).start()


def finished() -> Any:
    return _background.get("answer", "still running")


def forked_child() -> str:
    """What cuMemGetInfo says in a child that was forked without exec."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        error = driver.cuMemGetInfo()[0]
        os.write(writing, error.name.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        return stream.read()


def answer(request: Any) -> Any:
    verb, *arguments = request
    try:
        if verb.startswith("cu"):
            return plain(cuda(verb, *arguments))
        return plain(globals()[verb](*arguments))
    except RefusedError as error:
        return {"error": str(error)}
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__}


if __name__ == "__main__":
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
