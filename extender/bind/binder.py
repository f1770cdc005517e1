"""Binding: choose a group, hold its seat, and tell the API server, once per pod.

The kube-scheduler may give up waiting for a bind that succeeds, and may ask again: the same pod
on the same node is always a success, with the group that was written first. While it is unknown
whether a Binding took effect, its seat stays reserved.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from extender import metrics
from extender.bind.consulted import Consulted
from kybernate import keys
from kybernate.core.artifacts.restores import OF_POD
from kybernate.core.ledger.ledger import Claim
from kybernate.errors import (
    ConflictError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.runtime.lead import Open

if TYPE_CHECKING:
    from collections.abc import Callable

    from extender.bind.cluster import Cluster
    from extender.http.wire import BindArgs
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.core.placement import Demand
    from kybernate.runtime.lead import Fence
    from kybernate.types import GroupName, NodeName, PodUid

log = logging.getLogger(__name__)

PLACES = 16
NOBODY = Consulted()


class Binder:
    """Binds pods; calls for several pods may run side by side."""

    def __init__(  # noqa: PLR0913 - each of them is another part
        self,
        snapshot: Snapshot,
        cluster: Cluster,
        stamp: Callable[[], str],
        ttl: float,
        fence: Fence | None = None,
        consulted: Consulted = NOBODY,
        *,
        places: int = PLACES,
    ) -> None:
        """`stamp` gives the time as RFC 3339; `fence` says when nothing may be begun; `places`: so
        many calls at a time, as more would only be in each other's way, and in filter's.

        `ttl` is for how many seconds a seat stays reserved after a Binding of unknown outcome: more
        than the API server's own limit for a request, which is 60.
        """
        self._snapshot = snapshot
        self._cluster = cluster
        self._stamp = stamp
        self._ttl = ttl
        self._fence = fence or Open()
        self._consulted = consulted
        self._places = threading.BoundedSemaphore(places)
        self._turns: KeyedLocks[NodeName, threading.Lock] = KeyedLocks(threading.Lock)
        self._pods: KeyedLocks[PodUid, threading.Lock] = KeyedLocks(threading.Lock)

    def bind(self, args: BindArgs) -> str:
        """Bind the pod. The empty string is success, else the sentence that says what is wrong."""
        try:
            # A pod has one reservation: a second call must not move it from under the first.
            with self._pods[args.pod.uid], self._places:
                self._bind(args)
        except KybernateError as error:
            log.warning("pod %s was not bound to %s: %s", args.pod, args.node, error)
            return f"pod {args.pod} was not bound to {args.node}: {error}"
        return ""

    def _bind(self, args: BindArgs) -> None:
        # Before anything is looked up: it makes sure that the ledger knows the last leader's work.
        self._fence.check()
        pod = self._pod(args)
        if pod.node is not None:
            _check_bound(pod, args)
            return
        if pod.problem:
            raise RefusedError(pod.problem)
        claim = self._claim(pod, args.node)
        notes = {}
        if claim is not None:
            notes = {keys.ASSIGNED_GROUP: str(claim.group), keys.ASSIGNED_AT: self._stamp()}
            if before := self._consulted.continues(pod):
                notes[keys.RESTORE_FROM] = f"{OF_POD}{before}"
        self._fence.check()
        try:
            with metrics.API_SECONDS.time():
                self._cluster.bind(args.pod, args.node, notes)
        except (ConflictError, RetryableError) as error:
            self._settle(args, error)
            return
        except (NotFoundError, RefusedError):
            self._snapshot.release(args.pod.uid)
            raise
        if claim is not None:
            self._snapshot.confirm(claim)
            log.info("pod %s is bound to %s, group %s", args.pod, args.node, claim.group)

    def _pod(self, args: BindArgs) -> SeatPod:
        """The pod as the watch knows it, or else as the API server does."""
        known = self._snapshot.pod(args.pod.uid)
        return known if known is not None else self._read(args)

    def _read(self, args: BindArgs) -> SeatPod:
        pod = self._snapshot.read_pod(self._cluster.pod(args.pod.namespace, args.pod.name))
        if pod.ref.uid != args.pod.uid:
            raise NotFoundError(
                f"its UID is {pod.ref.uid} now and not {args.pod.uid}: it was deleted and "
                "made again"
            )
        return pod

    def _claim(self, pod: SeatPod, node: NodeName) -> Claim | None:
        """Hold a seat for the pod, if it asks for one."""
        if pod.demand is None:
            return None
        group = self._admitted(pod, node) if pod.gang else self._aimed(pod, node)
        demand = replace(pod.demand, require_group=group) if group else pod.demand
        return self._reserve(pod, demand, node)

    def _aimed(self, pod: SeatPod, node: NodeName) -> GroupName | None:
        """The group that it is to get there, while it fits."""
        target = self._consulted.target(pod)
        if target is None or target.node != node:
            return None
        demand = pod.aimed(target).demand
        found = self._snapshot.best(pod.ref.uid, demand, node) if demand else None
        return demand.require_group if demand and found and found[0].groups else None

    def _admitted(self, pod: SeatPod, node: NodeName) -> GroupName | None:
        self._places.release()
        try:
            return self._consulted.admit(pod, node)
        finally:
            self._places.acquire()

    def _reserve(self, pod: SeatPod, demand: Demand, node: NodeName) -> Claim:
        """Hold a seat: of the group that an earlier try chose, or else of the best one."""
        with self._turns[node]:
            offered = self._snapshot.accept(pod.ref.uid, demand, node, self._ttl)
            if offered is not None:
                return offered
            found = self._snapshot.best(pod.ref.uid, demand, node)
            if found is None:
                raise NotFoundError("no GPUNode tells of its GPUs; see to the node agent there")
            fitting, best = found
            if not fitting.groups:
                raise ConflictError(fitting.reason)
            name = self._reserved(pod, node)
            if name not in {group.name for group in fitting.groups}:
                name = best
            claim = Claim(pod.ref, node, name, demand.resource, demand.vram, demand.party)
            self._snapshot.reserve(claim, self._ttl)
            return claim

    def _reserved(self, pod: SeatPod, node: NodeName) -> GroupName | None:
        earlier = self._snapshot.claim(pod.ref.uid)
        return earlier.group if earlier is not None and earlier.node == node else None

    def _settle(self, args: BindArgs, error: KybernateError) -> None:
        """Find out whether the Binding took effect, now or by an earlier call.

        Returns if the pod is where it should be. Otherwise raises, and keeps the reservation if a
        Binding may still take effect.
        """
        pod = self._read_after(args, error)
        if pod.node is None:
            if isinstance(error, ConflictError):
                self._snapshot.release(args.pod.uid)
            raise error
        claim = pod.claim()
        if claim is not None:
            self._snapshot.confirm(claim)
        _check_bound(pod, args)
        log.info("pod %s is bound to %s already, group %s", args.pod, args.node, pod.group)

    def _read_after(self, args: BindArgs, error: KybernateError) -> SeatPod:
        try:
            return self._read(args)
        except NotFoundError:
            self._snapshot.release(args.pod.uid)
            raise
        except KybernateError:
            # The first error says more, and what is unknown stays reserved.
            raise error from None


def _check_bound(pod: SeatPod, args: BindArgs) -> None:
    if pod.node != args.node:
        raise ConflictError(f"it is bound to {pod.node} already")
