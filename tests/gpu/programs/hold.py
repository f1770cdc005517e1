"""Holds GPU memory in one or many allocations; answers with a checksum."""

from __future__ import annotations

import argparse
import ctypes
import random
import zlib

from tests.gpu.programs import serve
from tests.workloads.device import call

_CHECKED = 256 << 20
"""So many bytes are filled and read, over all allocations."""
_CHUNK = 1 << 20
_PR_SET_THP_DISABLE = 41


def main() -> None:
    """Allocate, fill, answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--pinned", type=int, default=0, help="bytes of pinned host memory")
    parser.add_argument("--small-pages", action="store_true", help="no huge pages for this process")
    options = parser.parse_args()
    if options.small_pages:
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0)))
    size = options.bytes // options.pieces
    pieces = [int(call("cuMemAlloc", size)) for _ in range(options.pieces)]
    checked = min(size, max(4096, _CHECKED // options.pieces))
    for number, piece in enumerate(pieces):
        _fill(piece, checked, random.Random(number))
    arena = _arena(options.pinned)

    def answer() -> str:
        found = 0
        for piece in pieces:
            found = _sum(piece, checked, found)
        return f"{found:08x} {zlib.crc32(arena):08x}"

    serve(answer)


def _arena(amount: int) -> bytes | memoryview:
    if not amount:
        return b""
    place = int(call("cuMemHostAlloc", amount, 0))
    ctypes.memset(place, 7, amount)
    return memoryview((ctypes.c_char * amount).from_address(place)).cast("B")


def _fill(piece: int, length: int, source: random.Random) -> None:
    chunk = source.randbytes(min(_CHUNK, length))
    for offset in range(0, length, _CHUNK):
        part = offset.to_bytes(8, "little") + chunk[8 : min(_CHUNK, length - offset)]
        call("cuMemcpyHtoD", piece + offset, part, len(part))


def _sum(piece: int, length: int, found: int) -> int:
    buffer = bytearray(min(_CHUNK, length))
    for offset in range(0, length, _CHUNK):
        part = min(_CHUNK, length - offset)
        call("cuMemcpyDtoH", buffer, piece + offset, part)
        found = zlib.crc32(memoryview(buffer)[:part], found)
    return found


if __name__ == "__main__":
    main()
