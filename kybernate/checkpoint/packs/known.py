"""What a namespace has stored in a place already, and who is writing there."""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.places import time_of
from kybernate.core.artifacts import codec, layout
from kybernate.core.artifacts.manifest import Pack
from kybernate.core.chunks import chunkindex
from kybernate.core.chunks.chunkindex import ChunkTable
from kybernate.core.chunks.leaf import Chunk
from kybernate.core.chunks.sweep import Lease
from kybernate.dataclass import dataclass
from kybernate.errors import CorruptError, KybernateError, NotFoundError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kybernate.checkpoint.cipher import Cipher
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.layout import ObjectInfo
    from kybernate.lib.deadline import Deadline

log = logging.getLogger(__name__)

SETTLE = 900.0
"""Seconds that a lease outlasts its writer, for lists that are behind."""
LONGEST = 7 * 24 * 3600.0
"""Seconds after it was put at which any lease is over: a bit that changed must not keep it."""
_LARGEST_INDEX = 64 << 20


@dataclass(slots=True)
class Known:
    """Chunks that need not be stored again; a chunk's pack counts in `packs`."""

    table: ChunkTable = field(default_factory=ChunkTable)
    packs: list[Pack] = field(default_factory=list)

    def find(self, names: Sequence[bytes]) -> list[Chunk | None]:
        """The chunks of these names, None for what has to be stored. Any thread may ask."""
        packs = self.packs
        return [
            Chunk(name, packs[at[0]].id, at[1], at[2], at[3]) if at else None
            for name, at in zip(names, self.table.find_all(names), strict=True)
        ]


def load(place: Place, namespace: str, cipher: Cipher, deadline: Deadline) -> Known:
    """All packs that have an index, the newest first, as many as a table takes."""
    known = Known()
    sizes = pack_sizes(place, namespace)
    prefix = f"{layout.INDEX}{namespace}/"
    infos = sorted(place.objects.scan(prefix), key=lambda info: -info.modified)
    wanted = (info for info in infos if layout.pack_of(info.key, prefix) in sizes)
    with threads(place.transfers, "index") as pool:
        for info, index in ordered(
            pool, lambda info: (info, _read(place, info, cipher)), wanted, 2 * place.transfers
        ):
            deadline.check()
            pack = layout.pack_of(info.key, prefix)
            if pack and index:
                _add(known, pack, index, sizes[pack])
            if known.table.full:
                break
    return known


def pack_sizes(place: Place, namespace: str) -> dict[str, int]:
    """Bytes of each pack of the namespace that the place lists."""
    prefix = f"{layout.PACKS}{namespace}/"
    found = ((layout.pack_of(i.key, prefix), i.size) for i in place.objects.scan(prefix))
    return {pack: size for pack, size in found if pack}


def check_there(place: Place, namespace: str, packs: Iterable[Pack]) -> None:
    """Raises RetryableError unless the place still holds all of them in full size. Each is asked
    for: a list may tell of what is gone."""
    if key := lost(place, namespace, packs):
        raise RetryableError(f"{place.name} has lost {key} meanwhile; what it held is put again")


def lost(place: Place, namespace: str, packs: Iterable[Pack]) -> str:
    """The key of one that the place surely doesn't hold in full size; empty if it holds all of
    them. Raises RetryableError, OSError where it can't say."""

    def look(pack: Pack) -> str:
        key = f"{layout.PACKS}{namespace}/{pack.id}"
        with suppress(NotFoundError):
            if place.objects.head(key).size == pack.size:
                return ""
        # Or what is packed next would be built upon it again.
        place.objects.delete([f"{layout.INDEX}{namespace}/{pack.id}"])
        return key

    with threads(place.transfers, "there") as pool:
        return next(filter(None, ordered(pool, look, packs, 4 * place.transfers)), "")


@contextmanager
def lease(place: Place, namespace: str, deadline: Deadline) -> Iterator[None]:
    """Tells sweeps that somebody is writing, from before the packs are looked at on. It ends by the
    clock of the place, however wrong that of this node is."""
    key = f"{layout.LEASES}{namespace}/{secrets.token_hex(8)}"
    began = time_of(place)
    ahead = began - time.time()

    def put(lasts: float) -> None:
        until = round(time.time() + ahead + lasts + SETTLE)
        place.objects.put(key, codec.encode(_Lease(until, round(began))))

    put(deadline.left)
    try:
        yield
    finally:
        # Without an answer the lease ends by itself, later.
        with suppress(KybernateError, OSError):
            put(0.0)


def read_lease(data: bytes, modified: float) -> Lease:
    """A lease as it lies in a place; one that can't be read is over at once."""
    try:
        found = codec.decode(_Lease, data, "lease")
    except CorruptError:
        return Lease(modified, 0.0)
    return Lease(float(found.began) or modified, min(float(found.until), modified + LONGEST))


@dataclass(frozen=True, slots=True)
class _Lease:
    """Seconds since 1970 by the place's clock; `began` is 0 for when the lease was last put."""

    until: int
    began: int = 0


def _read(place: Place, info: ObjectInfo, cipher: Cipher) -> bytes:
    """The index, or nothing where it can't be used: then its chunks are stored again."""
    try:
        return cipher.index_opened(place.objects.get(info.key, 0, min(info.size, _LARGEST_INDEX)))
    except (CorruptError, NotFoundError) as error:
        log.warning("%s in %s is not built upon: %s", info.key, place.name, error)
        return b""


def _add(known: Known, pack: str, index: bytes, listed: int) -> None:
    """Nothing where the index is of another form, as that of a newer release may be."""
    try:
        _see_size(index, listed)
        known.table.add_index(len(known.packs), index)
    except CorruptError as error:
        log.warning("pack %s is not built upon: %s", pack, error)
        return
    known.packs.append(Pack(pack, listed))


def _see_size(index: bytes, listed: int) -> None:
    size = chunkindex.pack_size(index)
    if size != listed:
        raise CorruptError(f"it has {listed} bytes, not {size}")
