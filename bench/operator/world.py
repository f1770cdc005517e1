"""What ReplicaSets, scheduler, kubelet and agent do in one namespace, and a record of all that was
ever there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.operator.plane import NODE
from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.errors import ConflictError, KybernateError, NotFoundError

if TYPE_CHECKING:
    from bench.operator.plane import Plane

    Json = dict[str, Any]

KINDS = {
    "checkpointrequests": f"/apis/{keys.API_VERSION}",
    "restorerequests": f"/apis/{keys.API_VERSION}",
    "rebalancerequests": f"/apis/{keys.API_VERSION}",
    "checkpointpolicies": f"/apis/{keys.API_VERSION}",
    "snapshottemplates": f"/apis/{keys.API_VERSION}",
    "artifacts": f"/apis/{keys.API_VERSION}",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "pods": "/api/v1",
}
_SYNC_S = 30.0
_ROUND_S = 0.1
_NOW = {"gracePeriodSeconds": 0}


class World:
    """`objects` are those of now, by plural and name; `uids` has all that there ever were, `scaled`
    each number of replicas that a Deployment was to have, one after the other."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.plane, self.api, self.namespace = plane, plane.api, namespace
        self.objects: dict[tuple[str, str], Json] = {}
        self.uids: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        self.scaled: dict[str, list[int]] = defaultdict(list)
        self.resting: set[str] = set()
        """Names of pods whose seats rest in the object store."""
        self._told: list[Json] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._watches = [
            Watcher(self.api, self.path(plural), {}, self._seeing(plural), plural)
            for plural in KINDS
        ]
        plane.namespace(namespace)
        plane.extender.answers = self._planned

    def __enter__(self) -> World:
        for watch in self._watches:
            watch.start()
        for watch in self._watches:
            if not watch.synced.wait(_SYNC_S):
                raise SystemExit(f"nothing can be listed: {watch.last_error}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for watch in self._watches:
            watch.stop()

    def path(self, plural: str, name: str = "") -> str:
        """Where the API server has them, or one of them."""
        found = f"{KINDS[plural]}/namespaces/{self.namespace}/{plural}"
        return f"{found}/{name}" if name else found

    def of(self, plural: str) -> list[Json]:
        """Those of now."""
        with self._lock:
            return [one for (kind, _), one in self.objects.items() if kind == plural]

    def get(self, plural: str, name: str) -> Json | None:
        """That one, if it is there."""
        return self.objects.get((plural, name))

    def names(self) -> dict[str, str]:
        """The names of all that there ever were, by UID."""
        with self._lock:
            return {uid: name for (_, name), uids in self.uids.items() for uid in uids}

    def pod(self, name: str, group: str = "G0", **meta: Any) -> str:
        """A pod with a seat that runs; its UID. `meta`: labels, annotations, ownerReferences."""
        labels = {keys.MANAGED_LABEL: "true", **meta.pop("labels", {})}
        notes = {keys.VRAM: "1Gi", **meta.pop("annotations", {})}
        limits = {keys.seat_resource(1): "1", "memory": "1Gi"}
        container = {"name": "c", "image": "x", "args": ["serve"], "resources": {"limits": limits}}
        body = {
            "metadata": {"name": name, "labels": labels, "annotations": notes, **meta},
            "spec": {"containers": [container]},
        }
        uid: str = self.api.post(self.path("pods"), body)["metadata"]["uid"]
        self.bind(name, uid, group)
        return uid

    def bind(self, name: str, uid: str, group: str = "G0") -> None:
        """Extender, kubelet and agent take the pod, and it is ready."""
        notes = {keys.ASSIGNED_GROUP: group, keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
        bound = {
            "metadata": {"name": name, "annotations": notes},
            "target": {"kind": "Node", "name": NODE},
        }
        self.plane.door.seats.add(uid)
        with contextlib.suppress(ConflictError):
            # Bound already: a former round was cut off.
            extender = self.plane.cluster.api("extender")
            extender.post(f"{self.path('pods', name)}/binding", bound)
        since = (datetime.now(UTC) - timedelta(days=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
        runs = {"name": "c", "imageID": "x@sha256:1", "image": "x", "ready": True}
        runs |= {"restartCount": 0, "state": {"running": {"startedAt": since}}}
        told = {
            "phase": "Running",
            "startTime": since,
            "containerStatuses": [runs],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.api.patch(f"{self.path('pods', name)}/status", {"status": told})

    def _seeing(self, plural: str) -> Any:
        def on_event(kind: str, item: Json) -> None:
            meta = item["metadata"]
            key = plural, str(meta["name"])
            with self._lock:
                if kind == "DELETED":
                    self.objects.pop(key, None)
                    return
                self.objects[key] = item
                self.uids[key][str(meta["uid"])] = None
                if plural == "deployments":
                    number, before = int(item["spec"]["replicas"]), self.scaled[key[1]]
                    if before[-1:] != [number]:
                        before.append(number)

        return on_event

    def _run(self) -> None:
        while not self._stopping.wait(_ROUND_S):
            # What is refused or missed now is done in the next round.
            with contextlib.suppress(KybernateError):
                self._round()

    def _round(self) -> None:
        for pod in self.of("pods"):
            meta = pod["metadata"]
            with contextlib.suppress(NotFoundError):
                if "deletionTimestamp" in meta:
                    self.api.delete(self.path("pods", meta["name"]), _NOW)
                elif pod.get("status", {}).get("phase") != "Running":
                    self.bind(meta["name"], meta["uid"])
        for one in self.of("deployments"):
            self._replicas(one)
        for one in self.of("checkpointrequests"):
            self._succeed(one)
        self._tell()

    def _tell(self) -> None:
        """What the agent says of its seats."""
        rows = []
        for pod in self.of("pods"):
            meta = pod["metadata"]
            if "deletionTimestamp" not in meta and pod["spec"].get("nodeName"):
                row = {"uid": meta["uid"], "name": meta["name"], "pod": meta["name"]}
                row |= {"namespace": self.namespace, "group": "G0", "state": "active"}
                if meta["name"] in self.resting:
                    row |= {"state": "parked", "tier": "object", "since": "2026-01-01T00:00:00Z"}
                rows.append(row)
        if rows != self._told:
            path = f"{keys.GPU_NODES_PATH}/{NODE}/status"
            self.plane.cluster.api("agent").patch(path, {"status": {"seats": rows}})
            self._told = rows

    def _replicas(self, deployment: Json) -> None:
        name, number = deployment["metadata"]["name"], deployment["spec"]["replicas"]
        mine = [one for one in self.of("pods") if one["metadata"]["labels"].get("app") == name]
        if not number:
            for one in mine:
                self.api.delete(self.path("pods", one["metadata"]["name"]), _NOW)
            return
        if mine or len(self.scaled[name]) < 2:
            # The first ones are there from the beginning.
            return
        asked = [
            one
            for one in self.of("checkpointrequests")
            if one["spec"]["pod"].startswith(f"{name}-1-")
        ]
        owner = self.get("replicasets", f"{name}-1")
        for one, letter in zip(asked, "ab", strict=False):
            uid = self.pod(f"{name}-2-{letter}", **of_replica_set(name, owner))
            self._continues(one, uid)

    def _succeed(self, request: Json) -> None:
        """Its pod is evicted, and its ReplicaSet has made another one."""
        spot, meta = request["spec"].get("successor"), request["metadata"]
        pod = request["spec"]["pod"]
        if not spot or keys.SUCCESSOR in meta.get("annotations", {}) or self.get("pods", pod):
            return
        if not (request.get("status") or {}).get("completionTime"):
            return
        made = self.get("pods", f"{pod}-next")
        uid = made["metadata"]["uid"] if made else self._next(pod, spot["group"])
        self._continues(request, uid)

    def _next(self, pod: str, group: str) -> str:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": pod, "uid": f"of-{pod}"}
        return self.pod(f"{pod}-next", group, ownerReferences=[{**owner, "controller": True}])

    def _continues(self, request: Json, uid: str) -> None:
        note = {"metadata": {"annotations": {keys.SUCCESSOR: uid}}}
        path = self.path("checkpointrequests", request["metadata"]["name"])
        self.plane.cluster.api("extender").patch(path, note)

    def _planned(self, path: str) -> Json:
        """The extender's plan for a pod of the namespace: from G0 to G1."""
        *_, namespace, name = urlsplit(path).path.split("/")
        pod = self.get("pods", name)
        if namespace != self.namespace or pod is None:
            return {}
        uid = pod["metadata"]["uid"]
        step = {"kind": "move", "pod": f"{namespace}/{name}", "uid": uid, "seconds": 3.0}
        step |= {"from": {"node": NODE, "group": "G0"}, "to": {"node": NODE, "group": "G1"}}
        plan = {"room": True, "id": f"h-{uid[:8]}", "moves": 1, "seconds": 3.0}
        return {**plan, "steps": [{**step, "bytes": 1 << 30}], "sentences": ["1 move."]}


def of_replica_set(name: str, made: Json | None) -> Json:
    """What a pod of the Deployment of this name has."""
    meta = (made or {"metadata": {}})["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": meta.get("name", "")}
    owner |= {"uid": meta.get("uid", ""), "controller": True}
    return {
        "labels": {"app": name},
        "annotations": {keys.MODEL: name},
        "ownerReferences": [owner],
    }


def stable(world: World, for_s: float, limit: float, what: Any) -> Any:
    """What `what` gives once it has been the same for so long, or the limit is over."""
    end, since = time.monotonic() + limit, time.monotonic()
    found = what()
    while time.monotonic() < min(since + for_s, end):
        time.sleep(0.2)
        now = what()
        if now != found:
            found, since = now, time.monotonic()
    return found
