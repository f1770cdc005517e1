"""Who calls, by the names in the client's certificate, and for which pods an agent may speak."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.adapters.registry.wire import CopyState
from kybernate.core.artifacts.succession import PodRecord
from kybernate.dataclass import dataclass
from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.adapters.registry.wire import Copy, Described
    from kybernate.core.artifacts.succession import Asked
    from kybernate.runtime.revocations import Revocations
    from registry.artifacts import Artifacts
    from registry.cluster import Cluster, Pod
    from registry.pods import Key, Pods


class Role(StrEnum):
    """What a caller is to the registry."""

    AGENT = "agent"
    CONTROLLER = "controller"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller; `node` is an agent's, empty for others. `name` is for messages. `own`: it showed a
    certificate for a key of its node's own."""

    role: Role
    name: str
    node: str = ""
    own: bool = False


class ForbiddenError(RefusedError):
    """It isn't this caller's to say."""


_NAMED = {keys.CN_CONTROLLER: Role.CONTROLLER, keys.CN_PROXY: Role.PROXY}


def read_caller(certificate: Mapping[str, Any]) -> Caller | str:
    """The caller whose certificate this is, as `getpeercert` gives it; or why it may not call."""
    names = [
        value
        for part in certificate.get("subject", ())
        for kind, value in part
        if kind == "commonName"
    ]
    issuers = [
        value
        for part in certificate.get("issuer", ())
        for kind, value in part
        if kind == "commonName"
    ]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    nodes = [node for name in others if (node := keys.agent_node(name))]
    own = issuers == [keys.CN_AGENTS]
    if len(names) == 1 and names[0] in _NAMED and not nodes and not own:
        return Caller(_NAMED[names[0]], names[0])
    if len(nodes) == 1 and not set(names) & set(_NAMED):
        return Caller(Role.AGENT, f"the agent of node {nodes[0]}", nodes[0], own=own)
    found = ", ".join([*names, *others]) or "no name"
    return (
        f"only agents, {keys.CN_CONTROLLER} and {keys.CN_PROXY} may call; your certificate names "
        f"{found}"
    )


class Admission:
    """Whose certificates count. `shared`: agents' also if `kybernate pki` made them, so that other
    nodes may hold their keys. `revocations` is None where no node can be revoked."""

    def __init__(self, revocations: Revocations | None, *, shared: bool = True) -> None:
        self._revocations = revocations
        self._shared = shared

    def check(self, caller: Caller, certificate: Mapping[str, Any]) -> None:
        """Raises ForbiddenError, and RetryableError while nobody knows who is revoked."""
        if caller.role is not Role.AGENT:
            return
        if not caller.own and not self._shared:
            raise ForbiddenError(
                f"{caller.name}: its key may be in other hands; an agent needs one that its node "
                "made (own_key)"
            )
        if self._revocations is None:
            return
        if not self._revocations.synced:
            raise RetryableError("which nodes are revoked isn't known yet")
        # A kept connection may outlive what it was made with.
        made, ends = (_seconds(certificate, name) for name in ("notBefore", "notAfter"))
        if ends <= time.time():
            raise ForbiddenError(f"{caller.name}: its certificate has ended")
        if why := self._revocations.why_not(caller.node, int(made * 1000)):
            raise ForbiddenError(why)


def _seconds(certificate: Mapping[str, Any], name: str) -> float:
    return ssl.cert_time_to_seconds(str(certificate[name]))


def check_node(caller: Caller, node: str, field: str) -> None:
    """An agent speaks for its own node alone. Raises ForbiddenError."""
    if caller.role is Role.AGENT and node and node != caller.node:
        raise ForbiddenError(f"{field}: {caller.name} can't speak for node {node}")


def nowhere(_artifact: str, _node: str) -> bool:
    """`Standing` where there are no TierPlacements."""
    return False


