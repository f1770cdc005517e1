"""Chunks of one namespace: their names, and how they are stored.

A chunk's name is its BLAKE3 under a key of the namespace: the same bytes have another name in
every namespace, so nobody can ask a store whether others have them. Stored is the chunk, or its
zstd where that is smaller, under AES-256-GCM: the key is that of the pack, derived from the
namespace's key and the pack's random ID, the nonce is the offset in the pack, and the name is
bound in. So no nonce is ever used twice, and no chunk can stand in for another.
"""

from __future__ import annotations

import threading
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kybernate.core.chunks.leaf import OVERHEAD
from kybernate.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.core.chunks.leaf import Chunk

_SAMPLE = 4096
_WORTH = 0.9
"""What zstd may leave of a chunk, or of a sample of it, for it to be worth the time."""

_UNSAID = -1
"""The size of a frame that tells none: those that are written here don't."""

_DULL, _TRIED = 16, 8
"""After so many chunks in a row that aren't worth it every eighth is tried."""


class Cipher:
    """Names, compresses, seals and opens chunks. Any thread may use it."""

    def __init__(self, data_key: bytes, level: int = 1) -> None:
        """`data_key`: the namespace's, 32 bytes. `level`: zstd's."""
        self._names = _derived(data_key, "kybernate 2026 names of chunks")
        self._packs = _derived(data_key, "kybernate 2026 keys of packs")
        self._index = _derived(data_key, "kybernate 2026 seals of indexes")
        self._named = partial(blake3, key=self._names)
        self._zstd = _Zstd(level)
        self._pack_cipher = lru_cache(64)(self._make_pack_cipher)

    def name(self, data: memoryview | bytes) -> bytes:
        """The chunk's name, 32 bytes."""
        return self._named(data).digest()

    def names(self, blocks: Iterable[memoryview]) -> list[bytes]:
        """Each chunk's name. While one is made other threads run: so next to nothing is done in
        between, which all would wait for."""
        return [made.digest() for made in list(map(self._named, blocks))]

    def squeezed(self, data: memoryview) -> memoryview | bytes:
        """The chunk compressed, or as it is where that isn't worth it.

        After many that weren't only some are tried, until one is.
        """
        size = len(data)
        if size > 2 * _SAMPLE and not self._zstd.is_worth_it(data):
            return data
        packed = self._zstd.compress(data)
        return packed if len(packed) <= size * _WORTH else data

    def seal_into(
        self, pack: str, offset: int, name: bytes, payload: memoryview | bytes, out: memoryview
    ) -> None:
        """Write the sealed payload to `out`, which has 16 bytes more than it."""
        self._pack_cipher(pack).encrypt_into(_nonce(offset), payload, name, out)

    def opened(self, chunk: Chunk, stored: memoryview) -> memoryview | bytes:
        """The chunk's own bytes, and surely its own. Raises CorruptError."""
        try:
            payload = self._pack_cipher(chunk.pack).decrypt(
                _nonce(chunk.offset), stored, chunk.name
            )
            if len(payload) != chunk.size:
                payload = self._zstd.decompress(payload, chunk.size)
        except (InvalidTag, zstandard.ZstdError) as error:
            raise _damaged(chunk) from error
        if len(payload) != chunk.size or self.name(payload) != chunk.name:
            raise _damaged(chunk)
        return payload

    def index_sealed(self, index: bytes) -> bytes:
        """The index with its seal behind it."""
        return index + blake3(index, key=self._index).digest()

    def index_opened(self, sealed: memoryview | bytes) -> bytes:
        """The index without its seal. Raises CorruptError."""
        index, seal = bytes(sealed[:-32]), bytes(sealed[-32:])
        if blake3(index, key=self._index).digest() != seal:
            raise CorruptError("an index is not what was written")
        return index

    def _make_pack_cipher(self, pack: str) -> AESGCM:
        return AESGCM(blake3(bytes.fromhex(pack), key=self._packs).digest())


class _Zstd(threading.local):
    """Each thread's own compressor: they keep tables that can't be shared."""

    def __init__(self, level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(
            level=level, write_checksum=False, write_content_size=False
        )
        self._decompressor = zstandard.ZstdDecompressor()
        self._dull = 0

    def is_worth_it(self, data: memoryview) -> bool:
        """Whether a sample says so; without one for most of those that follow many dull ones."""
        if self._dull >= _DULL and self._dull % _TRIED:
            self._dull += 1
            return False
        middle = (len(data) - _SAMPLE) // 2
        sample = self.compress(data[middle : middle + _SAMPLE])
        worth = len(sample) <= _SAMPLE * _WORTH
        self._dull = 0 if worth else self._dull + 1
        return worth

    def compress(self, data: memoryview) -> bytes:
        return self._compressor.compress(data)

    def decompress(self, data: bytes, size: int) -> bytes:
        """Raises ZstdError. zstandard believes a frame that says its size, whatever it may take."""
        if zstandard.frame_content_size(data) not in (_UNSAID, size):
            raise zstandard.ZstdError("its frame is of another size")
        return self._decompressor.decompress(data, max_output_size=size, allow_extra_data=False)


def _derived(key: bytes, context: str) -> bytes:
    return blake3(key, derive_key_context=context).digest()


def _nonce(offset: int) -> bytes:
    return offset.to_bytes(12, "little")


def _damaged(chunk: Chunk) -> CorruptError:
    size = chunk.stored - OVERHEAD
    return CorruptError(
        f"chunk {chunk.name.hex()[:16]} ({size} bytes at {chunk.offset} of pack {chunk.pack}) is "
        "not what was written"
    )
