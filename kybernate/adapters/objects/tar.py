"""Objects in a tar archive: written as a stream, read at random from a file.

Any tar reads and writes these archives; their objects are what a place has, under the same keys.
"""

from __future__ import annotations

import os
import secrets
import tarfile
import threading
import time
from typing import TYPE_CHECKING

from kybernate.core.artifacts.layout import LEASES, PACKS, ObjectInfo
from kybernate.errors import ConflictError, CorruptError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO


class TarWriter:
    """Implements `ports.Objects` for one writer. What was put can be looked up, but packs can't
    be read again: they have gone down the stream. Nothing but the last put of a key is kept."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._sizes: dict[str, int] = {}
        self._small: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes | bytearray | memoryview, *, create: bool = False) -> None:
        """See `ports.Objects.put`. Leases mean nothing in an archive: they are passed over."""
        with self._lock:
            if create and key in self._sizes:
                raise ConflictError(f"{key} is there already")
            self._sizes[key] = len(data)
            if not key.startswith(PACKS):
                self._small[key] = bytes(data)
            if not key.startswith(LEASES):
                self._add(key, data)

    def get(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """See `ports.Objects.get`."""
        try:
            data = memoryview(self._small[key])
        except KeyError:
            raise NotFoundError(f"{key} can't be read in an archive that is written") from None
        return data[start:] if length is None else data[start : start + length]

    def head(self, key: str) -> ObjectInfo:
        """See `ports.Objects.head`."""
        if key not in self._sizes:
            raise NotFoundError(f"{key} is not there")
        return ObjectInfo(key, self._sizes[key], 0.0)

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ports.Objects.scan`."""
        keys = [key for key in self._sizes if key.startswith(prefix)]
        return (self.head(key) for key in keys)

    def delete(self, keys: Sequence[str]) -> None:
        """See `ports.Objects.delete`: nothing leaves a stream."""
        if keys:
            raise RefusedError("an archive that is written can't be changed")

    def new_pack(self, namespace: str) -> str:
        """See `ports.Objects.new_pack`."""
        return secrets.token_hex(16)

    def expect(self, keys: Sequence[str], of: str) -> None:
        """See `ports.Objects.expect`."""

    def close(self) -> None:
        """Write the end of the archive: without it, it is no whole one."""
        self._stream.write(bytes(2 * tarfile.BLOCKSIZE))

    def _add(self, key: str, data: bytes | bytearray | memoryview) -> None:
        entry = tarfile.TarInfo(key)
        entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
        self._stream.write(entry.tobuf(tarfile.PAX_FORMAT))
        self._stream.write(data)
        self._stream.write(bytes(-len(data) % tarfile.BLOCKSIZE))


class TarReader:
    """Implements `ports.Objects` over an archive that is a file; nothing can be put."""

    def __init__(self, path: Path) -> None:
        """Raises CorruptError if it is no archive, NotFoundError, OSError."""
        self._members: dict[str, tuple[int, int]] = {}
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            with tarfile.open(path, mode="r:") as tar:
                for entry in tar:
                    if entry.isreg():
                        self._members[entry.name] = (entry.offset_data, entry.size)
        except FileNotFoundError as error:
            raise NotFoundError(f"{path} is not there") from error
        except tarfile.TarError as error:
            raise CorruptError(f"{path} is no whole archive: {error}") from error

    def put(self, key: str, data: bytes | bytearray | memoryview, *, create: bool = False) -> None:
        """Refused."""
        raise RefusedError("an archive that is read can't be changed")

    def get(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """See `ports.Objects.get`."""
        offset, size = self._member(key)
        wanted = max(0, size - start if length is None else min(length, size - start))
        return memoryview(os.pread(self._file, wanted, offset + start))

    def head(self, key: str) -> ObjectInfo:
        """See `ports.Objects.head`."""
        return ObjectInfo(key, self._member(key)[1], 0.0)

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ports.Objects.scan`."""
        return (
            ObjectInfo(key, size, 0.0)
            for key, (_, size) in sorted(self._members.items())
            if key.startswith(prefix)
        )

    def delete(self, keys: Sequence[str]) -> None:
        """Refused."""
        raise RefusedError("an archive that is read can't be changed")

    def new_pack(self, namespace: str) -> str:
        """Refused."""
        raise RefusedError("an archive that is read can't be changed")

    def expect(self, keys: Sequence[str], of: str) -> None:
        """See `ports.Objects.expect`."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _member(self, key: str) -> tuple[int, int]:
        try:
            return self._members[key]
        except KeyError:
            raise NotFoundError(f"{key} is not in the archive") from None
