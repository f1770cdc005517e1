"""Pods as placing them needs them, under the cluster's rules. Pure.

What can't be understood becomes a sentence (`problem`) and never an exception.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api import podnotes, pods
from kybernate.core.ledger.ledger import Claim
from kybernate.core.ledger.sharing import Sharing
from kybernate.core.placement import Choosing, Demand
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from kybernate.types import GroupName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.requests.checkpoint import Target
    from kybernate.types import NodeName, PodRef

    Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """The cluster's rules, under which every pod is read wherever it comes from (a watch, a call,
    the API server): one read without them could get a seat beside one that it must not share with.

    `apart`: no two models share that are hot at the same hours. `choosing`: who is placed how.
    """

    sharing: Sharing = field(default_factory=Sharing)
    apart: bool = False
    choosing: Choosing = field(default_factory=Choosing)


@dataclass(frozen=True, slots=True)
class SeatPod:
    """What placing a pod needs to know of it.

    `resource` is None if it asks for no seat, `demand` also if what it asks for can't be had
    anywhere: then `problem` says why and what to write instead. `seated` says that the node's agent
    has seen which device ID it got. `gang` is the name of the gang that it belongs to, if any.
    `preempts` is False if its priority class says that it takes nobody's place; `leaving` says that
    it is being deleted. `model` is what it serves, `party` says with whom it may share GPUs,
    `restore` from which artifact it wants to continue, `succession` in whose place its controller
    has made it. `expendable`: it may be deleted for a more important one, by its own word, if
    `says_on_preempt`; `labels` are what policies select it by. `created`: when it was made, in
    seconds since 1970; `failed`: its kubelet has ended it.
    """

    ref: PodRef
    resource: str | None
    demand: Demand | None
    problem: str
    node: NodeName | None
    group: GroupName | None
    expendable: bool
    finished: bool
    seated: bool = False
    gang: str = ""
    priority: int = 0
    preempts: bool = True
    leaving: bool = False
    model: str = ""
    party: str = ""
    restore: str = ""
    succession: str = ""
    says_on_preempt: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    created: float = 0.0
    failed: bool = False
    vram: int | None = None
    """What its seat takes of a GPU, also if nothing else that it asks for can be read."""

    def claim(self) -> Claim | None:
        """The seat that the pod holds: none before it is bound and after it has ended."""
        if self.node is None or self.resource is None or self.finished:
            return None
        return Claim(self.ref, self.node, self.group, self.resource, self.vram, self.party)

    def aimed(self, target: Target) -> SeatPod:
        """The pod as if it asked for the target's group, unless it names one itself."""
        demand = self.demand
        if demand is None or demand.require_group or not target.group:
            return self
        return replace(self, demand=replace(demand, require_group=GroupName(target.group)))


def read_pod(raw: Json, rules: Rules) -> SeatPod:
    """Read a pod, whole or without what nobody reads."""
    pod = pods.read_pod(raw)
    ref, ask, notes = pod.ref, pod.ask, pod.notes
    party = rules.sharing.party(ref.namespace, pod.labels if rules.sharing.labels else {})
    demand, problem = None, ""
    try:
        pod.check()
        demand = _demand(ask.resource, pod, party, rules) if ask else None
    except ConfigError as error:
        problem = str(error)
    return SeatPod(
        ref=ref,
        resource=ask.resource if ask else None,
        demand=demand,
        problem=problem,
        node=pod.node,
        group=pod.group,
        expendable=_expendable(notes),
        says_on_preempt=keys.ON_PREEMPT in notes,
        labels=pod.labels,
        finished=pod.over,
        seated=pod.seat is not None,
        gang=pod.gang,
        priority=pod.priority,
        preempts=pod.preempts,
        leaving=pod.leaving,
        model=pod.model or ref.name,
        party=party,
        restore=notes.get(keys.RESTORE_FROM, ""),
        succession=pod.succession,
        created=pod.created_at(),
        failed=pod.failed_by_kubelet,
        vram=demand.vram if demand else _vram(notes),
    )


def _expendable(notes: Mapping[str, str]) -> bool:
    try:
        return podnotes.expendable(notes)
    except ConfigError:
        return False


def _vram(notes: Mapping[str, str]) -> int | None:
    try:
        return podnotes.vram(notes)
    except ConfigError:
        return None


def _demand(resource: str, pod: pods.Pod, party: str, rules: Rules) -> Demand:
    """What the pod asks for. Raises ConfigError."""
    own = pod.notes.get(keys.POLICY, "")
    policy = rules.choosing.name(pod.namespace, pod.scheduler, own)
    return _demand_of(resource, party, rules.apart, policy, *map(pod.notes.get, _OF_DEMAND))


_OF_DEMAND = (
    keys.VRAM,
    keys.GPU_PRODUCT,
    keys.PREFER_GROUP,
    keys.REQUIRE_GROUP,
    keys.GPU_TOPOLOGY,
)


@lru_cache(4096)
def _demand_of(resource: str, party: str, apart: bool, policy: str, *said: str | None) -> Demand:
    """Pods of one workload share one object, which is read once."""
    pairs = zip(_OF_DEMAND, said, strict=True)
    notes = {name: text for name, text in pairs if text is not None}
    prefer, require = notes.get(keys.PREFER_GROUP), notes.get(keys.REQUIRE_GROUP)
    return Demand(
        resource=resource,
        vram=podnotes.vram(notes),
        products=podnotes.products(notes),
        prefer_group=GroupName(prefer) if prefer else None,
        require_group=GroupName(require) if require else None,
        topology=podnotes.topology(notes),
        party=party,
        apart=apart,
        policy=policy,
    )
