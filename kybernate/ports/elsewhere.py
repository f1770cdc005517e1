"""What lies beyond this node: the registry of artifacts, and other nodes' agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import ArtifactId, NodeName, PodRef, PodUid, Tier


@dataclass(frozen=True, slots=True)
class Line:
    """Who continues with a pod's state. `node`: where it runs; `stopped`: the proof that it did, or
    empty; `successor`: the pod that holds the claim, and `artifact` what it continues from, empty
    once its node needs that no more and people keep it;
    `ended`: nobody may continue from it any more; `settled`: all claims on it are known."""

    node: str = ""
    stopped: str = ""
    successor: str = ""
    artifact: str = ""
    ended: bool = False
    settled: bool = True


class Registry(Protocol):
    """Which artifacts there are and where, who writes a pod's and who continues with them.

    It speaks for this node. Every call may be made again. Errors: NotFoundError (it knows nothing
    of that), ConflictError (the world is another than the caller thought; the sentence says which),
    RefusedError (never right as it stands), DeadlineError (no answer in time: whether it took
    effect is unknown).
    """

    async def lease(self, namespace: str, uid: PodUid, seconds: float, deadline: float) -> int:
        """Become the writer of the states of a pod that runs here; the token."""
        ...

    async def record(
        self,
        manifest: Manifest,
        tier: Tier,
        token: int,
        deadline: float,
        *,
        person_hold: bool = False,
    ) -> None:
        """A new state is sealed and verified in this tier of the node. `person_hold`: people keep
        that copy; the state may be known already."""
        ...

    async def report(
        self, manifest: Manifest, tier: Tier, deadline: float, *, verified: bool = True
    ) -> None:
        """It is in this tier, too; on its way there without `verified`."""
        ...

    async def drop(
        self, artifact: ArtifactId, tier: Tier, deadline: float, *, forget: str = ""
    ) -> None:
        """Nobody may count on that copy any more; said before its bytes go. One that isn't known is
        none. ConflictError: the last verified one goes only if `forget` says why."""
        ...

    async def stop(self, namespace: str, uid: PodUid, why: str, deadline: float) -> None:
        """The pod's processes here are ended, or given up, and never continue."""
        ...

    async def claim(
        self,
        namespace: str,
        uid: PodUid,
        artifact: ArtifactId,
        successor: PodUid,
        deadline: float,
        *,
        again: bool = False,
    ) -> None:
        """`successor`, which is here, continues with this state of the pod `uid`, and nobody else.
        `again`: it was granted before, and the registry may have lost its database since."""
        ...

    async def hand_back(
        self, namespace: str, uid: PodUid, successor: PodUid, deadline: float
    ) -> None:
        """`successor`, whose processes here are ended, never continued with the state of the pod
        `uid`: the claim is the next one's. ConflictError, RefusedError: it holds none, or the
        registry, of 0.2.0, wants to be told of its stop before."""
        ...

    async def line(self, namespace: str, uid: PodUid, deadline: float) -> Line:
        """Who continues with the pod's state, as of now."""
        ...

    async def newest(self, namespace: str, uid: PodUid, deadline: float) -> ArtifactId:
        """The pod's newest state with a verified copy, wherever that is."""
        ...


@dataclass(frozen=True, slots=True)
class Handover:
    """`pod`, whose seat is here, leaves its GPUs; `successor`, of the same namespace, waits on
    `node`, which may be this one, to continue with its state."""

    pod: PodRef
    successor: PodRef
    node: NodeName


class Peers(Protocol):
    """Agents to which states go: of other nodes, and this one, for moves within its node.

    Every call may be made again when its answer was lost, also by the next agent here. Errors:
    RefusedError (the successor doesn't take it: the sentence says why), NotFoundError, CorruptError
    (what arrived there is not what was sealed here), RetryableError (no answer, or none that is
    understood), DeadlineError, OSError.
    """

    async def find(self, namespace: str, name: str, deadline: float) -> tuple[PodRef, NodeName]:
        """The pod of this name, and its node. RefusedError if it is on none yet."""
        ...

    async def expect(self, handover: Handover, deadline: float, *, size: int = 0) -> None:
        """Returns if the successor is there, holds a seat and waits for this pod's state, and its
        node has room for about so many bytes."""
        ...

    async def stage(self, handover: Handover, artifact: ArtifactId, deadline: float) -> int:
        """Bring the blocks of a state of before, which is sealed here, to the successor's node, in
        advance; how many bytes travelled. What is there already doesn't travel again."""
        ...

    async def follow(
        self, handover: Handover, images: Path, dumped: asyncio.Event, deadline: float
    ) -> int:
        """Send a dump while it is being written into `images`, and return once all of it is there;
        how many bytes travelled. `dumped` is set when nothing more is written."""
        ...

    async def deliver(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """What was followed is sealed here as `artifact`. Returns once it is verified and sealed
        there, too; what was lost on the way is sent again."""
        ...

    async def let_continue(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """Its tree here is ended for good. Returns once the successor is known to continue with it,
        over restarts of its agent; RefusedError: it never will."""
        ...

    async def call_off(self, handover: Handover, deadline: float) -> None:
        """Nothing comes of it, since the pod continues here: what was received there may go."""
        ...
