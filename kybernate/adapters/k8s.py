"""The Kubernetes API: raw JSON calls with deadlines, and watches that survive what clusters do.

Authentication, TLS and connection pool are the official client's. Its object models are not
used: decoding a pod into them costs sixteen times as much as parsing the JSON. Foreign errors end
here; callers see only those of `kybernate.errors`.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

import orjson

from kybernate.errors import (
    ConfigError,
    ConflictError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Json = dict[str, Any]
    Params = Mapping[str, str | int | bool]
    OnEvent = Callable[[str, Json], None]

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 10.0
"""Seconds that a call may take, connecting included."""

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}

_POOL_SIZE = 32
_CHUNK = 1 << 16
_MAX_ERROR_BODY = 2000


class Stream(Protocol):
    """An open watch: an iterator of its events, which another thread may end."""

    def __iter__(self) -> Iterator[Json]:
        """Events as the API server sent them. Raises RetryableError when the connection breaks."""

    def close(self) -> None:
        """End the watch; a blocked reader returns."""


class Source(Protocol):
    """What a Watcher needs of the API."""

    def get(
        self, path: str, params: Params | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Json:
        """One GET."""

    def watch(self, path: str, params: Params, *, timeout: float) -> Stream:
        """Open a watch; `timeout` is the longest silence in seconds."""


class Api:
    """Calls to one API server. Safe to use from several threads.

    Every call raises NotFoundError (404), ConflictError (409, 410), RefusedError (any other 4xx;
    the message is the API server's own) or RetryableError (429, 5xx, no connection, no answer
    in time: whether the call took effect is unknown then).
    """

    def __init__(self, kubeconfig: Path | None, user_agent: str) -> None:
        """Read the credentials: a kubeconfig, or the pod's service account if that is None.

        Raises ConfigError if they can't be read.
        """
        # The client costs most of a second to import; who only imports this module won't pay it.
        from kubernetes.client import ApiClient  # noqa: PLC0415

        self._configuration = _configuration(kubeconfig)
        client = ApiClient(self._configuration)
        self._pool = client.rest_client.pool_manager
        self._host = self._configuration.host.rstrip("/")
        self._user_agent = user_agent

    def get(
        self, path: str, params: Params | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Json:
        """Read an object or a list."""
        return self._call("GET", path, params, timeout=timeout)

    def text(
        self, path: str, params: Params | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> str:
        """Read a subresource that is plain text, such as a container's log."""
        deadline = time.monotonic() + timeout
        what = f"GET {path}"
        response = self._send("GET", path, params or {}, None, None, timeout)
        if response.status >= 400:
            _raise_for(response, deadline, what)
        return _read(response, deadline, what).decode(errors="replace")

    def post(
        self,
        path: str,
        body: object,
        params: Params | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Json:
        """Create an object. Raises ConflictError if it exists."""
        return self._call("POST", path, params, body=body, timeout=timeout)

    def put(
        self,
        path: str,
        body: object,
        params: Params | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Json:
        """Replace an object. Raises ConflictError if its resourceVersion is not the newest."""
        return self._call("PUT", path, params, body=body, timeout=timeout)

    def patch(
        self,
        path: str,
        body: object,
        kind: str = "merge",
        params: Params | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Json:
        """Change an object; `kind` is a key of PATCH_TYPES.

        An "apply" patch names the user agent as its field manager unless `params` name another.
        """
        query = dict(params or {})
        if kind == "apply":
            query.setdefault("fieldManager", self._user_agent)
        content_type = PATCH_TYPES[kind]
        return self._call("PATCH", path, query, body=body, type_=content_type, timeout=timeout)

    def delete(
        self, path: str, body: object | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Json:
        """Delete an object; `body` may be a DeleteOptions object."""
        return self._call("DELETE", path, None, body=body, timeout=timeout)

    def watch(self, path: str, params: Params, *, timeout: float) -> Stream:
        """Open a watch; `timeout` is the longest silence in seconds before it counts as broken."""
        response = self._send("GET", path, {**params, "watch": True}, None, None, timeout)
        if response.status >= 400:
            _raise_for(response, time.monotonic() + timeout, f"GET {path}")
        return _Watch(response)

    def close(self) -> None:
        """Drop all idle connections."""
        self._pool.clear()

    def _call(
        self,
        method: str,
        path: str,
        params: Params | None,
        *,
        body: object | None = None,
        type_: str = "application/json",
        timeout: float,
    ) -> Json:
        deadline = time.monotonic() + timeout
        payload = None if body is None else orjson.dumps(body)
        response = self._send(method, path, params or {}, payload, type_, timeout)
        what = f"{method} {path}"
        if response.status >= 400:
            _raise_for(response, deadline, what)
        answer = _parse(_read(response, deadline, what))
        if answer is None:
            raise RetryableError(f"{what}: the API server's answer was not a JSON object")
        return answer

    def _send(
        self,
        method: str,
        path: str,
        params: Params,
        payload: bytes | None,
        type_: str | None,
        timeout: float,
    ) -> Any:
        import urllib3  # noqa: PLC0415 - comes with the client

        headers = self._headers()
        if payload is not None and type_ is not None:
            headers["content-type"] = type_
        url = self._host + path + _query(params)

        def once() -> Any:
            return self._pool.request(
                method,
                url,
                body=payload,
                headers=headers,
                timeout=urllib3.Timeout(total=timeout),
                retries=False,
                preload_content=False,
            )

        try:
            try:
                return once()
            except urllib3.exceptions.ProtocolError:
                # The server may have closed a kept-alive connection just now.
                if method != "GET":
                    raise
                return once()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RetryableError(f"{method} {path}: {_cause(error)}") from error

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json, */*", "user-agent": self._user_agent}
        # Reading the settings renews a token that is about to end.
        for setting in self._configuration.auth_settings().values():
            if setting["value"]:
                headers[setting["key"]] = setting["value"]
        return headers


class Watcher:
    """Keeps up with one collection: calls `on_event` for all that is, then for all that changes.

    It lists (in pages), watches from there with bookmarks, resumes when a watch ends and lists
    anew when the API server forgot the version (410). After a second list it reports only what
    differs, and DELETED for what vanished meanwhile. Events come from one thread, in order. An
    exception of `on_event` is logged, and the next event follows.

    `keep` reduces an object to what the receiver needs, before it is passed on and remembered
    (the last one seen is what a made-up DELETED carries); by default managedFields are dropped.
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
        self._page = page
        self._known: dict[tuple[str, str], Json] = {}
        self._version: str | None = None
        self._stream: Stream | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._backoff = _Backoff()
        self._thread = threading.Thread(target=self._run, name=f"watch {name}", daemon=True)

    def start(self) -> None:
        """Start listing and watching."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the watch and wait for its thread, at most `timeout` seconds."""
        self._stopping.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._version is None:
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
        delay = self._backoff.next()
        log.warning("watch %s: %s; again in %.1f s", self._name, error, delay)
        self._stopping.wait(delay)

    def _list(self) -> None:
        seen: set[tuple[str, str]] = set()
        token: str | None = None
        while True:
            query = {**self._params, "limit": self._page, **({"continue": token} if token else {})}
            page = self._api.get(self._path, query, timeout=30.0)
            for item in page.get("items") or ():
                seen.add(self._listed(item))
            meta = page.get("metadata") or {}
            token = meta.get("continue")
            if not token or self._stopping.is_set():
                break
        if self._stopping.is_set():
            return
        for key in [key for key in self._known if key not in seen]:
            self._emit("DELETED", self._known.pop(key))
        self._version = str(meta["resourceVersion"])
        self.synced.set()

    def _listed(self, raw: Json) -> tuple[str, str]:
        item = self._keep(raw)
        key, old = _key(item), self._known.get(_key(item))
        if old is not None and _meta(old, "uid") != _meta(item, "uid"):
            self._emit("DELETED", old)
            old = None
        if old is None or _meta(old, "resourceVersion") != _meta(item, "resourceVersion"):
            self._known[key] = item
            self._emit("ADDED" if old is None else "MODIFIED", item)
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
        finally:
            self._hold(None)
            stream.close()
        if time.monotonic() - started < 1.0:
            raise RetryableError("the API server ended the watch at once")
        self._backoff.reset()

    def _hold(self, stream: Stream | None) -> bool:
        with self._lock:
            self._stream = stream
        return not self._stopping.is_set()

    def _consume(self, stream: Stream) -> None:
        for event in stream:
            if self._stopping.is_set():
                return
            kind, item = event.get("type"), event.get("object") or {}
            if kind == "ERROR":
                self._version = None
                raise RetryableError(str(item.get("message", "the watch failed")))
            self._version = _meta(item, "resourceVersion") or self._version
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                self._changed(kind, self._keep(item))
            self._backoff.reset()

    def _changed(self, kind: str, item: Json) -> None:
        key = _key(item)
        if kind == "DELETED":
            self._known.pop(key, None)
        else:
            self._known[key] = item
        self._emit(kind, item)

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


def error_for(status: int, body: bytes, what: str) -> KybernateError:
    """The error of ours for an HTTP answer; `body` is a Status object if Kubernetes sent it."""
    answer = _parse(body) or {}
    text = str(answer.get("message") or body[:_MAX_ERROR_BODY].decode(errors="replace").strip())
    message = f"{what}: {text or 'no message'} (HTTP {status})"
    if status == 404:
        return NotFoundError(message)
    if status in (409, 410):
        return ConflictError(message)
    if status == 429 or status >= 500:
        delay = (answer.get("details") or {}).get("retryAfterSeconds") or 1.0
        return RetryableError(message, float(delay))
    return RefusedError(message)


class _Watch:
    """The events of an open response, one JSON object per line."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def __iter__(self) -> Iterator[Json]:
        rest = b""
        try:
            for chunk in self._response.stream(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _event(line)
        except (_http_error(), OSError, ValueError, AttributeError) as error:
            raise RetryableError(f"the watch broke: {_cause(error)}") from error

    def close(self) -> None:
        # Closing the file would not wake a thread that is blocked in reading it.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()
        with contextlib.suppress(OSError, _http_error()):
            self._response.close()


class _Backoff:
    """Delays in seconds that double from 0.2 to 10, each shortened by up to a half at random."""

    def __init__(self) -> None:
        self._delay = 0.2

    def next(self) -> float:
        delay, self._delay = self._delay, min(10.0, self._delay * 2)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreading load, not a secret

    def reset(self) -> None:
        self._delay = 0.2


def _configuration(kubeconfig: Path | None) -> Any:
    from kubernetes import config  # noqa: PLC0415 - heavy, see Api
    from kubernetes.client import Configuration  # noqa: PLC0415

    settings = Configuration()
    settings.connection_pool_maxsize = _POOL_SIZE
    settings.keep_alive = True
    try:
        if kubeconfig is None:
            config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=settings
            )
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                str(kubeconfig), client_configuration=settings, persist_config=False
            )
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        source = kubeconfig or "the pod's service account (no kubeconfig is set)"
        raise ConfigError("kubeconfig", f"can't read credentials from {source}: {error}") from error
    return settings


def _raise_for(response: Any, deadline: float, what: str) -> None:
    raise error_for(response.status, _read(response, deadline, what), what)


def _read(response: Any, deadline: float, what: str) -> bytes:
    body = bytearray()
    try:
        for chunk in response.stream(_CHUNK):
            body += chunk
            if time.monotonic() > deadline:
                response.close()
                raise RetryableError(f"{what}: the answer did not end within its deadline")
    except (_http_error(), OSError) as error:
        response.close()
        raise RetryableError(f"{what}: {_cause(error)}") from error
    response.release_conn()
    return bytes(body)


def _http_error() -> type[Exception]:
    import urllib3  # noqa: PLC0415 - comes with the client

    error: type[Exception] = urllib3.exceptions.HTTPError
    return error


def _event(line: bytes) -> Json:
    event = _parse(line)
    if event is None:
        raise RetryableError("the watch sent a line that is not a JSON object")
    return event


def _parse(body: bytes) -> Json | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _query(params: Params) -> str:
    if not params:
        return ""
    pairs = {k: str(v).lower() if isinstance(v, bool) else v for k, v in params.items()}
    return "?" + urlencode(pairs)


def _cause(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or str(error) or type(error).__name__)


def _key(item: Json) -> tuple[str, str]:
    return _meta(item, "namespace") or "", _meta(item, "name") or ""


def _meta(item: Json, field: str) -> str | None:
    value = (item.get("metadata") or {}).get(field)
    return None if value is None else str(value)
