"""Puts chunks into packs, and packs into a place.

A pack is filled by one thread and carried by others, a few at a time: memory is bounded by the
packs on their way. A pack's index is put after the pack was read back, or seen in full size:
nobody builds upon a pack that isn't there.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.core.artifacts import layout
from kybernate.core.artifacts.manifest import Pack
from kybernate.core.chunks import chunkindex
from kybernate.core.chunks.leaf import OVERHEAD, Chunk
from kybernate.core.chunks.pages import BLOCK
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError, RetryableError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from kybernate.checkpoint.cipher import Cipher
    from kybernate.checkpoint.places import Place


@dataclass(slots=True)
class _Open:
    """A pack that is being filled."""

    id: str
    data: bytearray
    size: int = 0
    chunks: list[tuple[bytes, int, int, int]] = field(default_factory=list)


class PackWriter:
    """The new packs of one artifact. `add` and `finish` are called by one thread."""

    def __init__(self, place: Place, namespace: str, cipher: Cipher, carriers: Executor) -> None:
        self._place = place
        self._namespace = namespace
        self._cipher = cipher
        self._carriers = carriers
        self._on_way: deque[Future[Pack]] = deque()
        self._free: list[bytearray] = []
        self._room = place.pack_bytes + BLOCK + OVERHEAD
        self._open: _Open | None = None
        self.written: dict[str, Pack] = {}
        self.stored = 0

    def add(self, name: bytes, payload: memoryview | bytes, size: int) -> Chunk:
        """Store a chunk of `size` bytes, perhaps compressed; where it will be."""
        pack = self._open = self._open or self._new()
        offset, end = pack.size, pack.size + len(payload) + OVERHEAD
        out = memoryview(pack.data)[offset:end]
        self._cipher.seal_into(pack.id, offset, name, payload, out)
        pack.size = end
        pack.chunks.append((name, offset, end - offset, size))
        self.stored += end - offset
        if pack.size >= self._place.pack_bytes:
            self._send()
        return Chunk(name, pack.id, offset, end - offset, size)

    def finish(self) -> None:
        """All packs are in the place when it returns. Raises what went wrong on the way."""
        self._send()
        while self._on_way:
            self._await_one()

    def _new(self) -> _Open:
        return _Open(self._place.objects.new_pack(self._namespace), self._buffer())

    def _send(self) -> None:
        pack, self._open = self._open, None
        if pack is None:
            return
        while len(self._on_way) >= self._place.transfers:
            self._await_one()
        self._on_way.append(self._carriers.submit(self._carry, pack))

    def _await_one(self) -> None:
        done = self._on_way.popleft().result()
        self.written[done.id] = done

    def _buffer(self) -> bytearray:
        return self._free.pop() if self._free else bytearray(self._room)

    def _carry(self, pack: _Open) -> Pack:
        data = memoryview(pack.data)[: pack.size]
        key = f"{layout.PACKS}{self._namespace}/{pack.id}"
        self._place.objects.put(key, data)
        self._check(key, pack)
        index = chunkindex.encode(pack.chunks, pack.size)
        self._place.objects.put(
            f"{layout.INDEX}{self._namespace}/{pack.id}", self._cipher.index_sealed(index)
        )
        self._free.append(pack.data)
        return Pack(pack.id, pack.size)

    def _check(self, key: str, pack: _Open) -> None:
        right = False
        with suppress(NotFoundError):
            if self._place.read_back:
                there = self._place.objects.get(key)
                right = len(there) == pack.size and pack.data.startswith(there)
            else:
                right = self._place.objects.head(key).size == pack.size
        if not right:
            raise RetryableError(f"{self._place.name} doesn't hold {key} as it was put")
