"""The calls by which nodes get namespaces' keys."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from kybernate.adapters.keys.artifactkeys import WrapKeys
from kybernate.adapters.registry import keywire, wire
from kybernate.core.artifacts.grants import no_grants, why_not
from kybernate.errors import ConflictError, RefusedError, RetryableError
from registry.http.callers import Role
from registry.http.calls import CONTROLLERS, OPERATORS, answers, routes_of
from registry.keys.namespacekeys import KEEP_S, Given

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.core.artifacts.grants import Grant
    from registry.http.calls import Answer, Call, Json, Route
    from registry.keys.namespacekeys import NamespaceKeys
    from registry.keys.shredding import Shredder

log = logging.getLogger(__name__)

_NAMESPACE = "/v1/namespaces/{namespace}"


class OfNamespace(wire.Query):
    """A namespace, in the path."""

    namespace: wire.Namespace


def key_routes(
    keys: NamespaceKeys,
    shredder: Shredder,
    grants: Callable[[], Iterable[Grant]] = no_grants,
) -> tuple[Route, ...]:
    """All of them. `grants`: the ArtifactGrants of all namespaces; may raise RetryableError."""
    return routes_of(_KeyCalls(keys, shredder, grants))


class _KeyCalls:
    def __init__(
        self,
        keys: NamespaceKeys,
        shredder: Shredder,
        grants: Callable[[], Iterable[Grant]],
    ) -> None:
        self._keys = keys
        self._shredder = shredder
        self._grants = grants

    @answers(
        *("POST", f"{_NAMESPACE}/key", OPERATORS, keywire.GivenKey),
        of=OfNamespace,
        body=keywire.KeyWish,
    )
    def namespace_key(self, call: Call) -> Answer:
        """The namespace's own key, for a node that has a lease or claim of a pod there."""
        namespace, wish = call.path.namespace, call.body
        foreign = False
        if call.caller.role is Role.AGENT:
            foreign = self._check_agent(call.caller.node, namespace, wish)
        former = call.caller.role is Role.CONTROLLER and wish.id is not None
        given = self._given(namespace, wish, former=former)
        if foreign:
            given = _data_key_alone(given, namespace, wish)
        if call.caller.role is Role.CONTROLLER:
            log.warning("%s was given the key of namespace %s", call.caller.name, namespace)
        return _answer(namespace, given)

    @answers("GET", f"{_NAMESPACE}/keys", CONTROLLERS, keywire.Keys, of=OfNamespace)
    def list_keys(self, call: Call) -> Answer:
        """The keys that namespaces of this name have, or had."""
        return self._shredder.listed(call.path.namespace)

    @answers(
        *("POST", f"{_NAMESPACE}/shred", CONTROLLERS, keywire.Keys),
        of=OfNamespace,
        body=keywire.ShredWish,
    )
    def shred_namespace(self, call: Call) -> Answer:
        """Destroy a namespace's keys, and with them all that was packed of it; or don't."""
        return self._shredder.wish(call.path.namespace, call.body)

    def _given(self, namespace: str, wish: keywire.KeyWish, *, former: bool) -> Given:
        if wish.id is None:
            return self._keys.newest(namespace)
        found = self._keys.named(namespace, wish.id, former=former)
        if found is not None:
            return found
        if wish.wrapped is not None:
            return self._keys.opened(namespace, wish.id, wish.wrapped, former=former)
        raise RetryableError(
            f"key {wish.id} is not known here; if the registry's database was lost, "
            "`kyb-registry rebuild` finds it",
            10.0,
        )

    def _check_agent(self, node: str, namespace: str, wish: keywire.KeyWish) -> bool:
        """Whether the pod for which it asks is another namespace's. Raises as the checks do."""
        if wish.pod is None:
            raise RefusedError("pod: name the pod of the node that needs the key")
        home = wish.pod_namespace or namespace
        self._keys.check_pod(node, (home, wish.pod))
        if home == namespace:
            return False
        named = wish.artifact.startswith(f"{namespace}/")
        if not named or wish.id is None or wish.wrapped is None:
            raise RefusedError(
                f"artifact: name the artifact of {namespace} that pod {home}/{wish.pod} may have, "
                "and its data key (id and wrapped)"
            )
        if sentence := why_not(wish.artifact, home, self._grants, time.time()):
            raise ConflictError(sentence)
        return True


def _data_key_alone(given: Given, namespace: str, wish: keywire.KeyWish) -> Given:
    """Another namespace's pod gets the one data key, and not the key that opens all. Raises
    RefusedError, LockedError if the wish names none."""
    if given.sealed is None:
        return given
    secret = WrapKeys((given.key,)).unwrap(wish.id or "", wish.wrapped or "", namespace)
    return Given(given.uid, secret)


def _answer(namespace: str, given: Given) -> Json:
    return {
        "namespace": namespace,
        "uid": given.uid,
        "key": given.key.hex(),
        "sealed": asdict(given.sealed) if given.sealed else None,
        "seconds": KEEP_S,
    }
