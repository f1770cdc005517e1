"""Namespaces' keys at a node: asked of the registry when they are needed, and kept in memory only.

A key is kept while a pod of its namespace is on the node. After a while the registry is asked
again: one that says no takes the key away, one that doesn't answer leaves it, until the time is
over that it gave it for. Nothing is asked for where states lie raw, so no park to RAM or NVMe, and
no wake from there, waits for this.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from kybernate.adapters.registry import keywire, wire
from kybernate.core.artifacts.keyobjects import NamespaceKey
from kybernate.dataclass import dataclass
from kybernate.errors import (
    ConflictError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kybernate.adapters.registry.client import Registry
    from kybernate.ports import Wraps

log = logging.getLogger(__name__)

LEASE_S = 60.0
FRESH_S = 600.0
"""Seconds after which the registry is asked again: so long a node may continue with a key that was
destroyed, or whose lease has ended."""
SWEEP_S = 15.0
"""Seconds after which a key is forgotten whose namespace has no pod on the node any more."""
_DEADLINE_S = 10.0
_DELAY_S = 5.0
_MOST_DATA_KEYS = 256


class Files(Protocol):
    """Wrapping keys that the node has itself."""

    def holds(self, by: str) -> bool:
        """Whether the key of this ID is among them."""
        ...

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        """See `ports.Wraps`."""
        ...

    def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
        """See `ports.Wraps`."""
        ...


@dataclass(frozen=True, slots=True)
class Asker:
    """A pod on this node, or nobody where it is no node that asks. `artifact`: what it may have of
    the other namespace whose key is wanted, empty where that is its own."""

    namespace: str
    uid: str
    artifact: str = ""


@dataclass(slots=True)
class _Held:
    """A namespace's key, or a data key that the registry opened. Times by `time.monotonic`."""

    key: bytearray = field(repr=False)
    sealed: NamespaceKey
    asked: float
    until: float

    def forget(self) -> None:
        """As far as that can be done here: what was copied from it is left to the collector."""
        self.key[:] = bytes(len(self.key))


