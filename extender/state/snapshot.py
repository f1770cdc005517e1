"""The ledger of the cluster's seats, kept up by two watches and shared by the serving threads.

Everything in here can be lost at any time: the watches bring it back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from extender.pages.dumping import take
from extender.state.histories import Histories
from extender.state.objects import Rules, read_pod
from extender.state.replaced import Replaced
from extender.state.states import States
from kybernate.api.nodeseats import read_gpu_node
from kybernate.core.artifacts.restores import OF_POD
from kybernate.core.ledger.ledger import Claim, Ledger
from kybernate.core.placement import Table
from kybernate.core.placement.mix import Mix, learn
from kybernate.core.placement.verdicts import Fits, Verdicts
from kybernate.core.views.dump import encode
from kybernate.core.views.utilisation import Utilisation
from kybernate.errors import ConflictError, NotFoundError
from kybernate.types import NodeName, PodUid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from extender.state.objects import SeatPod
    from kybernate.core.ledger.ledger import NodeSeats, NodeView
    from kybernate.core.placement import Candidates, Demand, Policy
    from kybernate.core.placement.verdicts import Class
    from kybernate.core.views.utilisation import Figures
    from kybernate.types import GroupName, PodRef

log = logging.getLogger(__name__)

OFFER_S = 5.0
"""Seconds for which a seat stays held that filter has offered: the bind follows within
milliseconds, or not at all if the scheduler finds something else in the way."""

MOST_ENDED = 5000
"""So many pods that have ended count for what is expected."""

BIND_WINDOW = 60.0
"""Seconds after which a bound pod counts as done with Allocate, whatever the agent knows of it."""


class Snapshot:
    """Owner of the ledger. All methods may be called from any thread and return at once."""

    def __init__(
        self,
        clock: Callable[[], float],
        reserve: int = 0,
        table: Table | None = None,
        rules: Rules | None = None,
    ) -> None:
        """`clock` gives seconds; `reserve` is what no seat may use of a GPU, in bytes. `table` has
        the policies by which pods are placed, `rules` say who shares with whom; without them all
        share."""
        self.rules = rules or Rules()
        self._clock = clock
        self._reserve = reserve
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._table = table or Table()
        self._pods: dict[PodUid, SeatPod] = {}
        self._replaced = Replaced(clock)
        self._claimed_at: dict[PodUid, float] = {}
        self._window_ends: dict[NodeName, float] = {}
        self._verdicts = Verdicts(self._ledger, self._current)
        self._use = Utilisation(self._ledger, self._ledger.node)
        self._histories = Histories()
        self._states = States()
        self._ended: deque[Demand] = deque(maxlen=MOST_ENDED)
        self._mix = Mix()

    def pod_event(self, kind: str, item: dict[str, Any]) -> None:
        """Take in an event about a pod, as the API server has it."""
        self.take_pod(kind, self.read_pod(item))

    def read_pod(self, item: dict[str, Any]) -> SeatPod:
        """What a pod asks for under the cluster's rules."""
        return read_pod(item, self.rules)

    def take_pod(self, kind: str, pod: SeatPod) -> None:
        """Take in an event of the watch on pods."""
        with self._lock:
            self._replaced.take(kind, pod)
            if kind == "DELETED" or pod.finished:
                known = self._pods.pop(pod.ref.uid, None)
                if known is not None and known.demand is not None:
                    self._ended.append(known.demand)
                self._claimed_at.pop(pod.ref.uid, None)
                self._ledger.remove_claim(pod.ref.uid)
            elif pod.resource is not None or pod.expendable:
                self._take_in(pod)
            else:
                # It might have been deleted for others, by a word that was taken back.
                self._pods.pop(pod.ref.uid, None)

    def _take_in(self, pod: SeatPod) -> None:
        known = self._pods.get(pod.ref.uid)
        if known is not None and known.node is not None and pod.node is None:
            # We know of its binding before the watch does: this event is from before it.
            return
        self._pods[pod.ref.uid] = pod
        if known is not None and known.seated != pod.seated and pod.node is not None:
            self._ledger.touch(pod.node)
        claim = pod.claim()
        if claim is not None:
            self._ledger.upsert_claim(claim)
            if claim.group is None and (known is None or known.node is None):
                self._warn_unplaced(pod)

    def node_event(self, kind: str, item: dict[str, Any]) -> None:
        """Take in an event about a GPUNode, as the API server has it."""
        self.take_node(kind, self.read_node(item))

    def read_node(self, item: dict[str, Any]) -> NodeSeats:
        """What a GPUNode offers."""
        return read_gpu_node(item, self._reserve)

    def take_node(self, kind: str, seats: NodeSeats) -> None:
        """Take in an event of the watch on GPUNodes."""
        with self._lock:
            if kind == "DELETED":
                self._ledger.remove_node(seats.name)
                self._states.take(seats.name, ())
            else:
                self._ledger.upsert_node(seats)
                self._learn(seats)

    def _learn(self, seats: NodeSeats) -> None:
        self._states.take(seats.name, seats.saved)
        for uid, traffic in seats.traffic.items():
            pod = self._pods.get(uid)
            if pod is not None:
                self._histories.learn(pod.ref.namespace, pod.model, traffic)

    def _expecting(self, uid: PodUid, demand: Demand) -> Demand:
        """The demand with the traffic that the pod's model is known to have, and the copies of the
        state that it wants to continue from."""
        pod = self._pods.get(uid)
        if pod is None:
            return demand
        known = self._histories.of(pod.ref.namespace, pod.model)
        demand = replace(demand, traffic=known) if known else demand
        return self._states.expect(demand, pod.restore)

    def views(
        self, names: Iterable[NodeName], without: PodUid | None = None
    ) -> dict[NodeName, NodeView | None]:
        """The named nodes as of now, in the same order; None for one without a GPUNode.

        They are as they are to the pod `without`: what it holds there is left out.
        """
        with self._lock:
            self._catch_up()
            own = {} if without is None else self._own(without)
            return {name: own.get(name) or self._current(name, without) for name in names}

    def offer(self, pod: PodRef, demand: Demand, names: Sequence[NodeName], most: int = 0) -> Fits:
        """Which of the nodes can take the pod, and why not the others. With `most`, of those that
        can the best ones by the policy, so many of them; of equal ones the first.

        If that is one, the seat that the pod would get there is held for OFFER_S: pods that are
        asked about meanwhile find it taken.
        """
        with self._lock:
            self._catch_up()
            # Where nodes are rated anyhow, none is looked at twice.
            known, own = self._class(pod.uid, demand, rated=bool(most)), self._own(pod.uid)
            best = known.best_node(names) if most == 1 and not own else None
            if best is not None:
                # Nobody reads of a pod that has a node why others have none for it.
                found = Fits([best], {}, {})
            else:
                found = known.fits(names, own)
                if most and found.passed:
                    found = found._replace(passed=known.best_nodes(found.passed, own, most))
            if most == 1 and found.passed:
                self._hold(pod, demand, found.passed[0], known)
            return found

    def _hold(self, pod: PodRef, demand: Demand, node: NodeName, known: Class) -> None:
        view = self._own(pod.uid).get(node) or self._current(node, pod.uid)
        group = known.best(view) if view else None
        claim = Claim(pod, node, group, demand.resource, demand.vram, demand.party)
        # The seat was taken, or the pod was bound, since the call began: who binds will say so.
        with suppress(ConflictError, NotFoundError):
            self._ledger.reserve(claim, self._clock(), OFFER_S, offer=demand)

    def _class(self, pod: PodUid, demand: Demand, *, rated: bool = False) -> Class:
        """The class of the pod's demand, under its policy.

        Pods of all models are of one class, unless rules or policy look at their traffic.
        """
        policy = self._table.of(demand)
        if demand.apart or (rated and policy.foresees):
            demand = self._expecting(pod, demand)
        return self._verdicts.of(demand, policy)

    def expecting(self, pod: PodUid, demand: Demand) -> Demand:
        """The demand with what is known of the traffic of the pod's model."""
        with self._lock:
            return self._expecting(pod, demand)

    def verdicts(
        self, pod: PodUid, demand: Demand, names: Sequence[NodeName]
    ) -> dict[NodeName, Candidates | None]:
        """What is kept of each node for the demand; see `Class.verdicts`."""
        with self._lock:
            self._catch_up()
            return dict(zip(names, self._class(pod, demand).verdicts(names), strict=True))

    def points(self, pod: PodUid, demand: Demand, names: Sequence[NodeName]) -> list[int]:
        """How well each of the nodes suits the pod, 0 to 10, in their order."""
        with self._lock:
            self._catch_up()
            return self._class(pod, demand, rated=True).points(names, self._own(pod))

    def best(
        self, pod: PodUid, demand: Demand, node: NodeName
    ) -> tuple[Candidates, GroupName | None] | None:
        """The node's groups that can take the pod, and the best; None without a GPUNode."""
        with self._lock:
            self._catch_up()
            view = self._own(pod).get(node) or self._current(node, pod)
            if view is None:
                return None
            known = self._class(pod, demand, rated=True)
            return known.candidates(view), known.best(view)

    def _own(self, pod: PodUid) -> dict[NodeName, NodeView]:
        """The nodes that are something else to the pod: the one on which it holds a seat already,
        without that, and those that hold the state from which it wants to continue, with that."""
        known, claim = self._pods.get(pod), self._ledger.claim(pod)
        held = self._states.on_nodes(known.restore) if known and known.restore else {}
        own = {}
        for name in held if claim is None else {**held, claim.node: ()}:
            view = self._current(name, pod)
            if view is not None:
                own[name] = replace(view, holds=held[name]) if name in held else view
        return own

    def _catch_up(self) -> None:
        """Let end what has ended by now."""
        now = self._clock()
        self._ledger.expire(now)
        for name in [name for name, end in self._window_ends.items() if end <= now]:
            del self._window_ends[name]
            self._ledger.touch(name)

    def _current(self, name: NodeName, without: PodUid | None = None) -> NodeView | None:
        view = self._ledger.node(name, without)
        if view is None or not view.seats.by_device_id:
            return view
        waiting = [claim for claim in view.claims if claim.group is not None]
        ends = {claim: end for claim in waiting if (end := self._window_end(claim)) is not None}
        if not ends:
            return view
        if without is None:
            self._window_ends[name] = min(ends.values())
        under_way = frozenset((c.resource, c.group) for c in ends if c.group is not None)
        return replace(view, under_way=under_way)

    def _window_end(self, claim: Claim) -> float | None:
        """Until when the kubelet may be about to give the pod an ID; None if it is not."""
        pod = self._pods.get(claim.pod.uid)
        if pod is not None and pod.seated:
            return None
        end = self._claimed_at.setdefault(claim.pod.uid, self._clock()) + BIND_WINDOW
        return end if self._clock() < end else None

    def follow(self) -> set[NodeName]:
        """A set into which the names of nodes are put as they change; its owner empties it."""
        with self._lock:
            return self._ledger.follow()

    def pod(self, uid: PodUid) -> SeatPod | None:
        """A pod that asks for a seat, or that may be preempted, if the watch has seen it."""
        with self._lock:
            return self._pods.get(uid)

    def stays(self, uid: str, node: str) -> bool:
        """See `evictions.Seen`."""
        with self._lock:
            pod = self._pods.get(PodUid(uid))
            if pod is not None and not pod.leaving:
                return True
            known = self._ledger.node(NodeName(node)) is not None
            return known and not self._states.of(f"{OF_POD}{uid}")

    def replaced(self, namespace: str, succession: str, within: float) -> tuple[SeatPod, ...]:
        """Pods in whose place another one of the succession is made: they are being deleted, or
        their kubelet has ended them in the last `within` seconds, whether they are there or not."""
        with self._lock:
            return self._replaced.of(namespace, succession, within)

    def left_by(self, namespace: str, succession: str, within: float) -> tuple[PodUid, ...]:
        """Pods of the succession that their kubelet has ended in the last `within` seconds, that
        are gone, and of which a node tells an artifact in the object store; the last one last."""
        with self._lock:
            found = self._replaced.gone(namespace, succession, within)
            return tuple(uid for uid in found if self._states.in_store(f"{OF_POD}{uid}"))

    def tells_of(self, uid: str) -> bool:
        """Whether a node tells an artifact of the pod."""
        with self._lock:
            return bool(self._states.of(f"{OF_POD}{uid}"))

    def claim(self, uid: PodUid) -> Claim | None:
        """What the pod holds, bound or reserved."""
        with self._lock:
            self._ledger.expire(self._clock())
            return self._ledger.claim(uid)

    def reserve(self, claim: Claim, ttl: float) -> None:
        """Hold a seat for `ttl` seconds. Raises ConflictError or NotFoundError if it can't be."""
        with self._lock:
            self._ledger.reserve(claim, self._clock(), ttl)
            self._claimed_at[claim.pod.uid] = self._clock()

    def accept(self, uid: PodUid, demand: Demand, node: NodeName, ttl: float) -> Claim | None:
        """Hold for `ttl` seconds what the pod was offered on the node by `offer`, if nothing has
        changed there since. Otherwise None, and the node must be looked at again."""
        with self._lock:
            self._catch_up()
            now = self._clock()
            claim = self._ledger.accept(uid, node, demand, now + ttl)
            if claim is not None:
                self._claimed_at[uid] = now
            return claim

    def release(self, uid: PodUid) -> None:
        """Drop the pod's reservation; what a bound pod holds stays."""
        with self._lock:
            self._ledger.release(uid)
            if not self._ledger.bound(uid):
                self._claimed_at.pop(uid, None)

    def confirm(self, claim: Claim) -> None:
        """The pod was bound as reserved: don't let the reservation end if the watch is late.

        A pod that the watch doesn't know keeps its reservation only: the watch may have seen its
        deletion already, and would not report it again.
        """
        with self._lock:
            pod = self._pods.get(claim.pod.uid)
            if pod is not None:
                bound = replace(pod, node=claim.node, group=claim.group)
                self._pods[claim.pod.uid] = bound
                self._ledger.upsert_claim(claim)

    def figures(self) -> Figures:
        """How full the cluster is. Calls are answered between one part of the nodes and another."""
        left = True
        while left:
            with self._lock:
                left = self._use.refresh()
        with self._lock:
            return self._use.figures()

    def settle(self) -> None:
        """Look at all nodes once, so that the first call needn't."""
        self.figures()
        with self._lock:
            self._verdicts.refresh()

    def demands(self) -> list[Demand]:
        """What all pods ask for that are known, and what those did that ended last."""
        with self._lock:
            pods, ended = tuple(self._pods.values()), tuple(self._ended)
        return [*(pod.demand for pod in pods if pod.demand is not None), *ended]

    def learn(self, mix: Mix) -> None:
        """Expect from now on what this mix tells."""
        made = self._table.made(learn(mix))
        with self._lock:
            self._mix = mix
            self._verdicts.adopt(self._table.take(made))

    def policy(self, demand: Demand) -> Policy:
        """The policy by which the demand is placed, as of now."""
        with self._lock:
            return self._table.of(demand)

    def dump(self, now: str) -> object:
        """All that decisions depend on, as JSON; `kybernate dump` writes it.

        `now` as RFC 3339."""
        with self._lock:
            self._catch_up()
            pods, mix = tuple(self._pods.values()), self._mix
            taken = take(now, self._table, mix, self._ledger, pods, self._expecting)
        return encode(taken)

    def unplaced(self) -> int:
        """How many pods hold a seat of which nobody wrote the group."""
        with self._lock:
            return self._ledger.unplaced()

    def pods(self) -> tuple[SeatPod, ...]:
        """All pods that ask for a seat, or that may be preempted."""
        with self._lock:
            return tuple(self._pods.values())

    def names(self) -> tuple[NodeName, ...]:
        """The nodes with GPUs, sorted."""
        with self._lock:
            return tuple(self._ledger.nodes())

    def nodes(self) -> int:
        """How many nodes with GPUs are known."""
        with self._lock:
            return len(self._ledger)

    @staticmethod
    def _warn_unplaced(pod: SeatPod) -> None:
        log.warning(
            "pod %s (%s) holds a %s on %s without a group: it was bound past the extender, and "
            "the node agent will refuse it",
            *(pod.ref, pod.ref.uid, pod.resource, pod.node),
        )