class Standing:
    """For which pods an agent may speak: those that the extender bound to its node.

    Without a cluster it may speak for any, as its certificate names it. Each check raises
    ForbiddenError, and RetryableError where the API server can't be asked now.
    """

    def __init__(
        self,
        pods: Pods,
        artifacts: Artifacts,
        cluster: Cluster | None,
        placed: Callable[[str, str], bool] = nowhere,
    ) -> None:
        """`placed`: whether a TierPlacement wants an artifact on a node's NVMe."""
        self._pods = pods
        self._placed = placed
        self._artifacts = artifacts
        self._cluster = cluster

    def check_pod(self, caller: Caller, pod: Key) -> Pod | None:
        """The extender has bound the pod to the caller's node; what is seen of it now."""
        if caller.role is not Role.AGENT or self._cluster is None:
            return None
        namespace, uid = pod
        found = self._cluster.pod(uid)
        if found is None and self._record(pod).node == caller.node:
            # It was there when its lease was taken, and was held against the cluster then.
            return None
        if found is None or not found.placed:
            found = self._cluster.find(namespace, uid, caller.node)
        if found is None or found.namespace != namespace:
            raise ForbiddenError(
                f"{caller.name} can't speak for pod {namespace}/{uid}: the cluster has no such pod "
                "on that node, and the registry has known none"
            )
        if found.node != caller.node:
            where = f"on node {found.node}" if found.node else "bound to no node"
            raise ForbiddenError(
                f"{caller.name} can't speak for pod {namespace}/{found.name} ({uid}), which is "
                f"{where}"
            )
        # Node and annotations come with one Binding: none of them is late.
        if not found.placed:
            raise ForbiddenError(
                f"{caller.name} can't speak for pod {namespace}/{found.name} ({uid}), which the "
                f"extender has not placed: {keys.ASSIGNED_GROUP} or {keys.ASSIGNED_AT} is missing, "
                "or its kubelet made it"
            )
        return found

    def check_recording(self, caller: Caller, namespace: str, said: Described) -> None:
        """The artifact is of a pod of the caller's node, and under that pod's own name."""
        found = self.check_pod(caller, (namespace, said.pod_uid))
        if found is not None and found.name != said.pod:
            raise ForbiddenError(
                f"artifact.pod: pod {said.pod_uid} is called {found.name}, not {said.pod}"
            )

    def check_claim(self, caller: Caller, pod: Key, asked: Asked) -> None:
        """The successor is on the caller's node and asks for this pod's state. Raises
        ConflictError for a claim told again on a pod that may run on another node."""
        if caller.role is not Role.AGENT or self._cluster is None:
            return
        namespace, uid = pod
        successor = self.check_pod(caller, (namespace, asked.successor))
        record = self._record(pod)
        given = (record.successor, record.successor_node, record.artifact)
        if asked.successor == uid or given == (asked.successor, asked.node, asked.artifact):
            return
        wanted = (f"pod/{uid}", asked.artifact)
        if successor is None or successor.succeeds not in wanted:
            successor = self._cluster.find(namespace, asked.successor, caller.node)
        if successor is None or successor.succeeds not in wanted:
            raise ForbiddenError(
                f"pod {namespace}/{asked.successor} does not ask for the state of pod {uid}: set "
                f"{keys.RESTORE_FROM}: pod/{uid} on it"
            )
        if asked.again and not record.stopped:
            self._check_not_elsewhere(caller, pod)

    def check_copy(self, caller: Caller, artifact: str, held: Copy) -> None:
        """What the caller says of a copy is of a pod of its node, or of one that such a pod
        succeeds, or is wanted on the node's NVMe by a TierPlacement; but that a state is on its way
        to its own disk may be said of any."""
        if held.place is Tier.NVME and self._placed(artifact, caller.node):
            return
        if held.place is Tier.OBJECT or held.state is not CopyState.PENDING:
            self.check_state(caller, artifact)

    def check_state(self, caller: Caller, artifact: str) -> None:
        """The artifact is of a pod of the caller's node, or of one that such a pod succeeds.
        Raises NotFoundError for one that isn't known."""
        if caller.role is not Role.AGENT or self._cluster is None:
            return
        pod = artifact.partition("/")[0], self._artifacts.pod_of(artifact)
        self.check_line(caller, pod)

    def check_line(self, caller: Caller, pod: Key) -> None:
        """The pod is of the caller's node, or one of its node's pods succeeds it."""
        if caller.role is Role.AGENT and self._record(pod).successor_node != caller.node:
            self.check_pod(caller, pod)

    def _check_not_elsewhere(self, caller: Caller, pod: Key) -> None:
        """Nobody takes over what runs on another node by saying that it did so before."""
        found = self._cluster.find(*pod) if self._cluster is not None else None
        if found is not None and found.node != caller.node:
            raise ConflictError(
                f"pod {found.namespace}/{found.name} is there still, on node {found.node}, whose "
                "agent has not said that it stopped: have it do so, or delete the pod, then tell "
                "the claim again"
            )

    def _record(self, pod: Key) -> PodRecord:
        with suppress(NotFoundError):
            return self._pods.get(pod)
        return PodRecord(*pod)
