"""An object store that this node has no credentials for: the registry signs for each request.

URLs to read by are asked for many at once, of what is known to be read next, and so are names for
new packs with the URLs to put them by; bytes go to and from the store itself. All else is small,
and done by the registry.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from kybernate.adapters.registry import storewire
from kybernate.core.artifacts.layout import INDEX, PACKS, ObjectInfo
from kybernate.errors import DeadlineError, LeaveError, NotFoundError, RefusedError, RetryableError
from kybernate.lib.retry import Pauses, quietly, retry_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import urllib3

    from kybernate.adapters.registry.client import Registry

log = logging.getLogger(__name__)

_PAUSES = Pauses(0.1, tries=5)
_CONNECT_S = 5.0
_SPARE_S = 60.0
"""What is good for less is not begun with."""
_POOL = 16
_MOST_URLS = 4096
_FORBIDDEN, _MISSING, _BEYOND = 403, 404, 416
_WHOLE = (200, 201)
_PART = 206


class RegistryObjects:
    """Implements `ports.Objects`. `open_registry` is called at each use."""

    def __init__(self, open_registry: Callable[[], Registry], request_s: float = 60.0) -> None:
        # It comes with the Kubernetes client, which not every program with this module has.
        import urllib3  # noqa: PLC0415

        self._ask = open_registry
        self._seconds = request_s
        timeout = urllib3.Timeout(connect=min(_CONNECT_S, request_s), read=request_s)
        self._pool = urllib3.PoolManager(maxsize=_POOL, block=True, retries=False, timeout=timeout)
        self._faults: tuple[type[Exception], ...] = (urllib3.exceptions.HTTPError, OSError)
        self._lock = threading.Lock()
        self._reads: dict[str, tuple[str, float]] = {}
        self._expected: dict[str, tuple[Sequence[str], int, str]] = {}
        self._names: dict[str, deque[tuple[str, float]]] = {}
        self._puts: dict[str, tuple[str, Mapping[str, str]]] = {}

    def put(self, key: str, data: bytes | bytearray | memoryview, *, create: bool = False) -> None:
        """See `ports.Objects.put`."""
        with self._lock:
            known = self._puts.pop(key, None)
        if known is None:
            if key.startswith((PACKS, INDEX)):
                raise RetryableError(f"{key}: there is no leave to put it any more", delay=1.0)
            body = base64.b64encode(data).decode()
            asked = storewire.Putting(key=key, data=body, create=create)
            with _told(key):
                self._ask().put_object(asked, self._seconds)
            return
        url, headers = known
        answer = self._request(key, "PUT", lambda: url, body=data, headers=headers)
        if answer.status not in _WHOLE:
            raise _unusable(key, answer.status)

    def get(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """See `ports.Objects.get`."""
        if length == 0:
            return memoryview(b"")
        end = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{end}"} if start or end else {}
        answer = self._request(key, "GET", lambda: self._url(key), headers=headers)
        if answer.status == _FORBIDDEN:
            # It may have ended on the way.
            with self._lock:
                self._reads.pop(key, None)
            answer = self._request(key, "GET", lambda: self._url(key), headers=headers)
        if answer.status == _MISSING:
            raise NotFoundError(f"{key} is not there")
        if answer.status == _BEYOND:
            return memoryview(b"")
        if answer.status not in (*_WHOLE, _PART):
            raise _unusable(key, answer.status)
        found = memoryview(answer.data)
        if headers and answer.status != _PART:
            return found[start:] if length is None else found[start : start + length]
        return found

    def head(self, key: str) -> ObjectInfo:
        """See `ports.Objects.head`."""
        with _told(key):
            seen = self._ask().head_object(key, self._seconds)
        return ObjectInfo(seen.key, seen.size, seen.modified)

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ports.Objects.scan`: of what this node may read."""
        asked: storewire.Listing | None = storewire.Listing(prefix=prefix)
        while asked is not None:
            with _told(prefix):
                page = self._ask().list_objects(asked, self._seconds)
            if not prefix.startswith(PACKS):
                self.expect([one.key for one in page.items], "")
            yield from (ObjectInfo(one.key, one.size, one.modified) for one in page.items)
            following = page.next
            asked = storewire.Listing(prefix=prefix, after=following) if following else None

    def delete(self, keys: Sequence[str]) -> None:
        """See `ports.Objects.delete`."""
        for at in range(0, len(keys), storewire.MOST_KEYS):
            some = list(keys[at : at + storewire.MOST_KEYS])
            with _told(some[0]):
                self._ask().delete_objects(some, self._seconds)

    def new_pack(self, namespace: str) -> str:
        """See `ports.Objects.new_pack`."""
        now = time.monotonic()
        with self._lock:
            names = self._names.setdefault(namespace, deque())
            while names:
                name, until = names.popleft()
                if until > now + _SPARE_S:
                    return name
                for kind in (PACKS, INDEX):
                    self._puts.pop(f"{kind}{namespace}/{name}", None)
        asked = storewire.Packing(namespace=namespace, packs=storewire.MOST_PACKS)
        with _told(f"{PACKS}{namespace}/"):
            made = self._ask().new_packs(asked, self._seconds)
        with self._lock:
            for one in made.packs:
                self._puts[f"{PACKS}{namespace}/{one.id}"] = one.pack, made.headers
                self._puts[f"{INDEX}{namespace}/{one.id}"] = one.index, made.headers
                names.append((one.id, now + made.seconds))
            return names.popleft()[0]

    def expect(self, keys: Sequence[str], of: str) -> None:
        """See `ports.Objects.expect`."""
        with self._lock:
            if len(self._expected) + len(keys) > _MOST_URLS:
                self._expected.clear()
            self._expected.update((key, (keys, at, of)) for at, key in enumerate(keys))

    def _url(self, key: str) -> str:
        """Where to read it, for one request that begins now."""
        now = time.monotonic()
        with self._lock:
            url, until = self._reads.get(key, ("", 0.0))
            if until > now + _SPARE_S / 2:
                return url
            following, at, of = self._expected.get(key, ((key,), 0, ""))
            wanted = following[at : at + storewire.MOST_KEYS]
        asked = storewire.Reading(keys=list(wanted), of=of or None)
        with _told(key):
            found = self._ask().read_objects(asked, self._seconds)
        if len(found.urls) != len(wanted):
            raise RetryableError(f"{key}: the registry signed for {len(found.urls)} objects")
        with self._lock:
            if len(self._reads) + len(wanted) > _MOST_URLS:
                self._reads.clear()
            good = now + found.seconds
            self._reads.update(
                (one, (url, good)) for one, url in zip(wanted, found.urls, strict=True)
            )
        return found.urls[0]

    def _request(
        self,
        key: str,
        method: str,
        url: Callable[[], str],
        *,
        body: bytes | bytearray | memoryview | None = None,
        headers: Mapping[str, str],
    ) -> urllib3.BaseHTTPResponse:
        """The store's answer. Raises RetryableError where it has none, after a few tries."""

        def once() -> urllib3.BaseHTTPResponse:
            where, sent = url(), cast("Any", body)  # any buffer; the library's types know one kind
            try:
                answer = self._pool.request(
                    method, where, body=sent, headers=dict(headers), redirect=False
                )
            except self._faults as error:
                # Its text has the URL, and so the leave.
                raise _SilentError(key, type(error).__name__) from None
            if answer.status >= 500 or answer.status == 429:
                raise _SilentError(key, f"HTTP {answer.status}")
            return answer

        return retry_blocking(once, quietly, on=_SilentError, pauses=_PAUSES)


class _SilentError(RetryableError):
    """The store gives no answer that counts."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: the store doesn't answer ({why})", delay=5.0)


def _unusable(key: str, status: int) -> RetryableError:
    # Whoever gets a RefusedError takes what is there for worthless: it isn't, it's locked.
    why = f"the store refuses what the registry signed (HTTP {status})"
    return RetryableError(f"{key}: {why}", delay=30.0)


@contextmanager
def _told(key: str) -> Iterator[None]:
    """What the registry refuses is locked, and not worthless."""
    try:
        yield
    except RefusedError as error:
        raise LeaveError(f"{key}: the registry gives no leave: {error}", delay=5.0) from error
    except DeadlineError as error:
        raise RetryableError(f"{key}: the registry doesn't answer ({error})", delay=5.0) from error
