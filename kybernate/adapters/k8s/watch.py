"""Keeping up with a collection of objects, through ends, errors and forgotten versions."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from kybernate.errors import ConflictError, KybernateError, RetryableError
from kybernate.lib.retry import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Json = dict[str, Any]
    Params = Mapping[str, str | int | bool]
    OnEvent = Callable[[str, Json], None]

log = logging.getLogger(__name__)

OF_USERS = 20
"""Objects in a page of those that users make: each may be as long as the API server lets it be."""
LIST_S = 30.0
_PAUSES = Pauses(0.1, 5.0, jitter=1.0)
"""Seconds that a page of a list may take."""


class Stream(Protocol):
    """An open watch: an iterator of its events, which another thread may end."""

    def __iter__(self) -> Iterator[Json]:
        """Events as the API server sent them. Raises RetryableError when the connection breaks."""

    def close(self) -> None:
        """End the watch; a blocked reader returns."""


class Source(Protocol):
    """What a Watcher needs of the API."""

    def get(self, path: str, params: Params, *, timeout: float) -> Json:
        """One GET, of at most `timeout` seconds."""

    def watch(self, path: str, params: Params, *, timeout: float) -> Stream:
        """Open a watch; `timeout` is the longest silence in seconds."""


class Watcher:
    """Keeps up with one collection: calls `on_event` for all that is, then for all that changes.

    It lists (in pages), watches from there with bookmarks, resumes when a watch ends and lists
    again when the API server forgot the version (410). After a second list it reports only what
    differs, and DELETED for what vanished meanwhile. Events come from one thread, in order. An
    exception of `on_event` is logged, and the next event follows.

    `keep` reduces an object to what the receiver needs, before it is passed on and remembered
    (the last one seen is what a made-up DELETED carries); by default managedFields are dropped.
    With `names_only` no more is remembered, and carried by such an event, than names and versions.
    """

    def __init__(  # noqa: PLR0913 - all but the last two are required
        self,
        api: Source,
        path: str,
        params: Params,
        on_event: OnEvent,
        name: str,
        *,
        keep: Callable[[Json], Json] | None = None,
        names_only: bool = False,
        page: int = 500,
    ) -> None:
        self.synced = threading.Event()
        """Set once everything that existed at the start was reported."""
        self.last_error: str | None = None
        """Why the watch is interrupted, in a sentence; None while all is well."""
        self._api = api
        self._path = path
        self._params = dict(params)
        self._on_event = on_event
        self._name = name
        self._keep = keep or drop_managed_fields
        self._remember = _names if names_only else _all
        self._page = page
        self._known: dict[tuple[str, str], Json] = {}
        self._version: str | None = None
        self._stream: Stream | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._pauses = iter(_PAUSES)
        self._called = threading.Event()
        self._asked = 0
        self._listed_for = 0
        self._thread = threading.Thread(target=self._run, name=f"watch {name}", daemon=True)

    def start(self) -> None:
        """Start listing and watching."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the watch and wait for its thread, at most `timeout` seconds."""
        self._stopping.set()
        self._called.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def refresh(self) -> int:
        """List again; `is_fresh` of the number returned says when that list was taken in.

        Events may be late, by how much nobody knows. A list that is begun now shows all that was
        written before now.
        """
        with self._lock:
            self._asked += 1
            if self._stream is not None:
                self._stream.close()
            self._called.set()
            return self._asked

    def is_fresh(self, refresh: int) -> bool:
        """Whether a list that began after this call of `refresh` was taken in."""
        return self._listed_for >= refresh

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._version is None or self._is_stale():
                    self._list()
                self._watch()
            except KybernateError as error:
                self._interrupted(error)
            except Exception as error:
                log.exception("watch %s", self._name)
                self._version = None
                self._interrupted(error)

    def _interrupted(self, error: Exception) -> None:
        if self._stopping.is_set():
            return
        self.last_error = f"{self._name}: {error}"
        delay = next(self._pauses)
        log.warning("watch %s: %s; again in %.1f s", self._name, error, delay)
        # Who asks for a list or an end doesn't wait for the rest of a delay.
        self._called.wait(delay)
        if not self._stopping.is_set():
            self._called.clear()

    def _list(self) -> None:
        asked = self._asked
        seen: set[tuple[str, str]] = set()
        meta: Json = {}
        for page in self._pages():
            for item in page.get("items") or ():
                seen.add(self._listed(item))
            meta = page.get("metadata") or {}
            if self._stopping.is_set():
                return
        for key in [key for key in self._known if key not in seen]:
            self._emit("DELETED", self._known.pop(key))
        self._version = str(meta["resourceVersion"])
        self._listed_for = asked
        self.synced.set()

    def _pages(self) -> Iterator[Json]:
        """The list's pages. While one is looked at, the next is on its way."""
        coming = _Ahead(self._get_page, "")
        while True:
            page = coming.result()
            token = str((page.get("metadata") or {}).get("continue") or "")
            if token and not self._stopping.is_set():
                coming = _Ahead(self._get_page, token)
            yield page
            if not token:
                return

    def _get_page(self, token: str) -> Json:
        query = {**self._params, "limit": self._page, **({"continue": token} if token else {})}
        return self._api.get(self._path, query, timeout=LIST_S)

    def _listed(self, raw: Json) -> tuple[str, str]:
        key = _key(raw)
        old = self._known.get(key)
        if old is not None and _meta(old, "uid") != _meta(raw, "uid"):
            self._emit("DELETED", self._known.pop(key))
            old = None
        if old is None or _meta(old, "resourceVersion") != _meta(raw, "resourceVersion"):
            self._changed("ADDED" if old is None else "MODIFIED", raw)
        return key

    def _watch(self) -> None:
        # Watches of many clients must not all end in the same second.
        seconds = random.randint(240, 300)  # noqa: S311 - spreading load, not a secret
        query = {
            **self._params,
            "resourceVersion": self._version or "",
            "allowWatchBookmarks": True,
            "timeoutSeconds": seconds,
        }
        try:
            stream = self._api.watch(self._path, query, timeout=seconds + 15.0)
        except ConflictError:
            self._version = None
            raise
        started = time.monotonic()
        try:
            if self._hold(stream):
                self.last_error = None
                self._consume(stream)
        except RetryableError:
            if not self._is_stale():
                raise
        finally:
            self._hold(None)
            stream.close()
        if time.monotonic() - started < 1.0 and not self._is_stale():
            raise RetryableError("the API server ended the watch at once")
        self._pauses = iter(_PAUSES)

    def _hold(self, stream: Stream | None) -> bool:
        with self._lock:
            self._stream = stream
            return not (self._stopping.is_set() or self._is_stale())

    def _is_stale(self) -> bool:
        """Whether somebody asked for a list since the last one began."""
        return self._listed_for < self._asked

    def _consume(self, stream: Stream) -> None:
        for event in stream:
            if self._stopping.is_set() or self._is_stale():
                return
            kind, item = event.get("type"), event.get("object") or {}
            if kind == "ERROR":
                self._version = None
                raise RetryableError(str(item.get("message", "the watch failed")))
            self._version = _meta(item, "resourceVersion") or self._version
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                self._changed(kind, item)
            self._pauses = iter(_PAUSES)

    def _changed(self, kind: str, raw: Json) -> None:
        key, item = _key(raw), self._read(raw)
        if kind == "DELETED":
            known = self._known.pop(key, None)
            self._emit(kind, item or known or _names(raw))
        elif item is not None:
            self._known[key] = self._remember(item)
            self._emit(kind, item)

    def _read(self, raw: Json) -> Json | None:
        """What is kept of it; None if it can't be read. Whoever wrote one that can't must not
        stand in the way of all others."""
        try:
            return self._keep(raw)
        except Exception:
            log.exception("watch %s: %s can't be read", self._name, _key(raw))
            return None

    def _emit(self, kind: str, item: Json) -> None:
        try:
            self._on_event(kind, item)
        except Exception:
            log.exception("watch %s: %s %s was not taken in", self._name, kind, _key(item))


