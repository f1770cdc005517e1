"""What people ask for, each with its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.operator.world import of_replica_set, owned
from kybernate import keys
from tests.kit.servers.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.operator.world import World

    Json = dict[str, Any]

_LIMITS = {keys.seat_resource(1): "1", "memory": "1Gi"}
_DEADLINE_S = 300


def condition(item: Json | None) -> tuple[str, str]:
    """Status and reason of its one condition; empty without one."""
    found = ((item or {}).get("status") or {}).get("conditions") or [{"status": "", "reason": ""}]
    return found[0]["status"], found[0]["reason"]


class Item:
    """One thing that is asked for, and all that people do for it."""

    plural = "checkpointrequests"

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world, self.name, self.number = world, name, number

    def begin(self) -> None:
        """Ask for it. Raises KybernateError."""
        raise NotImplementedError

    def tend(self) -> None:
        """What is to be done meanwhile. Raises KybernateError."""

    def over(self) -> bool:
        """Whether nothing more becomes of it."""
        item = self.world.get(self.plural, self.name)
        return bool(((item or {}).get("status") or {}).get("completionTime"))

    def create(self, kind: str, spec: Json, name: str = "") -> None:
        """Make the object."""
        self.world.api.post(
            self.world.path(self.plural),
            {
                "apiVersion": keys.API_VERSION,
                "kind": kind,
                "metadata": {"name": name or self.name},
                "spec": spec,
            },
        )


class Checkpoint(Item):
    """A CheckpointRequest of a pod of its own."""

    mode = "Snapshot"
    deadline = _DEADLINE_S

    def begin(self) -> None:
        self.world.pod(self.name)
        spec = {"pod": self.name, "mode": self.mode, "deadlineSeconds": self.deadline}
        self.create(keys.CHECKPOINT_REQUEST_KIND, spec)


class Park(Checkpoint):
    mode = "Park"


class Wake(Checkpoint):
    mode = "Wake"


class Evict(Checkpoint):
    mode = "Evict"


class Late(Checkpoint):
    """One that does not end within its deadline, which is longer than any takeover."""

    deadline = 20

    def begin(self) -> None:
        self.world.plane.door.stuck.add(self.world.pod(self.name))
        spec = {"pod": self.name, "mode": self.mode, "deadlineSeconds": self.deadline}
        self.create(keys.CHECKPOINT_REQUEST_KIND, spec)


class Deleted(Checkpoint):
    """One that is deleted once it is under way: its operation is taken back."""

    _uid = ""

    def begin(self) -> None:
        self._uid = self.world.pod(self.name)
        self.world.plane.door.stuck.add(self._uid)
        self.create(keys.CHECKPOINT_REQUEST_KIND, {"pod": self.name, "mode": self.mode})

    def tend(self) -> None:
        if condition(self.world.get(self.plural, self.name))[1] == "Running":
            self.world.api.delete(self.world.path(self.plural, self.name))

    def over(self) -> bool:
        known = [*self.world.plane.door.operations.values()]  # its threads add more
        every = [one for one in known if one.uid == self._uid]
        return bool(every) and all(one.state == "cancelled" for one in every)


class Clone(Item):
    """A RestoreRequest of a pod's artifact."""

    plural = "restorerequests"
    kind = "clone"

    def begin(self) -> None:
        uid = self.world.pod(f"{self.name}-of")
        Recorder(self.world.plane.server, self.world.namespace).record(
            self.number, f"{self.name}-of", uid=uid
        )
        self.create(keys.RESTORE_REQUEST_KIND, self.spec())

    def spec(self) -> Json:
        return {
            "source": {"pod": f"{self.name}-of"},
            "as": self.kind,
            "podName": f"{self.name}-made",
            "deadlineSeconds": _DEADLINE_S,
        }


class Successor(Clone):
    """A RestoreRequest for the pod's successor: the pod is deleted once it is waited for."""

    kind = "successor"

    def spec(self) -> Json:
        container = {"name": "c", "image": "x", "args": ["serve"], "resources": {"limits": _LIMITS}}
        meta = {"annotations": {keys.VRAM: "1Gi"}}
        template = {"metadata": meta, "spec": {"containers": [container]}}
        return {**super().spec(), "template": template}

    def tend(self) -> None:
        there = self.world.get("pods", f"{self.name}-of")
        if there and condition(self.world.get(self.plural, self.name))[1] == "SourceRuns":
            uid = there["metadata"]["uid"]
            self.world.api.delete(
                self.world.path("pods", f"{self.name}-of"), {"gracePeriodSeconds": 0}
            )
            Recorder(self.world.plane.server, self.world.namespace).stopped(uid)


