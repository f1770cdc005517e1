"""Calls to the registry: mutual TLS, a deadline for each, and errors of ours.

A call that can't be answered now is made again until its deadline: every call of the registry may
be, since it changes nothing the second time. The one exception is `lease`, whose second grant only
gives a newer token.
"""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import orjson
from pydantic import BaseModel, ValidationError

from kybernate import keys
from kybernate.adapters.registry import keywire, storewire, wire
from kybernate.errors import (
    ConfigError,
    ConflictError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.retry import Pauses, quietly, retry_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from urllib3 import BaseHTTPResponse

M = TypeVar("M", bound=BaseModel)

DEADLINE_S = 10.0
_ATTEMPT_S = 5.0
_PAUSES = Pauses(0.1, 2.0)
_POOL = 8
_LONGEST = 16 << 20
"""Bytes of an answer that are read at most."""

PORT = 9446
SERVICE = f"https://{keys.CN_REGISTRY}.{keys.NAMESPACE}.svc:{PORT}"


class Registry:
    """The registry at a URL. Safe to use from several threads; each call blocks its own.

    Every call raises NotFoundError, ConflictError (the world is another than the caller thought),
    RefusedError (never right as it stands), or DeadlineError if nobody answered it in time:
    whether it took effect is unknown then, and the same call may be made again.
    """

    def __init__(self, url: str, folder: Path | None = None, name: str = "") -> None:
        """`folder` holds ca.crt and the caller's own `name`.crt and `name`.key; without it `show`
        comes before the first call.

        Raises ConfigError if they can't be used.
        """
        # It comes with the Kubernetes client, which not every program with this module has.
        import urllib3  # noqa: PLC0415

        if not url.startswith("https://"):
            raise ConfigError("registry", f"{url!r} must be written as https://host:port")
        self._url = url.rstrip("/")
        self._pool = urllib3.PoolManager(maxsize=_POOL, retries=False)
        if folder is not None:
            files = (folder / f"{name}.crt", folder / f"{name}.key")
            self.show(folder / "ca.crt", *files)
        self._failures: tuple[type[Exception], ...] = (urllib3.exceptions.HTTPError, OSError)

    def show(self, authority: Path, certificate: Path, key: Path) -> None:
        """Be whom this certificate names, from the next call on. Raises ConfigError."""
        import urllib3  # noqa: PLC0415 - as above

        context, before = _context(authority, certificate, key), self._pool
        self._pool = urllib3.PoolManager(maxsize=_POOL, ssl_context=context, retries=False)
        before.clear()

    def record(
        self, artifact: str, recording: wire.Recording, deadline_s: float = DEADLINE_S
    ) -> wire.Entry:
        """A new artifact with its first copy. ConflictError: another writer has begun since."""
        return self._call("PUT", _artifact(artifact), wire.Entry, deadline_s, body=recording)

    def report(
        self, artifact: str, told: wire.CopyReport, deadline_s: float = DEADLINE_S
    ) -> wire.Entry:
        """What became of a copy."""
        path = f"{_artifact(artifact)}/copies"
        return self._call("PUT", path, wire.Entry, deadline_s, body=told)

    def drop(
        self, artifact: str, spot: wire.Spot, forget: str = "", deadline_s: float = DEADLINE_S
    ) -> wire.Dropped:
        """Let a copy go, before its bytes are deleted. An artifact that isn't known is none.

        ConflictError: it is the last verified one, and `forget` doesn't say why nobody needs it.
        """
        path = f"{_artifact(artifact)}/copies"
        query = {**wire.as_json(spot), "forget": forget}
        try:
            return self._call("DELETE", path, wire.Dropped, deadline_s, query=query)
        except NotFoundError:
            return wire.Dropped(dropped=False, copies=0)

    def get(self, artifact: str, deadline_s: float = DEADLINE_S) -> wire.Entry:
        """One artifact."""
        return self._call("GET", _artifact(artifact), wire.Entry, deadline_s)

    def signers(self, artifact: str, deadline_s: float = DEADLINE_S) -> wire.Signers:
        """Whose signatures are believed of an artifact."""
        return self._call("GET", f"{_artifact(artifact)}/signers", wire.Signers, deadline_s)

    def latest(self, wanted: wire.Latest, deadline_s: float = DEADLINE_S) -> wire.Entry:
        """The newest artifact of a pod or a model."""
        query = wire.as_json(wanted)
        return self._call("GET", "/v1/latest", wire.Entry, deadline_s, query=query)

    def page(self, wanted: wire.Filter, deadline_s: float = DEADLINE_S) -> wire.Page:
        """Artifacts, newest first."""
        query = wire.as_json(wanted)
        return self._call("GET", "/v1/artifacts", wire.Page, deadline_s, query=query)

    def all(self, wanted: wire.Filter, deadline_s: float = DEADLINE_S) -> Iterator[wire.Entry]:
        """Artifacts, newest first, page by page; the deadline is for each page."""
        while True:
            page = self.page(wanted, deadline_s)
            yield from page.items
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"after": page.next})

    def pod(self, namespace: str, uid: str, deadline_s: float = DEADLINE_S) -> wire.Pod:
        """Who may write the pod's states, and who continues with them."""
        return self._call("GET", _pod(namespace, uid), wire.Pod, deadline_s)

    def lease(
        self, pod: tuple[str, str], wish: wire.LeaseWish, deadline_s: float = DEADLINE_S
    ) -> wire.Pod:
        """Become the writer of the pod with this namespace and UID.

        ConflictError: another one is, or somebody continues with the pod's state.
        """
        return self._call("POST", f"{_pod(*pod)}/lease", wire.Pod, deadline_s, body=wish)

    def renew(self, held: wire.Pod, seconds: float, deadline_s: float = DEADLINE_S) -> wire.Pod:
        """Continue as the writer. ConflictError: another one has begun since."""
        path = f"{_pod(held.namespace, held.uid)}/lease"
        body = wire.Renewal(token=held.token, seconds=seconds)
        return self._call("PUT", path, wire.Pod, deadline_s, body=body)

    def give_back(self, held: wire.Pod, deadline_s: float = DEADLINE_S) -> wire.Pod:
        """Be the writer no more."""
        path = f"{_pod(held.namespace, held.uid)}/lease"
        return self._call("DELETE", path, wire.Pod, deadline_s, query={"token": held.token})

    def stopped(
        self, namespace: str, uid: str, told: wire.Stop, deadline_s: float = DEADLINE_S
    ) -> wire.Pod:
        """The pod has stopped, and how that is known."""
        return self._call("POST", f"{_pod(namespace, uid)}/stop", wire.Pod, deadline_s, body=told)

    def claim(
        self, namespace: str, uid: str, wanted: wire.Claim, deadline_s: float = DEADLINE_S
    ) -> wire.Pod:
        """Continue with the pod's state. ConflictError: somebody else does, or proof is missing."""
        path = f"{_pod(namespace, uid)}/claim"
        return self._call("POST", path, wire.Pod, deadline_s, body=wanted)

    def release(
        self, namespace: str, uid: str, successor: str, deadline_s: float = DEADLINE_S
    ) -> wire.Pod:
        """End the claim of a successor that is proven to have stopped."""
        path = f"{_pod(namespace, uid)}/claim"
        query = {"successor": successor}
        return self._call("DELETE", path, wire.Pod, deadline_s, query=query)

    def settle(self, why: str, deadline_s: float = DEADLINE_S) -> wire.Settled:
        """After the database was lost: all claims are known again, or are made sure not to be."""
        body = wire.Settlement(why=why)
        return self._call("POST", "/v1/settle", wire.Settled, deadline_s, body=body)

    def read_objects(
        self, wanted: storewire.Reading, deadline_s: float = DEADLINE_S
    ) -> storewire.Readable:
        """URLs to read objects of the object store by, for some minutes."""
        return self._call("POST", "/v1/store/read", storewire.Readable, deadline_s, body=wanted)

    def new_packs(
        self, wanted: storewire.Packing, deadline_s: float = DEADLINE_S
    ) -> storewire.Packable:
        """Names for new packs, and URLs to put them by."""
        return self._call("POST", "/v1/store/packs", storewire.Packable, deadline_s, body=wanted)

    def put_object(self, wanted: storewire.Putting, deadline_s: float = DEADLINE_S) -> None:
        """Put a small object. ConflictError: there is one already."""
        self._call("PUT", "/v1/store/object", storewire.Done, deadline_s, body=wanted)

    def head_object(self, key: str, deadline_s: float = DEADLINE_S) -> storewire.Seen:
        """What an object is."""
        body = storewire.Named(keys=[key])
        return self._call("POST", "/v1/store/head", storewire.Seen, deadline_s, body=body)

    def list_objects(
        self, wanted: storewire.Listing, deadline_s: float = DEADLINE_S
    ) -> storewire.Listed:
        """Objects below a prefix, a page at a time."""
        query = wire.as_json(wanted)
        return self._call("GET", "/v1/store/objects", storewire.Listed, deadline_s, query=query)

    def delete_objects(self, keys: list[str], deadline_s: float = DEADLINE_S) -> None:
        """Remove objects of the node's own pods."""
        body = storewire.Named(keys=keys)
        self._call("POST", "/v1/store/delete", storewire.Done, deadline_s, body=body)

    def namespace_key(
        self, namespace: str, wish: keywire.KeyWish, deadline_s: float = DEADLINE_S
    ) -> keywire.GivenKey:
        """The namespace's own key. ConflictError: the node has no lease or claim there.
        RefusedError: it was destroyed, or is of a namespace that was deleted."""
        path = f"/v1/namespaces/{quote(namespace, safe='')}/key"
        return self._call("POST", path, keywire.GivenKey, deadline_s, body=wish)

    def keys(self, namespace: str, deadline_s: float = DEADLINE_S) -> keywire.Keys:
        """The keys that namespaces of this name have, or had."""
        path = f"/v1/namespaces/{quote(namespace, safe='')}/keys"
        return self._call("GET", path, keywire.Keys, deadline_s)

    def shred(
        self, namespace: str, wish: keywire.ShredWish, deadline_s: float = DEADLINE_S
    ) -> keywire.Keys:
        """Have a namespace's keys destroyed, or kept. NotFoundError: it has none."""
        path = f"/v1/namespaces/{quote(namespace, safe='')}/shred"
        return self._call("POST", path, keywire.Keys, deadline_s, body=wish)

    def close(self) -> None:
        """Drop all idle connections."""
        self._pool.clear()

    def _call(
        self,
        method: str,
        path: str,
        answer: type[M],
        deadline_s: float,
        *,
        query: dict[str, Any] | None = None,
        body: BaseModel | None = None,
    ) -> M:
        """Ask until there is an answer, or until the deadline."""
        ends = time.monotonic() + deadline_s
        url, data = self._url + path + _query(query or {}), _encoded(body)
        try:
            return retry_blocking(
                lambda: self._once(method, url, data, answer, ends),
                quietly,
                on=RetryableError,
                pauses=_PAUSES,
                until=ends,
            )
        except RetryableError as error:
            raise DeadlineError(
                f"{method} {path}: no answer within {deadline_s:g} s: {error}"
            ) from error

    def _once(self, method: str, url: str, data: bytes | None, answer: type[M], ends: float) -> M:
        try:
            response = self._pool.request(
                method,
                url,
                body=data,
                headers={"content-type": "application/json"},
                timeout=max(0.05, min(_ATTEMPT_S, ends - time.monotonic())),
                preload_content=False,
                redirect=False,
            )
            found = _read(response, ends)
        except self._failures as error:
            raise RetryableError(str(error) or type(error).__name__) from error
        if response.status >= 300:
            raise _error_for(response.status, found)
        try:
            return answer.model_validate_json(found)
        except ValidationError as error:
            raise RefusedError(f"the registry's answer isn't of our version: {error}") from error


