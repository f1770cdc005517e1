"""Objects in a folder of this node's, or in an object store (S3, GCS, Azure) by obstore.

Retries, signatures and connections are the library's. In a folder each object is a file that is
written beside, synced and renamed, its folder synced after it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import obstore
from obstore import exceptions, store

from kybernate.core.artifacts.layout import ARTIFACTS, IMAGES, PACKS, ObjectInfo, id_of
from kybernate.core.chunks.pace import Pace
from kybernate.errors import ConfigError, ConflictError, NotFoundError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from obstore import HTTP_METHOD

    from kybernate.ports import Objects

REMOTE = ("s3", "gs", "az")
SCHEMES = (*REMOTE, "memory")
_BESIDE = ".new-"
_UNSIGNED = "AWS_UNSIGNED_PAYLOAD"
"""By this a person decides for all objects."""
_OF_ARTIFACT = 4
"""Steps of a path to an artifact's own folder."""
_KEEP_CACHED = 1 << 20
"""Files from this size on don't stay in the page cache once they are on the disk."""
_ON_DISK: set[Path] = set()
"""Folders whose names this process has synced."""
_MOST_KNOWN = 20_000
_SMALL = 256 << 10
"""What has no more bytes doesn't wait behind packs."""


def open_objects(url: str, request_seconds: float = 60.0) -> Objects:
    """The place that a URL (s3://, gs://, az://, file://) or an absolute path names.

    Credentials and endpoints come from the environment, by the names that each store's own tools
    use. A request that has no answer after `request_seconds` is tried again, for three times as
    long at most. Raises ConfigError.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme == "file":
        path = Path(rest if found else url)
        if not path.is_absolute():
            raise ConfigError(
                "place", f"{url!r} is no absolute path, nor a URL such as s3://bucket/x"
            )
        return LocalObjects(path)
    if scheme not in SCHEMES:
        raise ConfigError("place", f"{url!r} must begin with s3://, gs://, az://, file:// or /")
    try:
        if scheme == "memory":
            return StoreObjects(store.MemoryStore())
        plain = _opened(url, request_seconds)
        if scheme != "s3" or _UNSIGNED in os.environ:
            return StoreObjects(plain)
        return StoreObjects(plain, _opened(url, request_seconds, unsigned=True))
    except (exceptions.BaseError, ValueError) as error:
        raise ConfigError("place", f"{url!r} can't be used: {error}") from error


def _opened(url: str, request_seconds: float, *, unsigned: bool = False) -> store.ObjectStore:
    return store.from_url(
        url,
        config={"unsigned_payload": True} if unsigned else None,
        client_options={
            "timeout": timedelta(seconds=request_seconds),
            "connect_timeout": timedelta(seconds=min(5.0, request_seconds)),
            # What is given here hides what the store would read by itself.
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
        },
        retry_config={
            "max_retries": 5,
            "retry_timeout": timedelta(seconds=3 * request_seconds),
        },
    )


class FreeObjects:
    """What objects have in common that need nobody's leave."""

    def new_pack(self, namespace: str) -> str:
        """See `ports.Objects.new_pack`."""
        return secrets.token_hex(16)

    def expect(self, keys: Sequence[str], of: str) -> None:
        """See `ports.Objects.expect`."""