class Rebalance(Item):
    """A RebalanceRequest, whose plan is approved as it stands."""

    plural = "rebalancerequests"

    def begin(self) -> None:
        self.world.pod(self.name, **owned(self.name))
        move = {"pod": self.name, "to": {"group": "G1"}}
        self.create(keys.REBALANCE_REQUEST_KIND, {"move": move})

    def tend(self) -> None:
        item = self.world.get(self.plural, self.name)
        if item and condition(item)[1] == "AwaitingApproval" and "approvedPlan" not in item["spec"]:
            hash_ = item["status"]["plan"]["hash"]
            path = self.world.path(self.plural, self.name)
            self.world.api.patch(path, {"spec": {"approvedPlan": hash_}})


class Template(Item):
    """A SnapshotTemplate."""

    plural = "snapshottemplates"

    def begin(self) -> None:
        container: Json = {"name": "c", "image": "x", "args": ["serve"]}
        container["resources"] = {"limits": _LIMITS}
        container["ports"] = [{"containerPort": 8000}]
        body = {"metadata": {"annotations": {keys.VRAM: "1Gi"}}}
        spec = {"template": {**body, "spec": {"containers": [container]}}}
        self.create(keys.SNAPSHOT_TEMPLATE_KIND, {**spec, "warmUp": [{"post": "/run", "body": {}}]})

    def over(self) -> bool:
        ready = condition(self.world.get(self.plural, self.name)) == ("True", "Ready")
        return ready and not any(
            one["metadata"]["name"].startswith(f"{self.name}-") for one in self.world.of("pods")
        )


class Snapshots(Item):
    """A CheckpointPolicy that has a snapshot made of its pod."""

    plural = "checkpointpolicies"

    def begin(self) -> None:
        self.world.pod(self.name, labels={"policy": self.name})
        selector = {"matchLabels": {"policy": self.name}}
        spec = {"selector": selector, "snapshots": {"every": "168h", "keep": {"last": 2}}}
        self.create(keys.CHECKPOINT_POLICY_KIND, spec)

    def over(self) -> bool:
        status = (self.world.get(self.plural, self.name) or {}).get("status") or {}
        return bool((status.get("snapshots") or {}).get("total"))


class Zero(Item):
    """A Deployment that is scaled to zero, and back once somebody waits for its model."""

    plural = "checkpointpolicies"

    def begin(self) -> None:
        spec = {
            "selector": {"matchLabels": {"app": self.name}},
            "template": {
                "metadata": {"labels": {"app": self.name}},
                "spec": {"containers": [{"name": "c", "image": "x"}]},
            },
            "replicas": 2,
        }
        api, world = self.world.api, self.world
        body: Json = {"metadata": {"name": self.name}, "spec": spec}
        made = api.post(world.path("deployments"), body)
        owner: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.name}
        owner |= {"uid": made["metadata"]["uid"], "controller": True}
        body = {"metadata": {"name": f"{self.name}-1", "ownerReferences": [owner]}, "spec": spec}
        replica_set = api.post(world.path("replicasets"), body)
        for letter in "ab":
            world.pod(f"{self.name}-1-{letter}", **of_replica_set(self.name, replica_set))
            world.resting.add(f"{self.name}-1-{letter}")
        selector = {"matchLabels": {"app": self.name}}
        self.create(keys.CHECKPOINT_POLICY_KIND, {"selector": selector, "idle": {"object": "1s"}})

    def _asked(self) -> Iterator[Json]:
        for one in self.world.of("checkpointrequests"):
            if one["spec"]["pod"].startswith(f"{self.name}-1-"):
                yield one

    def tend(self) -> None:
        made = self.world.get("deployments", self.name)
        pods = [one for one in self.world.of("pods") if _app(one) == self.name]
        if made is None or made["spec"]["replicas"] or pods:
            return
        for one in self._asked():
            notes = one["metadata"].get("annotations", {})
            if keys.WANTED in notes:
                return
        for one in self._asked():
            wanted = {"metadata": {"annotations": {keys.WANTED: "2026-01-01T00:00:00Z"}}}
            path = self.world.path("checkpointrequests", one["metadata"]["name"])
            self.world.plane.cluster.api("proxy").patch(path, wanted)
            return

    def over(self) -> bool:
        asked = list(self._asked())
        back = [one for one in asked if (one.get("status") or {}).get("scaledUpTime")]
        return (
            len(back) == 2
            and len([1 for one in self.world.of("pods") if _app(one) == self.name]) == 2
        )


def _app(pod: Json) -> str:
    return str(pod["metadata"]["labels"].get("app", ""))
