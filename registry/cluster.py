"""What Kubernetes says of pods and namespaces: the facts that an agent's word is held against.

A pod's node and its namespace never change once it is bound, so what a watch has seen of them stays
true however late it is. What it hasn't seen is asked for directly before anybody is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.api.restores import read_wish
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.errors import ConfigError, KybernateError, NotFoundError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.adapters.k8s import Api

    Json = dict[str, Any]

_MANAGED = {"labelSelector": f"{keys.MANAGED_LABEL}=true"}
_GONE = 20_000
"""Pods that are remembered after they are gone, at most: some 400 bytes each."""
_ASK_S = 3.0
_PAGE = 500
_WISH = (keys.RESTORE_FROM, keys.RESTORE_AS)
_PLACED = (keys.ASSIGNED_GROUP, keys.ASSIGNED_AT)
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `node` is empty until it is bound; `namespace_uid` until its namespace was seen.

    `succeeds` is what it asks to go on from as a successor: an artifact's ID or pod/<UID>.
    `placed`: the extender bound it. A kubelet makes pods of its own node (mirror pods) itself, in
    any namespace; what the extender writes with a binding, it can't.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    namespace_uid: str = ""
    gone: bool = False
    succeeds: str = ""
    placed: bool = False


class Cluster(Protocol):
    """The facts. Safe to use from several threads."""

    def pod(self, uid: str) -> Pod | None:
        """What has been seen of the pod; None if nothing has."""
        ...

    def find(self, namespace: str, uid: str, node: str = "") -> Pod | None:
        """The pod as the API server has it now; None if the namespace has none of this UID (or, if
        it was never seen and `node` is given, that node). Raises RetryableError."""
        ...

    def namespace_uid(self, name: str) -> str | None:
        """The namespace's UID; None if there is none of this name. Raises RetryableError where
        that isn't known now."""
        ...


class Kubernetes:
    """Implements Cluster by watches of managed pods and of namespaces."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._names = api.of_metadata()
        self._pods: dict[str, Pod] = {}
        self._gone: OrderedDict[str, Pod] = OrderedDict()
        self._namespaces: dict[str, tuple[str, bool]] = {}
        self._watches = (
            # First, so that pods are seen with their namespace's UID.
            Watcher(self._names, "/api/v1/namespaces", {}, self._namespace, "namespaces"),
            Watcher(api, "/api/v1/pods", _MANAGED, self._event, "pods", keep=_slim),
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
        found = self._pods.get(uid) or self._gone.get(uid)
        if found is None or found.namespace_uid or found.gone:
            return found
        return replace(found, namespace_uid=self._seen_uid(found.namespace))

    def find(self, namespace: str, uid: str, node: str = "") -> Pod | None:
        """See Cluster."""
        known = self.pod(uid)
        pods = f"/api/v1/namespaces/{namespace}/pods"
        if known is not None and known.namespace == namespace:
            items = self._one(f"{pods}/{known.name}")
        else:
            items = self._listed(pods, {"fieldSelector": f"spec.nodeName={node}"} if node else {})
        for item in items:
            if item["metadata"].get("uid") == uid:
                return replace(_pod(item), namespace_uid=self._seen_uid(namespace))
        return None

    def namespace_uid(self, name: str) -> str | None:
        """See Cluster."""
        uid, ending = self._namespaces.get(name, ("", True))
        if uid and not ending:
            return uid
        # One that ends may be another by now, of which the watch tells late.
        for item in self._one(f"/api/v1/namespaces/{name}"):
            return str(item["metadata"]["uid"])
        return None

    def _seen_uid(self, namespace: str) -> str:
        return self._namespaces.get(namespace, ("", True))[0]

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
            yield from page.get("items") or ()
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                return

    def _event(self, kind: str, item: Json) -> None:
        found = _pod(item)
        before = self._pods.get(found.uid)
        uid = before.namespace_uid if before else ""
        found = replace(found, namespace_uid=uid or self._seen_uid(found.namespace))
        if kind != "DELETED":
            self._pods[found.uid] = found
            self._gone.pop(found.uid, None)
            return
        self._gone[found.uid] = replace(found, gone=True)
        self._pods.pop(found.uid, None)
        while len(self._gone) > _GONE:
            self._gone.popitem(last=False)

    def _namespace(self, kind: str, item: Json) -> None:
        meta = item["metadata"]
        if kind == "DELETED":
            self._namespaces.pop(meta["name"], None)
        else:
            ending = "deletionTimestamp" in meta
            self._namespaces[meta["name"]] = str(meta["uid"]), ending


def _unanswered(error: KybernateError) -> RetryableError:
    # Also where it lacks the right to ask: nobody is refused for what isn't known.
    return RetryableError(f"the API server can't be asked now: {error}")


def _slim(item: Json) -> Json:
    """What is kept of a pod: the annotations are a tenant's, and may be long."""
    meta, notes = item["metadata"], item["metadata"].get("annotations") or {}
    kept = {name: notes[name] for name in (*_WISH, *_PLACED) if name in notes}
    if _MIRROR in notes:
        kept[_MIRROR] = ""
    owners = [{"kind": one.get("kind")} for one in meta.get("ownerReferences") or ()]
    names = {name: meta.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
    node = (item.get("spec") or {}).get("nodeName") or ""
    metadata = {**names, "annotations": kept, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"nodeName": node}}


def _pod(item: Json) -> Pod:
    meta = item["metadata"]
    node = (item.get("spec") or {}).get("nodeName") or ""
    return Pod(
        uid=str(meta["uid"]),
        namespace=str(meta["namespace"]),
        name=str(meta["name"]),
        node=str(node),
        succeeds=_succeeds(meta.get("annotations") or {}),
        placed=_placed(meta),
    )


def _placed(meta: Json) -> bool:
    notes = meta.get("annotations") or {}
    owned = any(one.get("kind") == "Node" for one in meta.get("ownerReferences") or ())
    return all(notes.get(name) for name in _PLACED) and _MIRROR not in notes and not owned


def _succeeds(notes: Json) -> str:
    named = {name: notes[name] for name in _WISH if name in notes}
    try:
        wish = read_wish(named)
    except ConfigError:
        return ""
    return wish.source if wish is not None and wish.kind is RestoreAs.SUCCESSOR else ""
