"""States that come from other nodes, until they are sealed in this node's local place.

    .arriving/<successor>/base      the ID of the state of before whose blocks were sent in advance
    .arriving/<successor>/staged/   its files of memory
    .arriving/<successor>/images/   the state itself

Each piece is hashed once it is written, as it reads back, and compared with the signed manifest
when all is there. What lies here is no artifact: whoever begins anew may find half of it, or none.
"""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from blake3 import blake3

from kybernate.adapters.objects import make_folder, sync_folder
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import WORKERS, read_manifest
from kybernate.checkpoint.stream import Hashed, Same, Whole, Written
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.manifest import PIECE
from kybernate.errors import ConflictError, CorruptError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from kybernate.adapters.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.checkpoint.stream import Part, Seen
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import PodUid

ARRIVING = ".arriving"
_COPY_ERRORS = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_UNFINISHED = 4 * WORKERS


class Inbox:
    """All of them. Calls for one successor come one after another; those that block say so."""

    def __init__(self, place: Place, keys: ArtifactKeys, seen: Seen) -> None:
        self._place = place
        self._keys = keys
        self._seen = seen
        self._folder = place.local / ARRIVING
        self._hashing = _Hashing()
        self._files: dict[PodUid, dict[str, _File]] = {}

    def held(self, successor: PodUid) -> tuple[str, dict[str, int]]:
        """The state of before that is here, and how far each of its files goes. Blocks shortly."""
        home = self._home(successor)
        try:
            base = (home / "base").read_text()
            files = {path.name: path.stat().st_size for path in (home / "staged").iterdir()}
        except FileNotFoundError:
            return "", {}
        return base, files

    def receiving(self, successor: PodUid, staged: str) -> Incoming:
        """For parts that come next: of the state of before `staged`, or of the state itself, which
        begins anew. Blocks. Raises OSError."""
        home = self._home(successor)
        if staged:
            self._begin_staging(home, staged)
            return Incoming(home / "staged", home / "staged", self._hashing, {})
        make_folder(home / "images")
        files = self._files.setdefault(successor, {})
        return Incoming(home / "images", home / "staged", self._hashing, files)

    def _begin_staging(self, home: Path, base: str) -> None:
        with suppress(FileNotFoundError):
            if (home / "base").read_text() != base:
                shutil.rmtree(home)
        make_folder(home / "staged")
        (home / "base").write_text(base)

    def accept(self, successor: PodUid, artifact: str, signed: bytes) -> tuple[str, ...]:
        """What arrived is this artifact, and lies in the place from now on; or the names of the
        files that aren't what was signed, and must be sent again. Blocks.

        Raises RefusedError (the manifest isn't signed by who is trusted), CorruptError, OSError.
        """
        what = f"the manifest of {artifact}, as it was sent"
        manifest = manifests.decode(self._keys.opened(signed, what), what)
        if manifest.id != artifact or manifest.form != manifests.RAW:
            raise CorruptError(f"{what}, is another one's")
        with suppress(NotFoundError):
            read_manifest(self._place, artifact, self._keys)
            self.drop(successor)
            return ()
        files = self._files.get(successor, {})
        lacking = tuple(each.name for each in manifest.files if not _is(files.get(each.name), each))
        if not lacking:
            self._keep(successor, manifest, signed)
        for name in lacking:
            files.pop(name, None)
        return lacking

    def _keep(self, successor: PodUid, manifest: Manifest, signed: bytes) -> None:
        files = self._files[successor]
        images = self._home(successor) / "images"
        for path in images.iterdir():
            if path.name not in {each.name for each in manifest.files}:
                path.unlink()
        own = {each.name: (each.size, files[each.name].digests()) for each in manifest.files}
        home = self._place.local / layout.folder(manifest.id)
        make_folder(home)
        with suppress(FileNotFoundError):
            shutil.rmtree(home / layout.IMAGES)
        images.rename(home / layout.IMAGES)
        sync_folder(home)
        self._place.objects.put(layout.folder(manifest.id) + layout.PIECES, Hashed.of(own).pieces)
        with suppress(ConflictError):
            self._place.objects.put(layout.manifest_key(manifest.id), signed, create=True)
        self._seen.verified.add(manifest.id)
        self.drop(successor)

    def is_here(self, artifact: str) -> bool:
        """Whether it arrived, and was kept. Blocks shortly. Raises RefusedError for what is no ID,
        or isn't signed."""
        try:
            read_manifest(self._place, artifact, self._keys)
        except NotFoundError:
            return False
        return True

    def sync(self, artifact: str) -> None:
        """Its files, if it is here, are on the disk when this returns. Blocks. Raises OSError."""
        with suppress(FileNotFoundError):
            for path in (self._place.local / layout.folder(artifact) / layout.IMAGES).iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def drop(self, successor: PodUid) -> None:
        """Forget what came for it. Idempotent, blocks. Raises OSError."""
        self._files.pop(successor, None)
        with suppress(FileNotFoundError):
            shutil.rmtree(self._home(successor))

    def waiting(self) -> frozenset[str]:
        """Successors of whom something lies here. Blocks shortly."""
        try:
            return frozenset(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return frozenset()

    def _home(self, successor: PodUid) -> Path:
        if not layout.is_file(successor):
            raise RefusedError(f"{successor[:200]!r} is no UID of a pod")
        return self._folder / successor


class _Hashing:
    """Threads that hash pieces of files as they read back, each through a buffer of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="arriving")
        self._reader = PieceReader()

    def begin(self, path: Path, number: int) -> Future[bytes]:
        """The hash of the file's piece of this number."""
        return self._pool.submit(lambda: blake3(self._reader.read(path, number)).digest())


class Incoming:
    """One stream of parts. `take` and `close` are called by one thread."""

    def __init__(
        self, folder: Path, staged: Path, hashing: _Hashing, files: dict[str, _File]
    ) -> None:
        self._folder = folder
        self._staged = staged
        self._hashing = hashing
        self._files = files
        self._sources: dict[str, int] = {}
        self._fresh: set[str] = set()

    def take(self, part: Part) -> None:
        """Put it where it belongs. Raises RefusedError if it doesn't follow, OSError."""
        file = self._file(part)
        match part:
            case Written():
                file.write(part.data, part.offset)
            case Same():
                file.copy(self._source(part.source), part)
            case Whole():
                file.end(part.size)

    def close(self) -> None:
        """No more comes."""
        for source in self._sources.values():
            os.close(source)
        for name in self._fresh:
            self._files[name].close()

    def _file(self, part: Part) -> _File:
        name = part.file
        if name not in self._fresh:
            _check(name)
            # Of a file that is all there its end is all that comes.
            begins = part.size if isinstance(part, Whole) else part.offset
            path = self._folder / name
            keep = begins if self._folder == self._staged else 0
            self._files[name] = _File(path, keep, self._hashing, self._folder != self._staged)
            self._fresh.add(name)
        return self._files[name]

    def _source(self, name: str) -> int:
        if name not in self._sources:
            _check(name)
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            self._sources[name] = os.open(self._staged / name, flags)
        return self._sources[name]


class _File:
    """One file that grows by what arrives; its pieces are hashed once they are whole."""

    def __init__(self, path: Path, size: int, hashing: _Hashing, hashes: bool) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o600)
        there = os.fstat(self._file).st_size
        if size > there:
            os.close(self._file)
            raise RefusedError(f"{path.name} ends at {there}, and what comes begins at {size}")
        os.ftruncate(self._file, size)
        self._hashing, self._hashes = hashing, hashes
        self._coming: list[Future[bytes]] = []
        self.size = size
        self.whole = False

    def write(self, data: bytes, offset: int) -> None:
        self._follows(offset)
        at = 0
        while at < len(data):
            at += os.pwrite(self._file, memoryview(data)[at:], offset + at)
        self._grew(len(data))

    def copy(self, source: int, part: Same) -> None:
        self._follows(part.offset)
        at = 0
        while at < part.size:
            step = self._copy(source, part.start + at, part.offset + at, part.size - at)
            if not step:
                raise RefusedError(f"{part.source} has no {part.size} bytes from {part.start} on")
            at += step
        self._grew(part.size)

    def _copy(self, source: int, start: int, offset: int, size: int) -> int:
        try:
            return os.copy_file_range(source, self._file, size, start, offset)
        except OSError as error:
            if error.errno not in _COPY_ERRORS:
                raise
            return os.pwrite(self._file, os.pread(source, min(size, PIECE), start), offset)

    def end(self, size: int) -> None:
        if size != self.size:
            raise RefusedError(f"{self._path.name} has {self.size} bytes here, was sent as {size}")
        if self._hashes and size % PIECE:
            self._hash(size // PIECE)
        self.whole = True

    def digests(self) -> bytes:
        """The hashes of its pieces."""
        return b"".join(one.result() for one in self._coming)

    def close(self) -> None:
        os.close(self._file)

    def _follows(self, offset: int) -> None:
        if offset != self.size or self.whole:
            raise RefusedError(f"{self._path.name} goes on at {self.size}, not at {offset}")

    def _grew(self, size: int) -> None:
        before, self.size = self.size // PIECE, self.size + size
        if self._hashes:
            for number in range(before, self.size // PIECE):
                self._hash(number)

    def _hash(self, number: int) -> None:
        if len(self._coming) >= _UNFINISHED:
            self._coming[-_UNFINISHED].exception()
        self._coming.append(self._hashing.begin(self._path, number))


def _is(file: _File | None, signed: manifests.File) -> bool:
    if file is None or not file.whole or file.size != signed.size:
        return False
    return blake3(file.digests()).hexdigest() == signed.pieces


def _check(name: str) -> None:
    if not layout.is_file(name):
        raise RefusedError(f"{name[:200]!r} is no name of a file of a saved state")
