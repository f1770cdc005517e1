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
from kybernate.core.swap.activity import HOURS
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
    "tierplacements": f"/apis/{keys.API_VERSION}",
    "artifacts": f"/apis/{keys.API_VERSION}",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "pods": "/api/v1",
}
_SYNC_S = 30.0
_ROUND_S, _HEARD_S = 0.1, 2.0
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
        self.waiting: set[str] = set()
        """Names of pods for which the scheduler finds no node."""
        self.busy: set[str] = set()
        """Names of pods whose seats serve requests, each for so long that two are too many."""
        self.used: Json = {}
        """What the agent has counted of the namespace's use."""
        self._told: dict[str, Json] = {}
        self._labels: dict[str, Json] = {}
        self._spots: dict[str, tuple[str, str]] = {}
        """Group and node of each pod that there ever was, by its name."""
        self._shown: dict[str, float] = {}
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

    def pod(
        self, name: str, group: str = "G0", priority: str = "", node: str = NODE, **meta: Any
    ) -> str:
        """A pod with a seat that runs, unless it is to wait; its UID. `meta`: labels, annotations,
        ownerReferences."""
        labels = {keys.MANAGED_LABEL: "true", **meta.pop("labels", {})}
        self._labels[name], self._spots[name] = labels, (group, node)
        notes = {keys.VRAM: "1Gi", **meta.pop("annotations", {})}
        limits = {keys.seat_resource(1): "1", "memory": "1Gi"}
        container = {"name": "c", "image": "x", "args": ["serve"], "resources": {"limits": limits}}
        spec: Json = {"containers": [container]}
        if priority:
            spec["priorityClassName"] = priority
        meta = {"name": name, "labels": labels, "annotations": notes, **meta}
        body = {"metadata": meta, "spec": spec}
        uid: str = self.api.post(self.path("pods"), body)["metadata"]["uid"]
        if name not in self.waiting:
            self.bind(name, uid)
        return uid

    def bind(self, name: str, uid: str) -> None:
        """Extender, kubelet and agent take the pod, and it is ready."""
        # Those of others are where all are.
        group, node = self._spots.get(name, ("G0", NODE))
        notes = {keys.ASSIGNED_GROUP: group, keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
        bound = {
            "metadata": {"name": name, "annotations": notes},
            "target": {"kind": "Node", "name": node},
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
                elif pod["status"].get("phase") == "Pending" and meta["name"] not in self.waiting:
                    self.bind(meta["name"], meta["uid"])
        for one in self.of("deployments"):
            self._replicas(one)
        for one in self.of("checkpointrequests"):
            self._succeed(one)
        self._tell()

    def _tell(self) -> None:
        """What the agents say of their seats."""
        rows: dict[str, list[Json]] = {node: [] for node in (NODE, *self._told)}
        away = self._put_away()
        for pod in self.of("pods"):
            meta = pod["metadata"]
            if "deletionTimestamp" not in meta and (node := pod["spec"].get("nodeName")):
                rows.setdefault(node, []).append(self._row(meta, away))
        usage = [{"namespace": self.namespace, "used": self.used}] if self.used else []
        for node, seats in rows.items():
            told = {"seats": seats, "usage": usage if node == NODE else []}
            if told != self._told.get(node):
                path = f"{keys.GPU_NODES_PATH}/{node}/status"
                self.plane.cluster.api("agent").patch(path, {"status": told})
                self._told[node] = told
                for row in seats:
                    self._shown.setdefault(row["uid"], time.monotonic())

    def _row(self, meta: Json, away: set[str]) -> Json:
        """What an agent says of one seat."""
        row: Json = {"uid": meta["uid"], "name": meta["name"], "pod": meta["name"]}
        group = meta.get("annotations", {}).get(keys.ASSIGNED_GROUP, "G0")
        row |= {"namespace": self.namespace, "group": group, "state": "active"}
        if meta["name"] in self.resting or meta["uid"] in away:
            row |= {"state": "parked", "tier": "object", "since": "2026-01-01T00:00:00Z"}
        if meta["name"] in self.busy:
            unknown = {"busy": [-1] * HOURS, "calls": [-1.0] * HOURS}
            row["activity"] = {**unknown, "recentBusy": 400, "recentCalls": 60.0}
        return row

    def shows(self, uid: str) -> bool:
        """Whether the agent has told of the pod's seat so long ago that all have heard of it."""
        at = self._shown.get(uid)
        return at is not None and time.monotonic() > at + _HEARD_S

    def _put_away(self) -> set[str]:
        """The UIDs of pods whose states are in the object store, so that they may go."""
        asked = [one for one in self.of("checkpointrequests") if one["spec"]["mode"] == "Evict"]
        told = [one.get("status") or {} for one in asked]
        return {str(one["podUID"]) for one in told if one.get("completionTime")}

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
        uid = made["metadata"]["uid"] if made else self._next(pod, spot)
        self._continues(request, uid)

    def _next(self, pod: str, spot: Json) -> str:
        like = {"labels": self._labels[pod], **owned(pod)}
        return self.pod(f"{pod}-next", spot["group"], node=spot["node"], **like)

    def _continues(self, request: Json, uid: str) -> None:
        note = {"metadata": {"annotations": {keys.SUCCESSOR: uid}}}
        path = self.path("checkpointrequests", request["metadata"]["name"])
        self.plane.cluster.api("extender").patch(path, note)

    def _planned(self, path: str) -> Json:
        """The extender's plan for a pod of the namespace: from G0 to G1. One that waits has another
        one make room."""
        *_, namespace, name = urlsplit(path).path.split("/")
        pod = self.get("pods", name)
        if namespace != self.namespace or pod is None:
            return {}
        leaves = self.get("pods", made_room(name)) if name in self.waiting else pod
        if leaves is None:
            return {}
        uid = leaves["metadata"]["uid"]
        here = {"node": leaves["spec"].get("nodeName", NODE), "group": "G0"}
        kind = "suspend" if path.startswith("/preemption/") else "move"
        step = {"kind": kind, "pod": f"{namespace}/{leaves['metadata']['name']}", "uid": uid}
        step |= {"from": here, "to": {**here, "group": "G1"}, "seconds": 3.0, "bytes": 1 << 30}
        steps = [step]
        if leaves is not pod:
            waiter = pod["metadata"]["uid"]
            steps.append({"kind": "place", "pod": f"{namespace}/{name}", "uid": waiter, "to": here})
        plan = {"room": True, "id": f"h-{uid[:8]}", "moves": 1, "seconds": 3.0}
        asked = {"uid": pod["metadata"]["uid"], "checked": True}
        return {**plan, **asked, "steps": steps, "sentences": ["1 move."]}


def made_room(waiter: str) -> str:
    """The pod that makes room for one that waits."""
    return f"{waiter}-of"


def owned(name: str) -> Json:
    """What a pod of the ReplicaSet of this name has, which makes another one in its place."""
    owner: Json = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name}
    return {"ownerReferences": [{**owner, "uid": f"of-{name}", "controller": True}]}


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