def _context(authority: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            str(authority.parent),
            f"{authority.name}, {certificate} and {key} must be there and fit together ({error}); "
            "`kybernate pki init` makes them",
        ) from error
    return context


def _read(response: BaseHTTPResponse, ends: float) -> bytes:
    found = bytearray()
    for chunk in response.stream(1 << 16):
        found += chunk
        if len(found) > _LONGEST or time.monotonic() > ends:
            response.close()
            raise RetryableError("the answer did not end")
    response.release_conn()
    return bytes(found)


def _error_for(status: int, body: bytes) -> KybernateError:
    try:
        text = str(orjson.loads(body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = f"the registry answered with HTTP {status}"
    if status == 404:
        return NotFoundError(text)
    if status == 409:
        return ConflictError(text)
    return RetryableError(text) if status >= 500 or status == 429 else RefusedError(text)


def _encoded(body: BaseModel | None) -> bytes | None:
    # What is as ever isn't said: a registry of before this field's time reads it all the same.
    return None if body is None else body.model_dump_json(exclude_defaults=True).encode()


def _query(values: dict[str, Any]) -> str:
    given = {
        name: "true" if value is True else value
        for name, value in values.items()
        if value is not None and value is not False and value != ""
    }
    return f"?{urlencode(given)}" if given else ""


def _artifact(artifact: str) -> str:
    return f"/v1/artifacts/{quote(artifact, safe='/@')}"


def _pod(namespace: str, uid: str) -> str:
    return f"/v1/pods/{quote(namespace, safe='')}/{quote(uid, safe='')}"
