"""What is right and what is wrong with a cluster: facts of the API server in, findings
out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kybernate.core.doctor.doctor import Finding, Level
from kybernate.core.doctor.nodefacts import Unseen
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_TOLD = 3
"""How many of several are named."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node with GPUs. `ours`: it bears the label that gives its GPUs to Kybernate; `gpus`: their
    UUIDs as its agent tells, None without a GPUNode; `problem`: why it isn't ready, empty if it is;
    `vendor`: how many of the vendor's resource it offers."""

    ours: bool
    gpus: frozenset[str] | None
    problem: str
    version: str
    vendor: int


@dataclass(frozen=True, slots=True)
class Published:
    """What a DRA driver publishes of a node's GPUs: their UUIDs, None for a device without one."""

    driver: str
    node: str
    devices: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """`missing_kinds`: those of our objects that are not served; `services`: by name, whether one
    replica is ready; `webhook`: whether the API server can believe it."""

    missing_kinds: tuple[str, ...]
    services: Mapping[str, bool] | Unseen
    webhook: bool | Unseen
    nodes: Mapping[str, NodeFacts] | Unseen
    slices: tuple[Published, ...] | Unseen


def examine_cluster(facts: ClusterFacts) -> tuple[Finding, ...]:
    """All findings, in the order in which a cluster is set up."""
    groups = (_kinds, _services, _webhook, _nodes, _vendor_plugin, _dra)
    return tuple(finding for group in groups for finding in group(facts))


def _kinds(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.missing_kinds:
        seen = f"the API server does not know {', '.join(facts.missing_kinds)}"
        yield Finding("objects", Level.FAIL, seen, "apply config/crd, or upgrade the chart")
    else:
        yield Finding("objects", Level.OK, "the API server knows all of our objects")


def _services(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.services, Unseen):
        yield Finding("services", Level.WARN, facts.services.why, "ask with more rights")
        return
    for name, ready in facts.services.items():
        if not ready:
            seen = f"no replica of {name} is ready"
            yield Finding("services", Level.FAIL, seen, f"see its pods: kubectl describe {name}")
    if all(facts.services.values()):
        yield Finding("services", Level.OK, f"{len(facts.services)} have a replica that is ready")


def _webhook(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.webhook, Unseen):
        yield Finding("webhook", Level.WARN, facts.webhook.why, "ask with more rights")
    elif facts.webhook:
        yield Finding("webhook", Level.OK, "the API server can believe the webhook")
    else:
        seen = "its configuration has no authority yet: pods with seats are refused"
        yield Finding("webhook", Level.FAIL, seen, "see the log of deploy/kyb-webhook")


def _nodes(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.nodes, Unseen):
        yield Finding("nodes", Level.WARN, facts.nodes.why, "ask with more rights")
        return
    ours = {name: node for name, node in facts.nodes.items() if node.ours}
    for name, node in ours.items():
        if problem := node.problem or ("" if node.gpus else "its agent tells of no GPUs"):
            do = "see its kyb-agent and kyb-device-plugin; on the node, `kybernate doctor`"
            yield Finding("nodes", Level.WARN, f"{name}: {problem}", do)
    if not ours:
        do = "label one: kubectl label node NODE kyb.ai/gpu-node=true"
        yield Finding("nodes", Level.WARN, "no node's GPUs are Kybernate's", do)
    elif all(node.gpus and not node.problem for node in ours.values()):
        yield Finding("nodes", Level.OK, f"{len(ours)} with GPUs are ready")
    versions = Counter(node.version for node in ours.values() if node.version)
    if len(versions) > 1:
        seen = ", ".join(f"{count} of {version}" for version, count in sorted(versions.items()))
        yield Finding("versions", Level.WARN, f"agents differ: {seen}", "end the upgrade")


def _vendor_plugin(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.nodes, Unseen):
        return
    both = [name for name, node in facts.nodes.items() if node.ours and node.vendor]
    if not both:
        yield Finding("vendor-plugin", Level.OK, "no node of ours offers nvidia.com/gpu")
        return
    yield Finding(
        "vendor-plugin",
        Level.FAIL,
        f"{_named(both)} offer nvidia.com/gpu, too: both would hand out the same GPUs",
        "keep the vendor's plugin off; with the GPU Operator: kubectl label node NODE "
        "nvidia.com/gpu.deploy.device-plugin=false",
    )


def _dra(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.slices, Unseen) or isinstance(facts.nodes, Unseen):
        why = next(one.why for one in (facts.slices, facts.nodes) if isinstance(one, Unseen))
        yield Finding("dra", Level.WARN, why, "ask with the right to list resourceslices")
        return
    twice = [one for one in facts.slices if _same(one, facts.nodes.get(one.node))]
    if not twice:
        yield Finding("dra", Level.OK, "no DRA driver publishes a GPU of ours")
        return
    drivers = ", ".join(sorted({one.driver for one in twice}))
    yield Finding(
        "dra",
        Level.FAIL,
        f"{drivers} publishes GPUs of {_named({one.node for one in twice})}, whose seats Kybernate "
        "hands out: a claim and a seat would get the same GPU",
        "keep the driver's kubelet plugin off nodes with the label kyb.ai/gpu-node",
    )


def _same(published: Published, node: NodeFacts | None) -> bool:
    """Whether it has a GPU of ours; a device that doesn't say which GPU it is may be one."""
    if node is None or not (node.ours or node.gpus):
        return False
    return any(uuid is None or uuid in (node.gpus or {uuid}) for uuid in published.devices)


def _named(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - _TOLD} more" if len(every) > _TOLD else ""
    return ", ".join(every[:_TOLD]) + more
