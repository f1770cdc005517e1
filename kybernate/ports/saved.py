"""Dumps of trees, and the artifacts that they become."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kybernate.core.artifacts.into import Into
    from kybernate.core.artifacts.layout import ObjectInfo
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.ports.gpus import Phases
    from kybernate.types import ArtifactId, PodUid, Tier


class DumpState(StrEnum):
    """What kyb-init, PID 1 of a seat's container, says of the tree below it."""

    RUNNING = "running"
    HOLDING = "holding"
    """The tree is being dumped, ended or recreated: kyb-init takes its end for nothing."""
    PARKED = "parked"
    """The tree was dumped and ended; the container continues without it."""


class Dumper(Protocol):
    """CRIU below kyb-init. `init` is the host PID of PID 1 of the container, `handle` the
    freezer's, `images` a directory of the agent's with mode 0700.

    One call at a time for a seat. Each has a deadline; a dump that passes it is never killed: it
    is left to end, and `state` tells how it did.
    """

    async def check(self, init: int, handle: str, deadline: float) -> tuple[str, ...]:
        """Why this tree can't be dumped, as sentences; empty if nothing is known against it.

        Raises NotFoundError if the container is gone.
        """
        ...

    async def dump(
        self, init: int, handle: str, images: Path, deadline: float, *, continues: bool = False
    ) -> Phases:
        """Write the tree, frozen before and after, without its executing one instruction.

        The images are complete then, and not yet synced. `continues`: the tree will not be ended,
        so that connections which it has not accepted yet may stay its alone.

        Raises DumpRefusedError (untouched and frozen), DumpError (frozen as before unless it is
        `suspect`), DeadlineError.
        """
        ...

    async def end(self, init: int, handle: str, deadline: float) -> None:
        """Commit: kill every process of the tree; the state is PARKED then. Idempotent, also
        after it was cut short."""
        ...

    async def keep(self, init: int, handle: str, deadline: float) -> None:
        """Abort: the tree stands frozen as before the dump, healed of what a killed CRIU left in
        it; a dump that an earlier agent began, and that still runs, is waited for. Idempotent;
        raises DumpError with `suspect` if it can't be healed."""
        ...

    async def restore(
        self,
        init: int,
        handle: str,
        images: Path,
        deadline: float,
        *,
        lazy: bool = False,
        stopped: bool = False,
    ) -> Phases:
        """Recreate the tree in its container; it comes back frozen, and the state is RUNNING.

        Also after a restore that was cut short, whose half-made processes are ended first. With
        `lazy` its memory comes later: `pages_done`. With `stopped` it is stopped by a signal, too,
        so that it doesn't run when it is thawed. Raises RestoreError (the state is PARKED, the
        images are as before; it says whether memory was short), UnfitError (a newer release wrote
        images that this one can't read), DeadlineError.
        """
        ...

    async def pages_done(self, init: int, deadline: float) -> None:
        """Return once all memory of a lazy restore is in; at once after one that wasn't.

        Raises RestoreError if it never comes: the container is killed then. DeadlineError,
        NotFoundError.
        """
        ...

    def state(self, init: int) -> DumpState:
        """Where the tree is, by kyb-init's word. Raises NotFoundError if it is gone; quick."""
        ...


class Gatekeeper(Protocol):
    """Holds TCP back from a pod whose tree is not there, so that it is sent again, not reset.

    `init` is the host PID of any process in the pod's network namespace. What is held back
    outlives the agent: after a restart it shuts again, or opens, by what it finds.
    """

    async def shut(
        self, init: int, on_arrival: Callable[[str], None], deadline: float, port: int = 0
    ) -> None:
        """Drop TCP from and to others from now on; loopback continues. `port`: one where it will
        listen, though no socket of its tree is there to tell; 0: none.

        `on_arrival` is called on the event loop, once and later, with what has arrived in words
        for people. Idempotent: the latest `on_arrival` counts. Raises NotFoundError if the
        process is gone, RefusedError if the network is the node's, OSError, DeadlineError.
        """
        ...

    async def cut(self, init: int, deadline: float) -> None:
        """Nothing passes in or out of the pod's network but loopback, for as long as it lives.

        Idempotent. Raises RefusedError if the network is the node's, NotFoundError if the process
        is gone, OSError, DeadlineError.
        """
        ...

    async def plain(self, init: int, deadline: float) -> None:
        """From now on the pod's network has no MPTCP, which can't be saved: who asks for it takes
        TCP. Sockets that are open stay.

        Idempotent. Raises RefusedError if the network is the node's, NotFoundError if the process
        is gone, OSError, DeadlineError.
        """
        ...

    async def open(self, init: int, deadline: float) -> int:
        """Let TCP pass, and tell of nothing any more; how many packets were dropped, if that is
        known. Idempotent; a namespace that is gone is open. Raises OSError, DeadlineError."""
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """An artifact in one place. `uid`: the pod whose seat it was; `size` in bytes there;
    `verified`: its bytes were read back and were right. `unread`: the disk doesn't give its
    manifest now, so that nobody knows whose it is, nor how large."""

    id: ArtifactId
    uid: PodUid
    size: int
    verified: bool = True
    unread: bool = False


