"""What can be asked: each call with its path, who may make it, and what goes in and comes out.

The application serves this table, and the OpenAPI document is made of it.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.core.artifacts.succession import Asked, PodRecord
from kybernate.errors import RefusedError
from kybernate.types import Tier
from registry.http.callers import Caller, ForbiddenError, Role, check_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from registry.artifacts import Artifacts
    from registry.http.callers import Standing
    from registry.pods import Pods

    Json = dict[str, Any]
    Answer = tuple[Json, int]

log = logging.getLogger(__name__)

READERS = frozenset({Role.AGENT, Role.CONTROLLER, Role.PROXY})
WRITERS = frozenset({Role.AGENT})
OPERATORS = frozenset({Role.AGENT, Role.CONTROLLER})
CONTROLLERS = frozenset({Role.CONTROLLER})


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


class OfNothing(wire.Query):
    """A path without parts."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call, checked: `path`, `query` and `body` are of the route's models."""

    caller: Caller
    path: Any
    query: Any
    body: Any


@dataclass(frozen=True, slots=True)
class Route:
    """`created`: it answers 201 where something is new, else 200. `largest`: bytes of a body, where
    it may be larger than others."""

    name: str
    method: str
    path: str
    summary: str
    roles: frozenset[Role]
    answer: type[BaseModel]
    serve: Callable[[Call], Answer]
    of: type[wire.Query] = OfNothing
    query: type[wire.Query] = wire.Nothing
    body: type[wire.Message] | None = None
    created: bool = False
    largest: int = 0


_ARTIFACT = "/v1/artifacts/{namespace}/{name}"
_POD = "/v1/pods/{namespace}/{uid}"


def routes(artifacts: Artifacts, pods: Pods, standing: Standing) -> tuple[Route, ...]:
    """All calls of the API. `standing` says for which pods an agent may speak."""
    return (
        *_of_artifacts(_ArtifactCalls(artifacts, standing)),
        *_of_pods(_PodCalls(pods, standing)),
    )


def _of_artifacts(calls: _ArtifactCalls) -> tuple[Route, ...]:
    return (
        Route(
            "listArtifacts",
            "GET",
            "/v1/artifacts",
            "Artifacts, newest first, a page at a time.",
            READERS,
            wire.Page,
            calls.page,
            query=wire.Filter,
        ),
        Route(
            "latestArtifact",
            "GET",
            "/v1/latest",
            "The newest artifact of a pod or a model.",
            READERS,
            wire.Entry,
            calls.latest,
            query=wire.Latest,
        ),
        Route(
            "getArtifact",
            "GET",
            _ARTIFACT,
            "One artifact with its copies.",
            READERS,
            wire.Entry,
            calls.get,
            OfArtifact,
        ),
        Route(
            "getSigners",
            "GET",
            f"{_ARTIFACT}/signers",
            "Which nodes' signatures are believed of an artifact: those that wrote it.",
            READERS,
            wire.Signers,
            calls.signers,
            OfArtifact,
        ),
        Route(
            "recordArtifact",
            "PUT",
            _ARTIFACT,
            "A new artifact with its first copy, by the pod's writer. Again changes nothing.",
            WRITERS,
            wire.Entry,
            calls.record,
            OfArtifact,
            body=wire.Recording,
            created=True,
        ),
        Route(
            "reportCopy",
            "PUT",
            f"{_ARTIFACT}/copies",
            "What became of a copy. An agent may speak for its node, and for object stores.",
            WRITERS,
            wire.Entry,
            calls.report,
            OfArtifact,
            body=wire.CopyReport,
        ),
        Route(
            "dropCopy",
            "DELETE",
            f"{_ARTIFACT}/copies",
            "Let a copy go, before its bytes are deleted. Never the last verified one, unless "
            "`forget` says why.",
            OPERATORS,
            wire.Dropped,
            calls.drop,
            OfArtifact,
            wire.Drop,
        ),
    )


