"""Uses one feature of CUDA, named by its argument; answers with what it computes by that."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from tests.gpu.programs import missing, serve
from tests.workloads.device import call

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 16 << 20
_ONE = struct.unpack("I", struct.pack("f", 1.0))[0]


def context() -> Any:
    """The GPU's context, current."""
    call("cuInit", 0)
    device = call("cuDeviceGet", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    return device


def ones(floats: int) -> int:
    """So many floats of 1.0 on the GPU."""
    place = int(call("cuMemAlloc", 4 * floats))
    call("cuMemsetD32", place, _ONE, floats)
    return place


def checksum(place: int, length: int = SIZE) -> str:
    """Of device memory."""
    buffer = bytearray(length)
    call("cuMemcpyDtoH", buffer, place, length)
    return f"{zlib.crc32(buffer):08x}"


def library(name: str) -> ctypes.CDLL:
    """lib`name`, of the system or of NVIDIA's wheels. Ends the program where it isn't."""
    found = ctypes.util.find_library(name)
    folders = [Path(one) / "nvidia" for one in sys.path if one]
    paths = [path for one in folders for path in sorted(one.glob(f"*/lib/lib{name}.so*"))]
    for path in (*([found] if found else []), *map(str, reversed(paths))):
        with suppress(OSError):
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return missing(f"lib{name} is neither in the system nor in {sys.executable}'s packages")


def torch_of(what: str) -> Any:
    """PyTorch. Ends the program where it isn't."""
    try:
        import torch  # noqa: PLC0415 - may be missing
    except ImportError:
        missing(f"{what} is asked through PyTorch, which {sys.executable} has not")
    return torch


def ok(code: int, what: str) -> None:
    """Raise where a library's call failed."""
    if code != 0:
        raise RuntimeError(f"{what}: {code}")


def cublas() -> Callable[[], object]:
    """A matrix product."""
    lib, side = library("cublas"), 1024
    context()
    handle, one = ctypes.c_void_p(), ctypes.c_float(1.0)
    ok(lib.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
    left, right, product = (ctypes.c_void_p(ones(side * side)) for _ in range(3))

    def answer() -> str:
        scale, size = ctypes.byref(one), (side, side, side)
        rest = (scale, left, side, right, side, ctypes.byref(ctypes.c_float(0.0)), product, side)
        ok(lib.cublasSgemm_v2(handle, 0, 0, *size, *rest), "cublasSgemm")
        call("cuCtxSynchronize")
        return checksum(int(product.value or 0), 4 * side * side)

    answer()
    return answer


def cudnn() -> Callable[[], object]:
    """A convolution."""
    torch = torch_of("cuDNN")
    if not torch.backends.cudnn.is_available():
        missing("this PyTorch has no cuDNN")
    torch.backends.cudnn.deterministic = True
    image = torch.ones(8, 16, 64, 64, device="cuda")
    kernel = torch.ones(16, 16, 3, 3, device="cuda")

    def answer() -> float:
        return float(torch.nn.functional.conv2d(image, kernel, padding=1).sum().cpu())

    answer()
    return answer


class _UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]  # type: ignore[mutable-override]


def nccl() -> Callable[[], object]:
    """An all-reduce of one rank."""
    lib, floats = library("nccl"), SIZE // 4
    context()
    name, comm = _UniqueId(), ctypes.c_void_p()
    ok(lib.ncclGetUniqueId(ctypes.byref(name)), "ncclGetUniqueId")
    ok(lib.ncclCommInitRank(ctypes.byref(comm), 1, name, 0), "ncclCommInitRank")
    sent, got = ones(floats), int(call("cuMemAlloc", SIZE))

    def answer() -> str:
        memory = (ctypes.c_void_p(sent), ctypes.c_void_p(got), ctypes.c_size_t(floats))
        ok(lib.ncclAllReduce(*memory, 7, 0, comm, None), "ncclAllReduce")
        call("cuCtxSynchronize")
        return checksum(got)

    answer()
    return answer


def graphs() -> Callable[[], object]:
    """A captured graph that is launched again."""
    context()
    stream, place = call("cuStreamCreate", 0), int(call("cuMemAlloc", SIZE))
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
    call("cuMemsetD32Async", place, 42, SIZE // 4, stream)
    made = call("cuGraphInstantiate", call("cuStreamEndCapture", stream), 0)

    def answer() -> str:
        call("cuMemsetD32", place, 1, SIZE // 4)
        call("cuGraphLaunch", made, stream)
        call("cuStreamSynchronize", stream)
        return checksum(place)

    answer()
    return answer


def pool() -> Callable[[], object]:
    """Memory of the driver's own pool."""
    context()
    stream = call("cuStreamCreate", 0)
    place = int(call("cuMemAllocAsync", SIZE, stream))
    call("cuStreamSynchronize", stream)
    call("cuMemsetD32", place, 42, SIZE // 4)
    return lambda: checksum(place)


def vmm() -> Callable[[], object]:
    """Memory that is made, and mapped to an address."""
    device = context()
    kind = driver.CUmemAllocationProp()
    kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kind.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    kind.location.id = int(device)
    access = driver.CUmemAccessDesc()
    access.location = kind.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    place = int(call("cuMemAddressReserve", SIZE, 0, 0, 0))
    call("cuMemMap", place, SIZE, 0, call("cuMemCreate", SIZE, kind, 0), 0)
    call("cuMemSetAccess", place, SIZE, [access], 1)
    call("cuMemsetD32", place, 42, SIZE // 4)
    return lambda: checksum(place)


def pinned() -> Callable[[], object]:
    """Pinned host memory that the GPU reads and writes."""
    context()
    host, place = int(call("cuMemHostAlloc", SIZE, 0)), int(call("cuMemAlloc", SIZE))
    ctypes.memset(host, 7, SIZE)

    def answer() -> str:
        call("cuMemcpyHtoD", place, host, SIZE)
        return checksum(place)

    return answer


def managed() -> Callable[[], object]:
    """Managed memory, touched by both sides."""
    context()
    place = int(call("cuMemAllocManaged", SIZE, 1))
    call("cuMemsetD32", place, 42, SIZE // 4)
    call("cuCtxSynchronize")
    return lambda: f"{zlib.crc32(ctypes.string_at(place, SIZE)):08x}"


def ipc() -> Callable[[], object]:
    """Memory that another process could open."""
    context()
    place = ones(SIZE // 4)
    call("cuIpcGetMemHandle", place)
    return lambda: checksum(place)


def plain() -> Callable[[], object]:
    """Memory, and no more."""
    context()
    place = ones(SIZE // 4)
    return lambda: checksum(place)


def tree() -> Callable[[], object]:
    """The same in a parent and its child."""
    words = [sys.executable, "-m", "tests.gpu.programs.kinds", "plain"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    to, of = child.stdin, child.stdout
    if not of.readline().startswith("ready"):
        missing("the child did not start")
    own = plain()
    CHILDREN.append(child.pid)

    def answer() -> str:
        to.write("go\n")
        to.flush()
        return f"{own()} {of.readline().strip()}"

    return answer


CHILDREN: list[int] = []
KINDS = (cublas, cudnn, nccl, graphs, pool, vmm, pinned, ipc, managed, tree)


def main(kind: str) -> None:
    """Set it up, and answer."""
    makers = {maker.__name__: maker for maker in (*KINDS, plain)}
    try:
        answer = makers[kind]()
    except Exception as error:  # noqa: BLE001 - the reason why it isn't asked
        missing(f"it can't be set up here: {error}".replace("\n", " "))
    serve(answer, *CHILDREN)


if __name__ == "__main__":
    main(sys.argv[1])
