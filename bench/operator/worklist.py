"""What makes room for others, or is lost; and the work list: one of each kind in a round."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bench.operator.plane import NODE, POOL
from bench.operator.work import (
    Checkpoint,
    Clone,
    Deleted,
    Evict,
    Item,
    Late,
    Park,
    Rebalance,
    Snapshots,
    Successor,
    Template,
    Wake,
    Zero,
    condition,
)
from bench.operator.world import made_room, owned
from kybernate import keys
from kybernate.errors import ConflictError
from tests.kit.servers.recorder import Recorder

if TYPE_CHECKING:
    from bench.operator.world import World

    Json = dict[str, Any]

_URGENT = "bench-urgent"
_USED_S = 7


class Defragment(Rebalance):
    """A RebalanceRequest that has room made for a pod that waits."""

    def begin(self) -> None:
        self.world.pod(made_room(self.name), **owned(made_room(self.name)))
        self.world.waiting.add(self.name)
        self.world.pod(self.name)
        self.create(keys.REBALANCE_REQUEST_KIND, {"defragment": {"pod": self.name}})

    def tend(self) -> None:
        super().tend()
        if self.world.get("pods", f"{made_room(self.name)}-next"):
            self.world.waiting.discard(self.name)


class Preempted(Item):
    """A pod that waits for the seat of a less important one."""

    _uid = _leaves = ""

    def begin(self) -> None:
        with contextlib.suppress(ConflictError):
            path = "/apis/scheduling.k8s.io/v1/priorityclasses"
            self.world.api.post(path, {"metadata": {"name": _URGENT}, "value": 1000})
        self._leaves = self.world.pod(made_room(self.name), **owned(made_room(self.name)))
        self.world.waiting.add(self.name)
        self._uid = self.world.pod(self.name, priority=_URGENT)
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        told = {"conditions": [{**found, "lastTransitionTime": since}]}
        self.world.api.patch(self.world.path("pods", f"{self.name}/status"), {"status": told})

    def tend(self) -> None:
        if self._asked() and self.world.get("pods", made_room(self.name)) is None:
            self.world.waiting.discard(self.name)

    def _asked(self) -> Json | None:
        return self.world.get(self.plural, f"preempt-{self._uid}-{self._leaves}")

    def over(self) -> bool:
        pod = self.world.get("pods", self.name)
        bound = bool(((pod or {}).get("spec") or {}).get("nodeName"))
        return bound and condition(self._asked())[1] == "Evicted"


class Lost(Item):
    """A pod that its kubelet has failed: it continues from its newest artifact."""

    _uid = ""

    def begin(self) -> None:
        self._uid = self.world.pod(self.name, **owned(self.name))
        recorder = Recorder(self.world.plane.server, self.world.namespace)
        recorder.record(self.number, self.name, uid=self._uid)
        self.world.plane.door.seats.discard(self._uid)
        told = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
        self.world.api.patch(self.world.path("pods", f"{self.name}/status"), {"status": told})
        recorder.stopped(self._uid)

    def over(self) -> bool:
        return condition(self.world.get(self.plural, f"lost-{self._uid}"))[1] == "Evicted"


class Drained(Item):
    """A pod that somebody evicts, again and again until it may go; the webhook has it put away."""

    _uid = ""

    def begin(self) -> None:
        self._uid = self.world.pod(self.name, **owned(self.name))

    def tend(self) -> None:
        if self.world.get("pods", self.name) and self.world.shows(self._uid):
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": self.name}}
            self.world.api.post(self.world.path("pods", f"{self.name}/eviction"), body)

    def _done(self) -> bool:
        return condition(self.world.get(self.plural, f"evict-{self._uid}-1"))[1] == "Evicted"

    def over(self) -> bool:
        return self._done() and self.world.get("pods", self.name) is None


class Shared(Item):
    """A namespace's Share, which says what was used of its window."""

    _said = False

    def begin(self) -> None:
        kind = {"apiVersion": keys.API_VERSION, "kind": keys.SHARE_KIND}
        meta = {"name": self.world.namespace}
        with contextlib.suppress(ConflictError):
            self.world.api.post(keys.SHARES_PATH, {**kind, "metadata": meta, "spec": {}})

    def tend(self) -> None:
        share = self.world.api.get(f"{keys.SHARES_PATH}/{self.world.namespace}")
        used = (share.get("status") or {}).get("used") or {}
        if since := used.get("since"):
            self.world.used = {"since": since, "gpuSeconds": _USED_S}
        self._said = used.get("gpuSeconds") == _USED_S

    def over(self) -> bool:
        return self._said


