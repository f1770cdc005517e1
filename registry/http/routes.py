"""Calls about artifacts and pods."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.core.artifacts.succession import Asked, PodRecord
from kybernate.errors import RefusedError
from kybernate.types import Tier
from registry.http.callers import ForbiddenError, Role, check_node
from registry.http.calls import AGENTS, CONTROLLERS, OPERATORS, READERS, answers, routes_of

if TYPE_CHECKING:
    from registry.artifacts import Artifacts
    from registry.http.callers import Standing
    from registry.http.calls import Answer, Call, Json, Route
    from registry.pods import Pods

log = logging.getLogger(__name__)

_ARTIFACT = "/v1/artifacts/{namespace}/{name}"
_COPIES = f"{_ARTIFACT}/copies"
_POD = "/v1/pods/{namespace}/{uid}"
_LEASE, _CLAIM = f"{_POD}/lease", f"{_POD}/claim"


class OfArtifact(wire.Query):
    """An artifact's ID, in the path."""

    namespace: wire.Namespace
    name: wire.Saved

    @property
    def id(self) -> str:
        """All of it."""
        return f"{self.namespace}/{self.name}"


class OfPod(wire.Query):
    """A pod, in the path."""

    namespace: wire.Namespace
    uid: wire.Uid

    @property
    def key(self) -> tuple[str, str]:
        """As the database has it."""
        return self.namespace, self.uid


def routes(artifacts: Artifacts, pods: Pods, standing: Standing) -> tuple[Route, ...]:
    """All of them. `standing` says for which pods an agent may speak."""
    return routes_of(_ArtifactCalls(artifacts, standing), _PodCalls(pods, standing))


class _ArtifactCalls:
    def __init__(self, artifacts: Artifacts, standing: Standing) -> None:
        self._artifacts = artifacts
        self._standing = standing

    @answers("GET", "/v1/artifacts", READERS, wire.Page, query=wire.Filter)
    def list_artifacts(self, call: Call) -> Answer:
        """Artifacts, newest first, a page at a time."""
        return self._artifacts.page(call.query)

    @answers("GET", "/v1/latest", READERS, wire.Entry, query=wire.Latest)
    def latest_artifact(self, call: Call) -> Answer:
        """The newest artifact of a pod or a model."""
        return self._artifacts.latest(call.query)

    @answers("GET", _ARTIFACT, READERS, wire.Entry, of=OfArtifact)
    def get_artifact(self, call: Call) -> Answer:
        """One artifact with its copies."""
        return self._artifacts.get(call.path.id)

    @answers("GET", f"{_ARTIFACT}/signers", READERS, wire.Signers, of=OfArtifact)
    def get_signers(self, call: Call) -> Answer:
        """Which nodes' signatures are believed of an artifact: those that wrote it."""
        return self._artifacts.signers(call.path.id)

    @answers("PUT", _ARTIFACT, AGENTS, wire.Entry, of=OfArtifact, body=wire.Recording, created=True)
    def record_artifact(self, call: Call) -> Answer:
        """A new artifact with its first copy, by the pod's writer. Again changes nothing."""
        check_node(call.caller, call.body.held.node, "held.node")
        self._standing.check_recording(call.caller, call.path.namespace, call.body.artifact)
        entry, new = self._artifacts.record(call.path.id, call.caller.node, call.body)
        return entry, 201 if new else 200

    @answers("PUT", _COPIES, AGENTS, wire.Entry, of=OfArtifact, body=wire.CopyReport)
    def report_copy(self, call: Call) -> Answer:
        """What became of a copy. An agent may speak for its node, and for object stores."""
        check_node(call.caller, call.body.held.node, "held.node")
        told = call.body
        self._standing.check_copy(call.caller, call.path.id, told.held)
        return self._artifacts.report(call.path.id, call.caller.node, told.digest, told.held)

    @answers("DELETE", _COPIES, OPERATORS, wire.Dropped, of=OfArtifact, query=wire.Drop)
    def drop_copy(self, call: Call) -> Answer:
        """Let a copy go, before its bytes are deleted. Never the last verified one, unless `forget`
        says why."""
        if (call.query.place is Tier.OBJECT) == bool(call.query.node):
            raise RefusedError("node: name it for a copy in ram or nvme, and for no other")
        check_node(call.caller, call.query.node, "node")
        if call.query.place is Tier.OBJECT:
            self._standing.check_state(call.caller, call.path.id)
        answer = self._artifacts.drop(call.path.id, call.caller.node, call.query)
        if call.query.forget and answer["dropped"]:
            log.warning(
                "%s forgot %s in %s: %r",
                *(call.caller.name, call.path.id, call.query.place, call.query.forget),
            )
        return answer


