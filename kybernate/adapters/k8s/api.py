"""Calls to the API server: raw JSON, a deadline each, and errors of ours.

Authentication, TLS and connection pool are the official client's. Its object models are not
used: decoding a pod into them costs sixteen times as much as parsing the JSON. Foreign errors end
here; callers see only those of `kybernate.errors`.
"""

from __future__ import annotations

import contextlib
import copy
import re
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson
import yaml

from kybernate.errors import (
    ConfigError,
    ConflictError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

from .pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from .watch import Stream

    Json = dict[str, Any]
    Params = Mapping[str, str | int | bool]
    Decode = Callable[[bytes], Json | None]

DEFAULT_TIMEOUT = 10.0
"""Seconds that a call may take, connecting included."""

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}

_WHOLE = "application/json, */*"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_POOL_SIZE = 32
_ASKS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""That a quiet watch has nobody behind it any more is noticed in 30 s, in 165 s by the client's own
`keep_alive`. So an agent that was cut off hears what became of its pods within seconds."""
_UNREADABLE = (yaml.YAMLError, OSError, ValueError, KeyError, TypeError)
_HEADERS_LAST = 1.0
"""Seconds for which the credentials are taken to be as they were."""

_CHUNK = 1 << 16
_CONNECTION = re.compile(r"^\w+\(host=[^)]*\): ")
_MAX_ERROR_BODY = 2000


class Api:
    """Calls to one API server. Safe to use from several threads.

    Every call raises NotFoundError (404), ConflictError (409, 410), RefusedError (any other 4xx;
    the message is the API server's own) or RetryableError (429, 5xx, no connection, no answer
    in time: whether the call took effect is unknown then).
    """

    def __init__(
        self, kubeconfig: Path | None, user_agent: str, context: str | None = None
    ) -> None:
        """Read the credentials: a kubeconfig's context, the current one if none is named, or the
        pod's service account if there is no kubeconfig.

        Raises ConfigError if they can't be read.
        """
        # The client costs most of a second to import; who only imports this module won't pay it.
        from kubernetes.client import ApiClient  # noqa: PLC0415

        self._configuration = _configuration(kubeconfig, context)
        client = ApiClient(self._configuration)
        self._pool = Pool(client.rest_client.pool_manager, self._configuration.host)
        self._user_agent = user_agent
        self._known_headers: dict[str, str] = {}
        self._headers_until = 0.0
        self._accept = {"list": _WHOLE, "watch": _WHOLE}
        self._parse: Decode = _parse

    def of_metadata(self) -> Api:
        """The same API server, whose objects have nothing but their metadata. For reading only."""
        other = copy.copy(self)
        other._accept = {"list": _METADATA_LIST, "watch": _METADATA}  # noqa: SLF001 - one of us
        return other

    def decoding(self, decode: Decode) -> Api:
        """The same API server, whose answers and events are decoded so; None is no JSON object."""
        other = copy.copy(self)
        other._parse = decode  # noqa: SLF001 - one of us
        return other

    def get(
        self, path: str, params: Params | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Json:
        """Read an object or a list."""
        return self._call("GET", path, params, timeout=timeout)

    def text(
        self, path: str, params: Params | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> str:
        """Read a subresource that is plain text, such as a container's log."""
        return self.tail(path, params, timeout=timeout).decode(errors="replace")

    def tail(
        self,
        path: str,
        params: Params | None = None,
        most: int | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> bytes:
        """The last `most` bytes of a subresource that isn't JSON; without it all of them."""
        deadline = time.monotonic() + timeout
        what = f"GET {path}"
        response = self._send("GET", path, params or {}, None, None, timeout)
        if response.status >= 400:
            _raise_for(response, deadline, what)
        return _read(response, deadline, what, most)

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
        return _Watch(response, self._parse)

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
        answer = self._parse(_read(response, deadline, what))
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

        headers = {
            **self._headers(),
            "accept": self._accept["watch" if "watch" in params else "list"],
        }
        if payload is not None and type_ is not None:
            headers["content-type"] = type_
        target = path + _query(params)

        def once() -> Any:
            return self._pool.request(method, target, payload, headers, timeout)

        try:
            try:
                return once()
            except urllib3.exceptions.ProtocolError:
                # The server may have closed a kept-alive connection just now.
                if method != "GET":
                    raise
                return once()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            server = self._configuration.host
            raise RetryableError(
                f"{method} {path}: no answer from the API server {server}: {_cause(error)}"
            ) from error

    def _headers(self) -> dict[str, str]:
        now = time.monotonic()
        # Reading the settings renews a token that is about to end, and costs a third of a call.
        if now >= self._headers_until:
            headers = {"user-agent": self._user_agent}
            for setting in self._configuration.auth_settings().values():
                if setting["value"]:
                    headers[setting["key"]] = setting["value"]
            self._known_headers, self._headers_until = headers, now + _HEADERS_LAST
        return self._known_headers


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

    def __init__(self, response: Any, decode: Decode) -> None:
        self._response = response
        self._decode = decode

    def __iter__(self) -> Iterator[Json]:
        rest = b""
        try:
            for chunk in self._response.stream(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield self._event(line)
        except (_http_error(), OSError, ValueError, AttributeError) as error:
            raise RetryableError(f"the watch broke: {_cause(error)}") from error

    def _event(self, line: bytes) -> Json:
        event = self._decode(line)
        if event is None:
            raise RetryableError("the watch sent a line that is not a JSON object")
        return event

    def close(self) -> None:
        # Closing the file would not wake a thread that is blocked in reading it.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()
        with contextlib.suppress(OSError, _http_error()):
            self._response.close()


def namespace_of(kubeconfig: Path, context: str | None = None) -> str:
    """The namespace that a kubeconfig's context names; `default` if it names none.

    Raises ConfigError if the file can't be read, or has no such context.
    """
    from kubernetes import config  # noqa: PLC0415 - heavy, see Api

    try:
        every, current = config.list_kube_config_contexts(  # type: ignore[no-untyped-call]
            str(kubeconfig)
        )
    except (config.ConfigException, *_UNREADABLE) as error:
        raise ConfigError("kubeconfig", f"can't read {kubeconfig}: {error}") from error
    named = next((one for one in every if one["name"] == context), None) if context else current
    if named is None:
        known = ", ".join(str(one["name"]) for one in every)
        raise ConfigError("context", f"{kubeconfig} has no context {context}; it has: {known}")
    return str((named.get("context") or {}).get("namespace") or "default")


def _configuration(kubeconfig: Path | None, context: str | None) -> Any:
    from kubernetes import config  # noqa: PLC0415 - heavy, see Api
    from kubernetes.client import Configuration  # noqa: PLC0415

    settings = Configuration()
    settings.connection_pool_maxsize = _POOL_SIZE
    settings.socket_options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        # macOS, where people run kubectl, hasn't all of them.
        *(
            (socket.IPPROTO_TCP, getattr(socket, name), value)
            for name, value in _ASKS.items()
            if hasattr(socket, name)
        ),
    ]
    try:
        if kubeconfig is None:
            config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=settings
            )
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                str(kubeconfig),
                context=context,
                client_configuration=settings,
                persist_config=False,
            )
    except (config.ConfigException, *_UNREADABLE) as error:
        source = kubeconfig or "the pod's service account (no kubeconfig is set)"
        raise ConfigError("kubeconfig", f"can't read credentials from {source}: {error}") from error
    return settings


def _raise_for(response: Any, deadline: float, what: str) -> None:
    raise error_for(response.status, _read(response, deadline, what), what)


def _read(response: Any, deadline: float, what: str, most: int | None = None) -> bytes:
    body = bytearray()
    try:
        for chunk in response.stream(_CHUNK):
            body += chunk
            if most is not None:
                del body[:-most]
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
    # urllib3 puts the name of a class of ours before what happened.
    return _CONNECTION.sub("", str(reason or str(error) or type(error).__name__))