class Balanced(Item):
    """A CheckpointPolicy that moves its pod, whose group is busy, to a free one of its node."""

    plural = "checkpointpolicies"

    def begin(self) -> None:
        labels, node = {"policy": self.name}, self.world.plane.another()
        other = f"{self.name}-beside"
        self.world.busy |= {self.name, other}
        self.world.pod(other, node=node, **owned(other))
        self.world.pod(self.name, node=node, labels=labels, **owned(self.name))
        rebalance = {"above": 50, "every": "1m"}
        spec = {"selector": {"matchLabels": labels}, "rebalance": rebalance}
        self.create(keys.CHECKPOINT_POLICY_KIND, spec)

    def over(self) -> bool:
        policy = self.world.get(self.plural, self.name)
        if policy is None or self.world.get("pods", f"{self.name}-next") is None:
            return False
        told = (policy.get("status") or {}).get("conditions") or []
        even = any((one["type"], one["status"]) == ("Balanced", "True") for one in told)
        asked = f"balance-{policy['metadata']['uid']}-"
        every = self.world.of("rebalancerequests")
        mine = [one for one in every if one["metadata"]["name"].startswith(asked)]
        return even and [condition(one)[1] for one in mine] == ["Moved"]


class Placed(Item):
    """A TierPlacement of an artifact whose pod is gone: a copy on the NVMe of one node, of which
    the registry hears from that node's agent."""

    plural = "tierplacements"
    _artifact = ""
    _reported = False

    @property
    def _of(self) -> str:
        return f"{self.name}-of"

    def begin(self) -> None:
        recorder = Recorder(self.world.plane.server, self.world.namespace)
        self._artifact = recorder.record(self.number, self._of)
        copies = {"object": 1, "nvme": {"nodes": {"matchLabels": POOL}}}
        selector = {"matchLabels": {keys.OF_POD_LABEL: self._of}}
        self.create(keys.TIER_PLACEMENT_KIND, {"selector": selector, "copies": copies})

    def tend(self) -> None:
        known = [*self.world.plane.door.operations.values()]  # its threads add more
        done = [one for one in known if one.artifact == self._artifact and one.kind == "place"]
        if not self._reported and any(one.state == "succeeded" for one in done):
            recorder = Recorder(self.world.plane.server, self.world.namespace)
            recorder.record(self.number, self._of, node=NODE)
            self._reported = True

    def over(self) -> bool:
        item = self.world.get(self.plural, self.name)
        there = ((item or {}).get("status") or {}).get("copiesThere")
        return self._reported and (condition(item)[1], there) == ("Placed", 2)


KINDS: tuple[type[Item], ...] = (
    *(Checkpoint, Park, Clone, Rebalance, Template, Snapshots, Zero),
    *(Evict, Wake, Successor, Late, Deleted),
    *(Defragment, Preempted, Lost, Drained, Shared, Balanced, Placed),
)


def work(world: World, rounds: int) -> list[Item]:
    """The work list: so many of each kind."""
    return [
        kind(world, f"{kind.__name__.lower()}-{number}", 100 * number + index)
        for number in range(rounds)
        for index, kind in enumerate(KINDS)
    ]