class Vault(Protocol):
    """Artifacts of this node. A *place* is a tier that can be written; an artifact exists in a
    place from the moment on that its signed manifest is there, and not before.

    Errors: NotFoundError (no such artifact there), CorruptError (its bytes are not what its
    manifest says), RefusedError (not signed, or not for this place), RetryableError (the place
    doesn't answer; UnfitError: a newer release wrote it), OSError (the disk refuses, ENOSPC
    included), DeadlineError.
    """

    async def begin(self, uid: PodUid) -> Path:
        """An empty directory, mode 0700, for a dump of this seat; what an earlier dump that was
        not sealed left there is gone. On the file system of the local place."""
        ...

    async def abandon(self, uid: PodUid) -> None:
        """Remove what `begin` gave and nobody sealed. Idempotent."""
        ...

    async def lent(self, uid: PodUid) -> str:
        """Of which artifact this seat was lent images that `fill` is to verify; empty if of none.
        Raises OSError, DeadlineError."""
        ...

    async def begun(self) -> tuple[PodUid, ...]:
        """For whom there is what `begin` gave and nobody has sealed or abandoned, of agents that
        are no more, too. Raises OSError, DeadlineError."""
        ...

    async def seal(self, images: Path, facts: Mapping[str, object], deadline: float) -> ArtifactId:
        """Sync and hash the images, then write the signed manifest: the artifact exists, raw."""
        ...

    async def manifest(self, artifact: ArtifactId, deadline: float) -> Manifest:
        """What is said of it by the first place that has it, signed. Says nothing of whether it may
        be restored anywhere."""
        ...

    async def admit(self, artifact: ArtifactId, into: Into, deadline: float) -> Manifest:
        """What is said of it by the first place that has it, if it may be restored there: its
        signature is trusted, it may be had by the namespace, it needs nothing that the machine
        lacks, its processes may do nothing that the container may not. Raises RefusedError with
        all that stands against it; UnfitError if a seat is parked on it and the machine lacks it
        since."""
        ...

    async def images(self, artifact: ArtifactId, deadline: float, into: Into) -> Path:
        """The directory of an artifact that is raw in the local place, its bytes verified. Raises
        like `admit`."""
        ...

    async def lend(self, artifact: ArtifactId, uid: PodUid, deadline: float, into: Into) -> Path:
        """As `images`, in a directory of this seat's: its memory is not verified yet where it must
        be read, and a restore that begins waits for what `fill` has not seen. Takes the place of
        what `begin` gave, and goes with `abandon`."""
        ...

    async def fill(self, artifact: ArtifactId, uid: PodUid, deadline: float) -> None:
        """Verify the rest of what `lend` gave this seat, what is waited for first. A piece that is
        wrong is taken from another place. Continues from where an earlier call was cut short;
        nothing is to be done where nothing was lent.

        Raises CorruptError if some of it is in no place: what waits for it fails.
        """
        ...

    async def pack(
        self,
        artifact: ArtifactId,
        place: Tier,
        deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Copy it into the place, as chunks that others there share, and verify it there.

        `progress` hears of bytes done. Continues from where an earlier call was cut short.
        """
        ...

    async def fetch(
        self,
        artifact: ArtifactId,
        images: Path,
        deadline: float,
        into: Into,
        progress: Callable[[int], None] | None = None,
        laid_out: Callable[[], None] | None = None,
    ) -> Manifest:
        """Bring its images into a directory, verified, from the fastest place that has it.
        Continues from where an earlier call was cut short; `progress` hears of bytes done. Returns
        its manifest; raises like `admit`.

        `laid_out` is called, by any thread, and not in each case, once a restore may begin, which
        waits for what it needs and has not come: what it reads is verified. If this fails then, so
        does the restore, and what it has made must not run."""
        ...

    async def verify(self, artifact: ArtifactId, place: Tier, deadline: float) -> None:
        """Read it back in this place. Raises as the class says; returns if all is right."""
        ...

    async def drop(self, artifact: ArtifactId, place: Tier, *, forget: str = "") -> None:
        """Remove it from this place. Idempotent. Raises RefusedError for its last verified copy,
        unless `forget` says why nobody needs it any more."""
        ...

    async def ls(self, place: Tier) -> tuple[Sealed, ...]:
        """What is in this place."""
        ...


class Signatures(Protocol):
    """What nodes sign, each by a key of its own. `node`: whose key is here; empty for none's."""

    @property
    def node(self) -> str:
        """See the class."""
        ...

    def sign(self, body: bytes) -> bytes:
        """The body below the line that says which node signs it, and proves its key. Raises
        ConfigError; RetryableError while the node has no certificate."""
        ...

    def opened(self, signed: bytes, what: str) -> tuple[bytes, str] | None:
        """The body, and the node that signed it; None if no node did. Raises RefusedError if it was
        changed, or if the key isn't a node's; LockedError if nobody here knows who proves it."""
        ...


class Objects(Protocol):
    """Objects by key in a store or a folder. All block; several threads may call at once.

    Keys are paths with /, without empty or hidden parts. Errors: RetryableError (no answer in
    time, or no right to it at present), RefusedError (a key that can't be), OSError (the disk
    refuses).
    """

    def put(self, key: str, data: bytes | bytearray | memoryview, *, create: bool = False) -> None:
        """All of it or nothing, and it outlives a power failure when this returns. With `create`
        only where there is none: else raises ConflictError."""
        ...

    def get(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """Its bytes, or `length` of them from `start` on; fewer where it ends before. Raises
        NotFoundError."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """What it is. Raises NotFoundError."""
        ...

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects below `prefix`, which ends with /; may be behind what was put just now."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove them; idempotent."""
        ...

    def new_pack(self, namespace: str) -> str:
        """A name for a pack of the namespace that no pack has, and that the caller may put soon.
        Raises RetryableError."""
        ...

    def expect(self, keys: Sequence[str], of: str) -> None:
        """These will be read, about in this order, for the artifact `of`: who needs leave for each
        may ask for many at once."""
        ...
