"""What Kubernetes says of pods and namespaces: the facts that an agent's word is held against.

A pod's node and its namespace never change once it is bound, so what a watch has seen of them stays
true however late it is. What it hasn't seen is asked for directly before anybody is refused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.api import pods
from kybernate.api.lenient import mapping, mappings, text
from kybernate.api.restores import read_wish
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, KybernateError, NotFoundError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.adapters.k8s import Api
    from kybernate.core.artifacts.restores import RestoreWish

    Json = dict[str, Any]

_MANAGED = {"labelSelector": f"{keys.MANAGED_LABEL}=true"}
_GONE = 20_000
"""Pods that are remembered after they are gone, at most: some 400 bytes each."""
_ASK_S = 3.0
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `node` is empty until it is bound.

    `wish`: which artifact it names to continue from; what can't be read names none. `placed`: see
    `api.pods.Pod.placed`.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    gone: bool = False
    wish: RestoreWish | None = None
    placed: bool = False

    @property
    def succeeds(self) -> str:
        """What it continues from as a successor: an artifact's ID or pod/<UID>; else empty."""
        succeeds = self.wish is not None and self.wish.kind is RestoreAs.SUCCESSOR
        return self.wish.source if self.wish is not None and succeeds else ""


class Cluster(Protocol):
    """The facts. Safe to use from several threads."""

    def pod(self, uid: str) -> Pod | None:
        """What has been seen of the pod; None if nothing has."""
        ...

    def find(self, namespace: str, uid: str, node: str = "") -> Pod | None:
        """The pod as the API server has it now; None if the namespace has none of this UID (or, if
        it was never seen and `node` is given, that node). Raises RetryableError."""
        ...

    def placed(self, node: str, namespace: str) -> list[Pod]:
        """The pods of the namespace that the extender placed on the node, as far as they have been
        seen. Raises RetryableError until all have been."""
        ...

    def namespace_uid(self, name: str, *, fresh: bool = False) -> str | None:
        """The namespace's UID; None if there is none of this name. Raises RetryableError where
        that isn't known now."""
        ...


class Kubernetes:
    """Implements Cluster by watches of managed pods and of namespaces."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._names = api.of_metadata()
        self._pods: dict[str, Pod] = {}
        self._placed: dict[tuple[str, str], dict[str, Pod]] = {}
        self._lock = threading.Lock()
        self._gone: OrderedDict[str, Pod] = OrderedDict()
        self._namespaces: dict[str, tuple[str, bool]] = {}
        self._watches = (
            Watcher(self._names, "/api/v1/namespaces", {}, self._namespace, "namespaces"),
            Watcher(api, pods.PATH, _MANAGED, self._event, "pods", names_only=True),
        )

    def start(self) -> None:
        """Begin to watch."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """End the watches, within seconds."""
        for watch in self._watches:
            watch.stop()
        self._api.close()

    def pod(self, uid: str) -> Pod | None:
        """See Cluster. One whose label was taken away looks gone; `find` knows better."""
        return self._pods.get(uid) or self._gone.get(uid)

    def find(self, namespace: str, uid: str, node: str = "") -> Pod | None:
        """See Cluster."""
        known = self.pod(uid)
        if known is not None and known.namespace == namespace:
            items = self._one(pods.path(namespace, known.name))
        else:
            there = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
            items = self._listed(f"/api/v1/namespaces/{namespace}/pods", there)
        return next((pod for pod in map(_pod, items) if pod.uid == uid), None)

    def placed(self, node: str, namespace: str) -> list[Pod]:
        """See Cluster."""
        if not self._watches[1].synced.is_set():
            raise RetryableError("which pods are placed on nodes isn't known yet")
        with self._lock:
            return [*self._placed.get((node, namespace), {}).values()]

    def namespace_uid(self, name: str, *, fresh: bool = False) -> str | None:
        """See Cluster."""
        uid, ending = self._namespaces.get(name, ("", True))
        if uid and not ending and not fresh:
            return uid
        # One that ends may be another by now, of which the watch tells late.
        for item in self._one(f"/api/v1/namespaces/{name}"):
            return _name(item)[1]
        return None

    def _one(self, path: str) -> Iterable[Json]:
        try:
            return (self._api.get(path, timeout=_ASK_S),)
        except NotFoundError:
            return ()
        except KybernateError as error:
            raise _unanswered(error) from error

    def _listed(self, path: str, params: dict[str, str]) -> Iterable[Json]:
        token = ""
        while True:
            query: dict[str, str | int] = {**params, "limit": _PAGE}
            if token:
                query["continue"] = token
            try:
                page = self._api.get(path, query, timeout=_ASK_S)
            except KybernateError as error:
                raise _unanswered(error) from error
            yield from mappings(page.get("items"))
            token = text(mapping(page.get("metadata")).get("continue"))
            if not token:
                return

    def _event(self, kind: str, item: Json) -> None:
        found = _pod(item)
        self._place(self._pods.get(found.uid), found if kind != "DELETED" else None)
        if kind != "DELETED":
            self._pods[found.uid] = found
            self._gone.pop(found.uid, None)
            return
        # Of one that vanished while nobody watched, the event carries no more than names.
        self._gone[found.uid] = replace(self._pods.pop(found.uid, found), gone=True)
        while len(self._gone) > _GONE:
            self._gone.popitem(last=False)

    def _place(self, before: Pod | None, now: Pod | None) -> None:
        """By node and namespace, so that no call looks at all pods of the cluster."""
        with self._lock:
            if before is not None and before.placed:
                there = before.node, before.namespace
                self._placed[there].pop(before.uid)
                if not self._placed[there]:
                    del self._placed[there]
            if now is not None and now.placed:
                self._placed.setdefault((now.node, now.namespace), {})[now.uid] = now

    def _namespace(self, kind: str, item: Json) -> None:
        name, uid = _name(item)
        if kind == "DELETED":
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = uid, "deletionTimestamp" in mapping(item.get("metadata"))


def _unanswered(error: KybernateError) -> RetryableError:
    # Also where it lacks the right to ask: nobody is refused for what isn't known.
    return RetryableError(f"the API server can't be asked now: {error}")


def _name(item: Json) -> tuple[str, str]:
    """Name and UID of a namespace."""
    meta = mapping(item.get("metadata"))
    return text(meta.get("name")), text(meta.get("uid"))


def _pod(item: Json) -> Pod:
    pod = pods.read_pod(item)
    wish = None
    with suppress(ConfigError):
        wish = read_wish(pod.notes)
    ref = pod.ref
    return Pod(ref.uid, ref.namespace, ref.name, pod.node or "", wish=wish, placed=pod.placed)
