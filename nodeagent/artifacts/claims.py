"""Which pod of this node succeeds which: by claims in the registry, of which a pod grants one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, PodUid
from nodeagent.artifacts.reports import Kind, Report

if TYPE_CHECKING:
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.ports import Line, Registry
    from kybernate.types import PodRef
    from nodeagent.artifacts.newest import Newest
    from nodeagent.artifacts.reports import ReportQueue
    from nodeagent.seat.node import Node
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat


class Claims:
    """Of the node's seats. Lives on the loop."""

    def __init__(
        self, node: Node, registry: Registry, reports: ReportQueue, newest: Newest
    ) -> None:
        self._node = node
        self._registry = registry
        self._reports = reports
        self._newest = newest

    def tell_again(self) -> None:
        """After a restart: which pods succeed which, to a registry that may have forgotten it."""
        for seat in self._node.seats.values():
            if seat.saved.predecessor and self._node.world.registry is not None:
                pod, uid = seat.identity.pod, PodUid(seat.saved.predecessor)
                self._reports.put(
                    Report(
                        Kind.CLAIMED,
                        pod.namespace,
                        uid,
                        seat.saved.claimed,
                        successor=PodUid(pod.uid),
                    )
                )

    async def claim(
        self, seat: Seat, manifest: Manifest, offloading: Offloading, *, found: bool
    ) -> bool:
        """Have the seat's pod succeed the one whose state it is; whether that one ran here.
        `found`: the state was looked for, rather than handed over.

        Raises RefusedError, RetryableError, ConflictError, DeadlineError, OSError."""
        facts, registry, uid = manifest.facts, self._registry, PodUid(manifest.facts.pod_uid)
        if facts.namespace != seat.identity.pod.namespace:
            raise RefusedError(
                f"{manifest.id} is of namespace {facts.namespace}, and a pod succeeds only one of "
                f"its own; set {keys.RESTORE_AS}: {RestoreAs.TEMPLATE} to start as a copy."
            )
        wish = seat.wishes.restore
        in_place = wish is not None and wish.uid == uid
        line = await self._free(seat.identity.pod, uid, waits=in_place)
        _see_stopped(line, seat.identity.pod, uid)
        if found and line.successor != seat.uid:
            await self._see_newest(seat, manifest, offloading)
        self._newest.see_kept(ArtifactId(manifest.id))
        await registry.claim(facts.namespace, uid, ArtifactId(manifest.id), seat.uid, CALL_S)
        return line.node == self._node.settings.node

    async def claimable(self, pod: PodRef, uid: PodUid) -> ArtifactId:
        """The newest state of the stopped pod `uid`, which this pod may claim unless another one
        does before. Raises RefusedError, RetryableError, NotFoundError, DeadlineError, OSError."""
        offloading = self._node.world.offloading
        if offloading is None:
            raise RefusedError("this node's agent has no CRIU (criu), so it can restore nothing")
        line = await self._free(pod, uid, waits=True)
        artifact = await self._newest.find(offloading, pod.namespace, uid)
        _see_stopped(line, pod, uid)
        return artifact

    async def _free(self, pod: PodRef, uid: PodUid, *, waits: bool) -> Line:
        """Who continues with the state of the pod `uid`: `pod`, or nobody yet. While another one is
        to, that may end before it does, that is waited for if the pod `waits`.

        Raises RefusedError, RetryableError, DeadlineError."""
        line = await self._registry.line(pod.namespace, uid, CALL_S)
        if waits and line.successor not in ("", pod.uid, uid):
            theirs = await self._registry.line(pod.namespace, PodUid(line.successor), CALL_S)
            if not theirs.stopped:
                raise RetryableError(
                    f"pod {line.successor} has the claim on pod {uid}, and nothing proves that it "
                    "has stopped: if it ends before it continues, the claim is free"
                )
            # Its claim may have gone back with its stop, which came after the first look.
            line = await self._registry.line(pod.namespace, uid, CALL_S)
        if line.successor not in ("", pod.uid) or line.ended:
            raise RefusedError(
                f"Pod {line.successor or 'another'} continues with the state of pod {uid} already, "
                f"and a pod has one successor; set {keys.RESTORE_AS}: {RestoreAs.TEMPLATE} to "
                "start as a copy."
            )
        return line

    async def _see_newest(self, seat: Seat, manifest: Manifest, offloading: Offloading) -> None:
        """Raise RetryableError if its pod was to be given the newest state and this is none any
        more, RefusedError if it names an older one."""
        facts, uid = manifest.facts, PodUid(manifest.facts.pod_uid)
        if seat.wishes.restore is not None and seat.wishes.restore.uid == uid:
            await self._newest.see_last(offloading, facts.namespace, uid, manifest.id)
            return
        try:
            newest = await self._newest.find(offloading, facts.namespace, uid)
        except NotFoundError:
            return  # there is none that is newer
        if newest != manifest.id:
            raise RefusedError(
                f"{manifest.id} is older than {newest}, the newest state of pod {uid}, and nobody "
                f"continues from an older one in a pod's place: set {keys.RESTORE_AS}: "
                f"{RestoreAs.TEMPLATE} to start as a copy of it, or {keys.RESTORE_FROM}: pod/{uid}."
            )


def _see_stopped(line: Line, pod: PodRef, uid: PodUid) -> None:
    if line.successor != pod.uid and not line.stopped:
        raise RetryableError(
            f"nothing proves that pod {uid} has stopped: delete it, or have its node's agent move "
            "it"
        )