def _of_pods(calls: _PodCalls) -> tuple[Route, ...]:
    return (
        Route(
            "getPod",
            "GET",
            _POD,
            "Who may write a pod's states, and who continues from them.",
            READERS,
            wire.Pod,
            calls.get,
            OfPod,
        ),
        Route(
            "takeLease",
            "POST",
            f"{_POD}/lease",
            "The calling agent's node becomes the pod's writer, with a new token.",
            WRITERS,
            wire.Pod,
            calls.lease,
            OfPod,
            body=wire.LeaseWish,
        ),
        Route(
            "renewLease",
            "PUT",
            f"{_POD}/lease",
            "The lease is renewed.",
            WRITERS,
            wire.Pod,
            calls.renew,
            OfPod,
            body=wire.Renewal,
        ),
        Route(
            "giveLeaseBack",
            "DELETE",
            f"{_POD}/lease",
            "The lease ends.",
            WRITERS,
            wire.Pod,
            calls.give_back,
            OfPod,
            wire.OfToken,
        ),
        Route(
            "reportStop",
            "POST",
            f"{_POD}/stop",
            "The pod has stopped, and how that is known: the word of its node's agent, or what "
            "the controller saw in the cluster.",
            OPERATORS,
            wire.Pod,
            calls.stop,
            OfPod,
            body=wire.Stop,
        ),
        Route(
            "claimPod",
            "POST",
            f"{_POD}/claim",
            "One successor, and no other, continues from the pod's artifact.",
            OPERATORS,
            wire.Pod,
            calls.claim,
            OfPod,
            body=wire.Claim,
        ),
        Route(
            "releaseClaim",
            "DELETE",
            f"{_POD}/claim",
            "The claim ends, if its successor is proven to have stopped.",
            OPERATORS,
            wire.Pod,
            calls.release,
            OfPod,
            wire.OfSuccessor,
        ),
        Route(
            "settlePod",
            "POST",
            f"{_POD}/settle",
            "After the database was lost: all claims on this pod are known again.",
            CONTROLLERS,
            wire.Pod,
            calls.settle,
            OfPod,
            body=wire.Settlement,
        ),
        Route(
            "settleAll",
            "POST",
            "/v1/settle",
            "The same for all pods, and for those to come.",
            CONTROLLERS,
            wire.Settled,
            calls.settle_all,
            body=wire.Settlement,
        ),
    )


class _ArtifactCalls:
    def __init__(self, artifacts: Artifacts, standing: Standing) -> None:
        self._artifacts = artifacts
        self._standing = standing

    def page(self, call: Call) -> Answer:
        return self._artifacts.page(call.query), 200

    def latest(self, call: Call) -> Answer:
        return self._artifacts.latest(call.query), 200

    def get(self, call: Call) -> Answer:
        return self._artifacts.get(call.path.id), 200

    def signers(self, call: Call) -> Answer:
        return self._artifacts.signers(call.path.id), 200

    def record(self, call: Call) -> Answer:
        check_node(call.caller, call.body.held.node, "held.node")
        self._standing.check_recording(call.caller, call.path.namespace, call.body.artifact)
        entry, new = self._artifacts.record(call.path.id, call.caller.node, call.body)
        return entry, 201 if new else 200

    def report(self, call: Call) -> Answer:
        check_node(call.caller, call.body.held.node, "held.node")
        told = call.body
        self._standing.check_copy(call.caller, call.path.id, told.held)
        return self._artifacts.report(call.path.id, call.caller.node, told.digest, told.held), 200

    def drop(self, call: Call) -> Answer:
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
        return answer, 200


class _PodCalls:
    def __init__(self, pods: Pods, standing: Standing) -> None:
        self._pods = pods
        self._standing = standing

    def get(self, call: Call) -> Answer:
        return _pod(self._pods.get(call.path.key))

    def lease(self, call: Call) -> Answer:
        node, wish = call.caller.node, call.body
        self._standing.check_pod(call.caller, call.path.key)
        return _pod(self._pods.lease(call.path.key, node, wish.seconds, runs=wish.runs))

    def renew(self, call: Call) -> Answer:
        node, wish = call.caller.node, call.body
        self._standing.check_pod(call.caller, call.path.key)
        return _pod(self._pods.renew(call.path.key, node, wish.token, wish.seconds))

    def give_back(self, call: Call) -> Answer:
        return _pod(self._pods.give_back(call.path.key, call.caller.node, call.query.token))

    def stop(self, call: Call) -> Answer:
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

    def claim(self, call: Call) -> Answer:
        check_node(call.caller, call.body.node, "node")
        if call.body.older and call.caller.role is Role.AGENT:
            raise ForbiddenError(
                f"older: {call.caller.name} can't say that; {keys.CN_CONTROLLER} and people can"
            )
        asked = Asked(**call.body.model_dump())
        self._standing.check_claim(call.caller, call.path.key, asked)
        return _pod(self._pods.claim(call.path.key, asked))

    def release(self, call: Call) -> Answer:
        self._standing.check_line(call.caller, call.path.key)
        return _pod(self._pods.release(call.path.key, call.query.successor))

    def settle(self, call: Call) -> Answer:
        log.warning("%s settled pod %s: %r", call.caller.name, call.path.uid, call.body.why)
        return _pod(self._pods.settle(call.path.key))

    def settle_all(self, call: Call) -> Answer:
        log.warning("%s settled all pods: %r", call.caller.name, call.body.why)
        return {"pods": self._pods.settle_all()}, 200


def _pod(record: PodRecord) -> Answer:
    answer = asdict(record)
    answer["stopped"] = record.stopped or None
    return answer, 200