class _PodCalls:
    def __init__(self, pods: Pods, standing: Standing) -> None:
        self._pods = pods
        self._standing = standing

    @answers("GET", _POD, READERS, wire.Pod, of=OfPod)
    def get_pod(self, call: Call) -> Answer:
        """Who may write a pod's states, and who continues from them."""
        return _pod(self._pods.get(call.path.key))

    @answers("POST", _LEASE, AGENTS, wire.Pod, of=OfPod, body=wire.LeaseWish)
    def take_lease(self, call: Call) -> Answer:
        """The calling agent's node becomes the pod's writer, with a new token."""
        node, wish = call.caller.node, call.body
        self._standing.check_pod(call.caller, call.path.key)
        return _pod(self._pods.lease(call.path.key, node, wish.seconds, runs=wish.runs))

    @answers("PUT", _LEASE, AGENTS, wire.Pod, of=OfPod, body=wire.Renewal)
    def renew_lease(self, call: Call) -> Answer:
        """The lease is renewed."""
        node, wish = call.caller.node, call.body
        self._standing.check_pod(call.caller, call.path.key)
        return _pod(self._pods.renew(call.path.key, node, wish.token, wish.seconds))

    @answers("DELETE", _LEASE, AGENTS, wire.Pod, of=OfPod, query=wire.OfToken)
    def give_lease_back(self, call: Call) -> Answer:
        """The lease ends."""
        return _pod(self._pods.give_back(call.path.key, call.caller.node, call.query.token))

    @answers("POST", f"{_POD}/stop", OPERATORS, wire.Pod, of=OfPod, body=wire.Stop)
    def report_stop(self, call: Call) -> Answer:
        """The pod has stopped, and how that is known: the word of its node's agent, or what the
        controller saw in the cluster."""
        proof, caller = call.body.proof, call.caller
        own = {Role.AGENT: {wire.Proof.AGENT}}.get(
            caller.role, {wire.Proof.DELETED, wire.Proof.OUT_OF_SERVICE}
        )
        if proof not in own:
            raise RefusedError(
                f"proof: {caller.name} can say {' or '.join(sorted(own))}, and not {proof}"
            )
        self._standing.check_pod(caller, call.path.key)
        by = caller.node or caller.name
        return _pod(self._pods.stop(call.path.key, proof, by, call.body.why))

    @answers("POST", _CLAIM, OPERATORS, wire.Pod, of=OfPod, body=wire.Claim)
    def claim_pod(self, call: Call) -> Answer:
        """One successor, and no other, continues from the pod's artifact."""
        check_node(call.caller, call.body.node, "node")
        if call.body.older and call.caller.role is Role.AGENT:
            raise ForbiddenError(
                f"older: {call.caller.name} can't say that; {keys.CN_CONTROLLER} and people can"
            )
        asked = Asked(**call.body.model_dump())
        self._standing.check_claim(call.caller, call.path.key, asked)
        return _pod(self._pods.claim(call.path.key, asked))

    @answers("DELETE", _CLAIM, OPERATORS, wire.Pod, of=OfPod, query=wire.OfSuccessor)
    def release_claim(self, call: Call) -> Answer:
        """The claim ends: the agent of its successor's node says that this pod has ended before it
        continued, or it is proven to have stopped."""
        self._standing.check_line(call.caller, call.path.key)
        by = call.caller.node
        return _pod(self._pods.release(call.path.key, call.query.successor, by))

    @answers("POST", f"{_POD}/settle", CONTROLLERS, wire.Pod, of=OfPod, body=wire.Settlement)
    def settle_pod(self, call: Call) -> Answer:
        """After the database was lost: all claims on this pod are known again."""
        log.warning("%s settled pod %s: %r", call.caller.name, call.path.uid, call.body.why)
        return _pod(self._pods.settle(call.path.key))

    @answers("POST", "/v1/settle", CONTROLLERS, wire.Settled, body=wire.Settlement)
    def settle_all(self, call: Call) -> Answer:
        """The same for all pods, and for those to come."""
        log.warning("%s settled all pods: %r", call.caller.name, call.body.why)
        return {"pods": self._pods.settle_all()}


def _pod(record: PodRecord) -> Json:
    return asdict(record) | {"stopped": record.stopped or None}
