"""Moves that CheckpointPolicies ask for by the load of their pods' GPUs: RebalanceRequests of which
nobody else makes any."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.base.kinds import REBALANCE
from kybernate import keys
from kybernate.api.asked import owned_by
from kybernate.api.rebalances.reading import by_policy
from kybernate.core.policy.balance import BalanceReason, Pod, Scene, Tried, Verdict, balance
from kybernate.core.requests.rebalance import RebalanceReason
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controller.base.cluster import Cluster
    from controller.base.known import Nodes, Requests
    from controller.base.queue import Key
    from kybernate.core.policy.balance import Rule
    from kybernate.core.policy.effective import Policy
    from kybernate.core.requests import rebalance
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_UNSEEN_S = 60.0
"""Seconds for which a request that may have been made counts though no watch has told of it."""


class Balances:
    """Decides which pod of a policy moves, and asks for it. Any thread may ask: a move that one has
    decided on counts for the others before it is asked for. `wall` gives seconds since 1970."""

    def __init__(
        self,
        requests: Requests[rebalance.Request],
        nodes: Nodes,
        cluster: Cluster,
        fence: Fence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._requests = requests
        self._nodes = nodes
        self._cluster = cluster
        self._fence = fence
        self._wall = wall
        self._lock = threading.Lock()
        self._unseen: dict[Key, tuple[float, Tried]] = {}

    def look(self, policy: Policy, rule: Rule, pods: Sequence[Pod]) -> Verdict:
        """Which of these pods of the policy is to move now, once that is asked for. Raises
        KybernateError."""
        self._fence.check()
        loads = {node: self._nodes.load(node) for node in {one.node for one in pods}}
        now = self._wall()
        with self._lock:
            verdict = balance(rule, Scene(policy.uid, pods, loads, self._tried(now)), now)
            if (move := verdict.move) is None:
                return verdict
            body = by_policy(policy, rule, move, now)
            key = policy.namespace, str(body["metadata"]["name"])
            self._unseen[key] = now, Tried(move.pod.name, policy.uid, move.pod.node, 0.0)
        if why := self._ask(policy, key, body, verdict.message):
            log.warning("policy %s/%s: no move: %s", policy.namespace, policy.name, why)
            return replace(verdict, reason=BalanceReason.REFUSED, message=why)
        return verdict

    def _tried(self, now: float) -> list[Tried]:
        """The moves of all policies, those included of which no watch has told yet."""
        self._unseen = {
            key: (at, one)
            for key, (at, one) in self._unseen.items()
            if self._requests.get(key) is None and now < at + _UNSEEN_S
        }
        asked = [_tried(one) for one in self._requests.all() if one.policy]
        return [*asked, *(one for _, one in self._unseen.values())]

    def _ask(self, policy: Policy, key: Key, body: Json, message: str) -> str:
        """Why the move can't be asked for, in a sentence; empty if it is."""
        try:
            made = self._cluster.create(REBALANCE.path(policy.namespace), body)
        except RefusedError as error:
            self._forget(key)
            return f"the move can't be asked for: {error}"
        known = self._requests.get(key)
        if not made and known is not None and known.request.policy != policy.uid:
            self._forget(key)
            return (
                f"the move can't be asked for: RebalanceRequest {key[1]} is there, and not this "
                "policy's; delete it, and see who made it"
            )
        if made:
            self._tell(policy, message)
        return ""

    def _forget(self, key: Key) -> None:
        with self._lock:
            self._unseen.pop(key, None)

    def _tell(self, policy: Policy, message: str) -> None:
        log.info("policy %s/%s: %s", policy.namespace, policy.name, message)
        about = owned_by(keys.CHECKPOINT_POLICY_KIND, policy.name, policy.uid)
        about = {name: about[name] for name in ("apiVersion", "kind", "name", "uid")}
        about["namespace"] = policy.namespace
        self._cluster.say(about, "Rebalancing", message, warning=False)


def _tried(one: rebalance.Request) -> Tried:
    status, node = one.status, one.target.node if one.target else ""
    at = max(status.ended_at, one.created_at) if one.ended else 0.0
    failed = one.ended and status.reason is not RebalanceReason.MOVED
    name, began = f"{one.namespace}/{one.pod}", bool(status.began_at)
    return Tried(name, one.policy, node, at, failed=failed, began=began)
