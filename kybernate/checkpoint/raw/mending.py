"""Pieces of a raw artifact that are wrong where it lies, from other places that have it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.checkpoint.packs.fetch import ChunkReader
from kybernate.checkpoint.places import read_manifest
from kybernate.core.artifacts.manifest import PIECE
from kybernate.core.chunks.ranges import ranges
from kybernate.errors import CorruptError, NotFoundError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.packs.blocks import Pieces
    from kybernate.checkpoint.places import Place

log = logging.getLogger(__name__)


class Mender:
    """Pieces of an artifact from other places than the one where they are wrong, the fastest
    first."""

    def __init__(self, artifact: str, others: Sequence[Place], keys: ArtifactKeys) -> None:
        self.artifact = artifact
        self._others = others
        self._keys = keys

    def piece(self, name: str, number: int, pieces: Pieces) -> bytes:
        """As it was saved. Raises CorruptError if no place has it, RetryableError or
        OSError if one that may can't be read now."""
        away: RetryableError | OSError | None = None
        for place in self._others:
            try:
                data = self._read(place, name, number)
                pieces.check(name, number, memoryview(data))
            except (CorruptError, NotFoundError, RefusedError) as error:
                log.warning("a copy is of no use: %s", error)
            except (RetryableError, OSError) as error:
                away = error
            else:
                return data
        raise away or CorruptError(
            f"{name}: piece {number} (1 MiB each) is not what was sealed, and no other place has it"
        )

    def _read(self, place: Place, name: str, number: int) -> bytes:
        manifest = read_manifest(place, self.artifact, self._keys)
        file = next((one for one in manifest.files if one.name == name), None)
        if file is None:
            raise CorruptError(f"{manifest.id} in {place.name} has no {name}")
        reader, begin = ChunkReader(place, manifest, self._keys), number * PIECE
        end = min(file.size, begin + PIECE)
        if end <= begin:
            raise CorruptError(f"{manifest.id} in {place.name} has {file.size} bytes of {name}")
        data = bytearray(end - begin)
        touched = [
            one
            for one in reader.chunks(file)
            if one.position < end and one.position + one.chunk.size > begin
        ]
        for wanted in ranges(touched):
            for placed, found in reader.read(wanted):
                low = max(begin, placed.position)
                high = min(end, placed.position + len(found))
                data[low - begin : high - begin] = found[
                    low - placed.position : high - placed.position
                ]
        return bytes(data)