class NodeKeys:
    """Implements `ports.Wraps` by the registry, which `client` gives. Safe to use from several
    threads.

    `askers`: the pods on this node for which a namespace's key may be asked for. `by_key`: what
    wraps by one key. `files`: keys that the node has itself, as in releases before 0.2.0: what they
    wrapped is opened by them, and as long as there is one, it wraps what is new.
    """

    def __init__(
        self,
        client: Callable[[], Registry],
        askers: Callable[[str], Sequence[Asker]],
        by_key: Callable[[bytes], Wraps],
        files: Files | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._askers, self._by_key = client, askers, by_key
        self._files, self._now = files, now
        self._lock = threading.Lock()
        self._newest: dict[str, str] = {}
        self._own: dict[tuple[str, str], _Held] = {}
        self._opened: dict[tuple[str, str], _Held] = {}
        self._sweeping = False

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        """See `ports.Wraps.wrap`."""
        if self._files is not None:
            return self._files.wrap(secret, bound_to)
        held = self._held(bound_to, "")
        return self._by_key(bytes(held.key)).wrap(secret, bound_to)

    def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
        """See `ports.Wraps.unwrap`."""
        if self._files is not None and self._files.holds(by):
            return self._files.unwrap(by, wrapped, bound_to)
        held = self._held(bound_to, by, wrapped)
        if not held.sealed.id:
            return bytes(held.key)
        return self._by_key(bytes(held.key)).unwrap(by, wrapped, bound_to)

    def own(self, by: str) -> NamespaceKey:
        """See `ports.Wraps.own`."""
        with self._lock:
            found = (held.sealed for (_, id_), held in self._own.items() if id_ == by)
            return next(found, NamespaceKey())

    def sweep(self) -> None:
        """Forget the keys of namespaces that have no pod here any more, and those whose time is
        over. To be called now and then."""
        with self._lock:
            for held_by in (self._own, self._opened):
                for at in [at for at, held in held_by.items() if not self._may_stay(at[0], held)]:
                    self._forget(held_by, at)

    def _may_stay(self, namespace: str, held: _Held) -> bool:
        return self._now() < held.until and bool(self._askers(namespace))

    def _forget(self, held_by: dict[tuple[str, str], _Held], at: tuple[str, str]) -> None:
        held_by.pop(at).forget()
        if self._newest.get(at[0]) == at[1]:
            del self._newest[at[0]]

    def _held(self, namespace: str, id_: str, wrapped: str = "") -> _Held:
        """The key, asked for if it isn't here or was asked for long ago. Raises RefusedError,
        RetryableError."""
        self.sweep()
        with self._lock:
            known = self._known(namespace, id_, wrapped)
        if known is not None and self._now() < known.asked + FRESH_S:
            return known
        try:
            return self._asked(namespace, id_, wrapped)
        except (RetryableError, DeadlineError) as error:
            if known is not None and not isinstance(error, _NotGivenError):
                log.info("the key of namespace %s is used on: %s", namespace, error)
                return known
            self._drop(namespace)
            raise RetryableError(str(error), _DELAY_S) from error
        except RefusedError:
            self._drop(namespace)
            raise

    def _known(self, namespace: str, id_: str, wrapped: str) -> _Held | None:
        id_ = id_ or self._newest.get(namespace, "")
        return self._own.get((namespace, id_)) or self._opened.get((namespace, wrapped))

    def _drop(self, namespace: str) -> None:
        with self._lock:
            for held_by in (self._own, self._opened):
                for at in [at for at in held_by if at[0] == namespace]:
                    self._forget(held_by, at)

    def _asked(self, namespace: str, id_: str, wrapped: str) -> _Held:
        given = self._given(namespace, id_, wrapped)
        now = self._now()
        sealed = NamespaceKey(**given.sealed.model_dump()) if given.sealed else NamespaceKey()
        key = bytearray.fromhex(given.key)
        held = _Held(key, sealed, now, now + given.seconds)
        with self._lock:
            if sealed.id:
                self._own[namespace, sealed.id] = held
                if not id_:
                    self._newest[namespace] = sealed.id
            else:
                if len(self._opened) >= _MOST_DATA_KEYS:
                    self._opened.clear()
                self._opened[namespace, wrapped] = held
            if not self._sweeping:
                self._sweeping = True
                threading.Thread(target=self._sweep_on, name="keys", daemon=True).start()
        return held

    def _sweep_on(self) -> None:
        """As long as there are keys to forget."""
        while True:
            time.sleep(SWEEP_S)
            self.sweep()
            with self._lock:
                if not (self._own or self._opened):
                    self._sweeping = False
                    return

    def _given(self, namespace: str, id_: str, wrapped: str) -> keywire.GivenKey:
        """By the lease or claim of one of our pods there; one is taken where that is lacking."""
        why = f"no pod of namespace {namespace} is on this node, so that its key isn't given"
        for asker in self._askers(namespace):
            wish = keywire.KeyWish(
                pod=asker.uid or None,
                pod_namespace=asker.namespace or None,
                artifact=asker.artifact,
                id=id_ or None,
                wrapped=wrapped or None,
            )
            try:
                return self._ask(namespace, wish, asker)
            except ConflictError as error:
                why = str(error)
        raise _NotGivenError(why, _DELAY_S)

    def _ask(self, namespace: str, wish: keywire.KeyWish, asker: Asker) -> keywire.GivenKey:
        client = self._client()
        try:
            return client.namespace_key(namespace, wish, _DEADLINE_S)
        except ConflictError:
            pod = asker.namespace, asker.uid
            try:
                client.lease(pod, wire.LeaseWish(seconds=LEASE_S), _DEADLINE_S)
            except (RefusedError, NotFoundError) as error:
                raise ConflictError(str(error)) from error
            return client.namespace_key(namespace, wish, _DEADLINE_S)


class _NotGivenError(RetryableError):
    """The registry said no, for now."""