class StoreObjects(FreeObjects):
    """Implements `ports.Objects` on a store of obstore's.

    Packs are put by `unsigned`, if there is one: a signature over their bytes costs both ends as
    much as naming them, and proves nothing, since each pack is sealed, and read back.
    """

    def __init__(self, store: store.ObjectStore, unsigned: store.ObjectStore | None = None) -> None:
        self._store = store
        self._unsigned = unsigned or store

    def put(self, key: str, data: bytes | bytearray | memoryview, *, create: bool = False) -> None:
        """See `ports.Objects.put`."""
        with _translated(key):
            obstore.put(
                self._unsigned if key.startswith(PACKS) else self._store,
                _checked(key),
                data,
                mode="create" if create else "overwrite",
                use_multipart=False,
            )

    def get(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """See `ports.Objects.get`."""
        with _translated(key):
            if length is None and start == 0:
                return memoryview(obstore.get(self._store, _checked(key)).bytes())
            if length is None:
                length = max(0, self.head(key).size - start)
            if not length:
                return memoryview(b"")
            found = obstore.get_range(self._store, _checked(key), start=start, length=length)
            return memoryview(found)

    def head(self, key: str) -> ObjectInfo:
        """See `ports.Objects.head`."""
        with _translated(key):
            return _info(obstore.head(self._store, _checked(key)))

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ports.Objects.scan`."""
        with _translated(prefix):
            for metas in obstore.list(self._store, prefix.rstrip("/"), chunk_size=1000):
                yield from (_info(meta) for meta in metas)

    def delete(self, keys: Sequence[str]) -> None:
        """See `ports.Objects.delete`."""
        with suppress(NotFoundError), _translated(keys[0] if keys else ""):
            if keys:
                obstore.delete(self._store, [_checked(key) for key in keys])

    @property
    def signs(self) -> bool:
        """Whether requests can be signed for others."""
        return isinstance(self._store, (store.S3Store, store.GCSStore, store.AzureStore))

    def signed(self, method: HTTP_METHOD, keys: Sequence[str], lasts: timedelta) -> list[str]:
        """URLs by which anybody can make this one request, until they end. Raises RefusedError,
        RetryableError."""
        with _translated(keys[0] if keys else ""):
            wanted = [_checked(key) for key in keys]
            signing = cast("store.S3Store", self._store)
            return list(obstore.sign(signing, method, wanted, lasts)) if wanted else []

    def page(self, prefix: str, after: str, most: int) -> list[ObjectInfo]:
        """At most so many objects below `prefix`, those after `after`, in the order of their keys.
        Raises RetryableError."""
        with _translated(prefix):
            offset = after or None
            found = obstore.list(self._store, prefix.rstrip("/"), offset=offset, chunk_size=most)
            return [_info(meta) for meta in next(iter(found), ())]


class LocalObjects(FreeObjects):
    """Implements `ports.Objects` on a folder. Files and folders are the owner's alone."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, key: str, data: bytes | bytearray | memoryview, *, create: bool = False) -> None:
        """See `ports.Objects.put`."""
        path = self.root / _checked(key)
        make_folder(path.parent)
        beside = path.with_name(_BESIDE + secrets.token_hex(8))
        try:
            _write(beside, data)
            _name(beside, path, create=create)
        except FileExistsError as error:
            # Perhaps by who was killed before it was on the disk.
            sync_folder(path.parent)
            raise ConflictError(f"{key} is there already") from error
        finally:
            with suppress(FileNotFoundError):
                beside.unlink()

    def get(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """See `ports.Objects.get`."""
        try:
            with (self.root / _checked(key)).open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                wanted = max(0, size - start if length is None else min(length, size - start))
                data = bytearray(wanted)
                file.seek(start)
                found = file.readinto(data)
                if wanted >= _KEEP_CACHED:
                    os.posix_fadvise(file.fileno(), start, wanted, os.POSIX_FADV_DONTNEED)
                return memoryview(data)[:found]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{key} is not there") from error

    def head(self, key: str) -> ObjectInfo:
        """See `ports.Objects.head`."""
        try:
            found = (self.root / _checked(key)).stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{key} is not there") from error
        return ObjectInfo(key, found.st_size, found.st_mtime)

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ports.Objects.scan`. Files that are being written, and images, are left out."""
        for folder, folders, files in os.walk(self.root / _checked(prefix.rstrip("/"))):
            kept = (name for name in folders if not self._holds_images(Path(folder), name))
            folders[:] = sorted(kept)
            for name in sorted(files):
                path = Path(folder) / name
                if not name.startswith("."):
                    with suppress(NotFoundError):
                        yield self.head(path.relative_to(self.root).as_posix())

    def _holds_images(self, folder: Path, name: str) -> bool:
        """Namespaces and pods may be called so, too."""
        above = folder.relative_to(self.root).parts
        return name == IMAGES and len(above) == _OF_ARTIFACT and f"{above[0]}/" == ARTIFACTS

    def delete(self, keys: Sequence[str]) -> None:
        """See `ports.Objects.delete`."""
        for key in keys:
            path = self.root / _checked(key)
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                sync_folder(path.parent)

    def leftovers(self, before: float) -> list[Path]:
        """Files that a crash left half-written, last changed before then (seconds since 1970).
        Others write and delete meanwhile."""
        found = []
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder, name) for name in names if name.startswith(_BESIDE)):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        found.append(path)
        return sorted(found)


class PacedObjects:
    """Another place, with at most `rate` bytes per second in and out together.

    Manifests and what is small are counted, but don't wait for what is large: whoever asks for
    them has little time, and packs may have taken the next many seconds.
    """

    def __init__(
        self,
        inner: Objects,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        self._pace = Pace(rate)
        self._lock = threading.Lock()
        self._clock = clock
        self._sleep = sleep

    def put(self, key: str, data: bytes | bytearray | memoryview, *, create: bool = False) -> None:
        """See `ports.Objects.put`."""
        self._wait(key, len(data))
        self.inner.put(key, data, create=create)

    def get(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """See `ports.Objects.get`; counted is what came, not what was asked for."""
        data = self.inner.get(key, start, length)
        self._wait(key, len(data))
        return data

    def head(self, key: str) -> ObjectInfo:
        """See `ports.Objects.head`."""
        return self.inner.head(key)

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ports.Objects.scan`."""
        return self.inner.scan(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """See `ports.Objects.delete`."""
        self.inner.delete(keys)

    def new_pack(self, namespace: str) -> str:
        """See `ports.Objects.new_pack`."""
        return self.inner.new_pack(namespace)

    def expect(self, keys: Sequence[str], of: str) -> None:
        """See `ports.Objects.expect`."""
        self.inner.expect(keys, of)

    def _wait(self, key: str, size: int) -> None:
        # The manifest of a state of many GB has more bytes than what is small.
        urgent = size <= _SMALL or id_of(key) is not None
        with self._lock:
            seconds = self._pace.reserve(size, self._clock(), urgent=urgent)
        if seconds > 0:
            self._sleep(seconds)


def make_folder(path: Path) -> None:
    """The folder and those above it, mode 0700, each on the disk. Raises OSError.

    One that is there may have been made by who was killed, or failed, before that: a process
    believes those alone that it has synced itself.
    """
    if path in _ON_DISK and path.is_dir():
        return
    if path == path.parent:
        return
    make_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        with suppress(PermissionError):  # one of the host's own, above ours
            sync_folder(path.parent)
    else:
        with _undone(path.rmdir):
            sync_folder(path.parent)
    if len(_ON_DISK) >= _MOST_KNOWN:
        _ON_DISK.clear()
    _ON_DISK.add(path)


def sync_folder(path: Path) -> None:
    """The folder's names are on the disk. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _name(beside: Path, path: Path, *, create: bool) -> None:
    if create:
        os.link(beside, path)
        with _undone(path.unlink):
            sync_folder(path.parent)
    else:
        beside.rename(path)
        sync_folder(path.parent)


@contextmanager
def _undone(undo: Callable[[], None]) -> Iterator[None]:
    """What is not on the disk is not there: who tries again mustn't find it."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            undo()
        raise


def _write(path: Path, data: bytes | bytearray | memoryview) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
        if len(data) >= _KEEP_CACHED:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _checked(key: str) -> str:
    if "\0" in key or any(part in ("", ".", "..") or part[0] == "." for part in key.split("/")):
        raise RefusedError(f"{key[:300]!r} can't be the key of an object")
    return key


def _info(meta: obstore.ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except exceptions.NotFoundError as error:
        raise NotFoundError(f"{key} is not there") from error
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise ConflictError(f"{key} is there already") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        # Whoever gets a RefusedError takes what is there for worthless: it isn't, it's locked.
        raise RetryableError(
            f"{key}: the store refuses; check its credentials ({_line(error)})", delay=30.0
        ) from error
    except (exceptions.BaseError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(f"{key} is not there") from error
        raise RetryableError(
            f"{key}: the store doesn't answer ({_line(error)})", delay=5.0
        ) from error