def drop_managed_fields(item: dict[str, Any]) -> dict[str, Any]:
    """The object without the book-keeping of server-side apply, often half of its bytes."""
    meta = item.get("metadata")
    if isinstance(meta, dict):
        meta.pop("managedFields", None)
    return item


_NAMES = ("namespace", "name", "uid", "resourceVersion")


def _names(item: Json) -> Json:
    meta = item.get("metadata") or {}
    return {"metadata": {name: meta[name] for name in _NAMES if name in meta}}


def _all(item: Json) -> Json:
    return item


class _Ahead:
    """A call that continues while something else is done."""

    def __init__(self, get: Callable[[str], Json], token: str) -> None:
        self._found: Json | Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(get, token), daemon=True)
        self._thread.start()

    def _run(self, get: Callable[[str], Json], token: str) -> None:
        try:
            self._found = get(token)
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            self._found = error

    def result(self) -> Json:
        """What it gave. Raises what it raised."""
        self._thread.join()
        if isinstance(self._found, Exception):
            raise self._found
        return self._found or {}


def _key(item: Json) -> tuple[str, str]:
    meta = item.get("metadata") or {}
    return str(meta.get("namespace") or ""), str(meta.get("name") or "")


def _meta(item: Json, field: str) -> str | None:
    value = (item.get("metadata") or {}).get(field)
    return None if value is None else str(value)
