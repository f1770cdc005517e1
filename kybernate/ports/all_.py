"""What the node agent asks of the world outside, shaped by the agent that calls it.

Adapters implement these, `kybernate.testing` fakes them. Times are seconds, sizes are bytes,
process IDs are those of the agent's own PID namespace. "Deadline" is always a duration from the
call on; when it passes, `DeadlineError` is raised. Methods marked *quick* may be called on the
event loop: they do no more than a few small reads or writes of /proc, /sys or a local file.
Methods that are neither quick nor `async` block and are called from a worker thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.core.artifacts.layout import ObjectInfo
    from kybernate.core.budget import HostMemory, MemoryLevel
    from kybernate.core.traffic import Traffic
    from kybernate.types import ArtifactId, Gpu, GpuUuid, PodUid, Tier

Phases = Mapping[str, float]
"""Seconds that each phase of an operation took, by its name: lock, checkpoint, restore, unlock."""


class Gpus(Protocol):
    """What NVML says. Any thread may call; a lost GPU raises DriverError."""

    def used(self, gpu: GpuUuid) -> int:
        """Bytes of this GPU's memory that are in use by anyone, now. Raises DriverError."""
        ...

    def processes(self, gpu: GpuUuid) -> tuple[tuple[int, int | None], ...]:
        """(PID, bytes or None if unknown) of each process that holds this GPU. Raises DriverError.

        Processes that the agent's PID namespace can't see are left out.
        """
        ...

    def driver_versions(self) -> tuple[str, str]:
        """(driver version, CUDA version), such as ("580.95.05", "13.0"). Raises DriverError."""
        ...


class ProcessState(StrEnum):
    """The CUDA driver's word on a process."""

    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"
    NO_CUDA = "no-cuda"
    """It is gone, or has no CUDA context."""


class DriverHelper(Protocol):
    """One seat's own subprocess that makes the driver's checkpoint calls and can be killed.

    One call at a time. DriverError carries the driver's own code; after one, the helper has
    already taken back what the driver lets it take back (a lock, a checkpoint), so that
    `states` says where each process really is. After DeadlineError the helper is dead, and so
    is the caller's knowledge: start another, then ask it for `states`.
    """

    async def park(self, pids: Sequence[int], lock_timeout: float, deadline: float) -> Phases:
        """Lock every process, then checkpoint every process: device memory is given back.

        Phases: lock, checkpoint. A lock that times out leaves all RUNNING and raises
        DriverError with code 600.
        """
        ...

    async def wake(
        self, pids: Sequence[int], gpu_map: Mapping[GpuUuid, GpuUuid], deadline: float
    ) -> Phases:
        """Restore every process, unlock every process, see them run. Phases: restore, unlock,
        canary. DriverError also if none of them is left, or one doesn't run after all.

        `gpu_map` (old to new) is empty when the GPUs stay the same. Processes that are LOCKED
        or RUNNING already are taken from where they are, so that a half-done wake or park can
        be finished by it.
        """
        ...

    async def states(self, pids: Sequence[int], deadline: float) -> Mapping[int, ProcessState]:
        """Each process's state; never raises DriverError for one that is gone."""
        ...

    def kill(self) -> None:
        """End the subprocess at once; idempotent, quick."""
        ...


class DriverHelpers(Protocol):
    """Starts helpers by forking a process that has everything imported (about 10 ms each)."""

    async def start(self, uid: PodUid) -> DriverHelper:
        """A live helper for this seat. Raises DriverError if the driver can't be initialised."""
        ...

    def close(self) -> None:
        """End all helpers and the process they are forked from; quick."""
        ...


class Freezer(Protocol):
    """The sub-cgroup of its own in which a seat's tree lives. Handles are paths, as strings.

    A handle stays valid over restarts of the agent. A handle whose cgroup is gone means that no
    process is left: `pids` is empty, `thaw` and `kill` do nothing, `freeze` raises NotFoundError.
    """

    def place(self, tree_pid: int) -> str:
        """Make the sub-cgroup in the container's own, move the process in, return the handle.

        Idempotent, quick. Raises NotFoundError if the process is gone.
        """
        ...

    async def freeze(self, handle: str, deadline: float) -> None:
        """All processes stand still when it returns. On error the tree is left thawed."""
        ...

    def thaw(self, handle: str) -> None:
        """All processes run on; idempotent, quick."""
        ...

    def frozen(self) -> frozenset[str]:
        """Handles of all seats' trees on this node that are frozen or half-way to it; quick."""
        ...

    def pids(self, handle: str) -> tuple[int, ...]:
        """All processes in it, zombies left out; quick."""
        ...

    async def kill(self, handle: str, deadline: float) -> None:
        """Thaw and SIGKILL everything in it, again and again until nothing is left."""
        ...


class Procs(Protocol):
    """/proc. All quick. A process that is gone raises NotFoundError where nothing else is said."""

    def child_of(self, init_pid: int) -> int:
        """PID of kyb-tree, the child of a seat container's PID 1."""
        ...

    def start_time(self, pid: int) -> int:
        """Clock ticks since boot at its start: with the PID it names a process exactly."""
        ...

    def alive(self, pid: int, start_time: int) -> bool:
        """Whether exactly this process exists and is no zombie."""
        ...

    def listening(self, pids: Sequence[int], port: int) -> bool:
        """Whether one of these processes listens on this TCP port, in its network namespace."""
        ...

    def pod_uid_of(self, pid: int) -> PodUid | None:
        """The pod whose cgroup the process is in, None for a process of no pod."""
        ...

    def pid_in_container(self, pid: int) -> int:
        """Its PID in its own PID namespace: the same before a dump and after a restore."""
        ...

    def ending(self, pid: int) -> bool:
        """Whether SIGTERM or SIGKILL is pending for it (a frozen process can't take it), or it
        is gone."""
        ...


class Culprits(Protocol):
    """Processes that are looked at, and ended, for using a GPU. All quick."""

    def name(self, pid: int) -> str:
        """Its short name. Raises NotFoundError if it is gone."""
        ...

    def kill(self, pid: int, start_time: int) -> bool:
        """SIGKILL to exactly this process; whether it was still there."""
        ...


class Memory(Protocol):
    """The host's memory. All quick."""

    def host(self) -> HostMemory:
        """The node's memory now. Raises OSError."""
        ...

    def levels(self, pid: int, need: int) -> tuple[MemoryLevel, ...]:
        """The memory limits over a process, its container's first. Raises NotFoundError.

        Where `need` bytes fit all the same, `used` may count cached file pages too.
        """
        ...

    def oom_kills(self, pid: int) -> int:
        """How many processes of its container the kernel has killed for want of memory, ever.

        Raises NotFoundError.
        """
        ...


class Deaths(Protocol):
    """Tells of processes that end though their tree is frozen. All quick."""

    def watch(
        self, uid: PodUid, pids: Iterable[int], on_death: Callable[[PodUid, int], None]
    ) -> None:
        """`on_death` hears once of the first of these that ends, or has ended already."""
        ...

    def unwatch(self, uid: PodUid) -> None:
        """Nothing more is told of this seat; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class WatchTerms:
    """How a frozen tree's sockets are treated.

    `end_idle`: connections to others on which nobody waits for an answer are reset, so that no
    idle timeout of the tree's can hit a request that came on one. `doubt` as for
    `traffic.outstanding`. `again`: the tree was frozen before, by an agent that was restarted.
    """

    end_idle: bool = True
    doubt: float = 0.0
    again: bool = False


@dataclass(frozen=True, slots=True)
class WatchReport:
    """How a watch began. `unwatched` sockets are not seen; `problem` says why, or is empty.

    `unanswered` are inbound connections whose peer seems to wait for an answer; the same pair
    again means the same request.
    """

    watched: int = 0
    unwatched: int = 0
    ended: int = 0
    unanswered: frozenset[tuple[int, int]] = frozenset()
    problem: str = ""


class Arrivals(Protocol):
    """What arrives at the sockets of a tree, while it is frozen and while it runs.

    Handles are the freezer's. All calls come from one running event loop. While a tree is watched
    its sockets have duplicates here: `unwatch` comes before every thaw and before a dump.
    """

    def watch(
        self,
        handle: str,
        terms: WatchTerms,
        on_arrival: Callable[[str], None],
        on_watched: Callable[[WatchReport], None],
    ) -> None:
        """Begin to watch a tree that is frozen; quick, also what arrived meanwhile is seen.

        `on_watched` is called when all sockets are watched; `on_arrival`, once and later, with
        what has arrived as words for people. Then, and after `unwatch`, neither is called any
        more. What the tree sends to itself, and peers that only close, don't count.
        """
        ...

    def unwatch(self, handle: str) -> None:
        """Close all duplicates; idempotent, quick."""
        ...

    async def traffic(self, handle: str, deadline: float) -> Traffic:
        """What comes to a tree that runs, now. Raises OSError, DeadlineError."""
        ...


class GatePhase(StrEnum):
    """What kyb-init says of itself in its first frame."""

    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class GateHello:
    """kyb-init has connected. `peer_pid` is PID 1 of the container (SO_PEERCRED).

    `generation` is that of the `go` it obeyed, 0 before. `image` says that the pod names no
    command: the entrypoint must come with `go`.
    """

    peer_pid: int
    phase: GatePhase
    generation: int
    image: bool


class CooperationPhase(StrEnum):
    """What a workload is asked to do by itself."""

    PARK = "park"
    """Give back or put aside what it can: it is about to be parked."""
    WAKE = "wake"
    """Take it up again: it has been woken."""


class SeatListener(Protocol):
    """What seat sockets tell; called on the event loop, quick."""

    def on_hello(self, uid: PodUid, hello: GateHello) -> None:
        """kyb-init is at the door, anew or for the first time."""
        ...

    def on_term(self, uid: PodUid, signum: int) -> None:
        """The container was asked to end; kyb-init waits up to 2 s for `ok`."""
        ...

    def on_exit(self, uid: PodUid, code: int) -> None:
        """PID 1 is about to exit with this status."""
        ...

    def on_lost(self, uid: PodUid) -> None:
        """The connection of PID 1 is closed."""
        ...

    def on_status(self, uid: PodUid) -> tuple[str, str]:
        """(state, sentence) for `kyb-init status` in the container."""
        ...

    def on_probe(self, uid: PodUid) -> str:
        """`run`, `alive` or `dead`, for `kyb-init probe`."""
        ...

    def on_progress(self, uid: PodUid, sentence: str) -> None:
        """The workload's sidecar says how far it is; at most a few times a second."""
        ...


class SeatDoors(Protocol):
    """Each seat's socket: the one a caller comes through says which seat it speaks for.

    Frames from a peer that isn't in the seat's pod (peer PID, its cgroup) are refused. Sending
    to a seat without a connection does nothing: kyb-init says hello again when it is back.
    """

    def listen(self, listener: SeatListener) -> None:
        """Who is told; once, before the first `open`."""
        ...

    async def open(self, uid: PodUid) -> Path:
        """Make the seat's folder and socket and serve it; returns the folder. Idempotent."""
        ...

    async def close(self, uid: PodUid) -> None:
        """Close, and remove the folder. Idempotent."""
        ...

    def go(self, uid: PodUid, generation: int, argv_prefix: Sequence[str]) -> None:
        """Its turn: kyb-init starts the command. Quick."""
        ...

    def refuse(self, uid: PodUid, sentence: str) -> None:
        """It will never get a turn: kyb-init prints the sentence and exits 1. Quick."""
        ...

    def ok(self, uid: PodUid) -> None:
        """Answer to `term`: the agent has done what it had to. Quick."""
        ...

    def tell(self, uid: PodUid, state: str, sentence: str) -> None:
        """What the seat is doing: kyb-init answers probes by it, also while the agent is away.
        Told before the act that it announces. A kyb-init that connects is told by itself. Quick."""
        ...

    async def cooperate(self, uid: PodUid, phase: CooperationPhase, limit: float) -> str:
        """Have the workload's sidecar make it do its part; why it didn't, or "" if it did or has
        none to do. Answers within `limit` (s), and at once where nobody cooperates."""
        ...


@dataclass(frozen=True, slots=True)
class SeatSpec:
    """What a container gets through CDI. `mounts`: path in the container to path on the host.

    Mounts are read-only binds. The vendor's device nodes and libraries of exactly these GPUs
    are added from the vendor's own specification. Without `cdi` the container gets GPUs and
    environment by its device ID, and only where the mounts lead to is settled here.
    """

    gpus: tuple[Gpu, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    cdi: bool = True


class Specs(Protocol):
    """Our CDI files, one per device ID. All block; a file is whole or absent."""

    def write(self, device_id: str, spec: SeatSpec) -> None:
        """Write or replace. Raises RetryableError if the vendor's specification isn't there,
        RefusedError if it doesn't know one of the GPUs; the message says what to do."""
        ...

    def remove(self, device_id: str) -> None:
        """Idempotent."""
        ...

    def ids(self) -> frozenset[str]:
        """Device IDs that have a file."""
        ...


@dataclass(frozen=True, slots=True)
class Holder:
    """A container that the kubelet gave devices."""

    namespace: str
    pod: str
    container: str


class PodResources(Protocol):
    """The kubelet's pod-resources API. RetryableError when it doesn't answer in 2 s."""

    async def holder(self, resource: str, device_ids: Sequence[str]) -> Holder:
        """Who holds exactly these devices. Raises NotFoundError while the kubelet lists no one."""
        ...

    async def held(self) -> Mapping[str, Holder]:
        """Every device ID of a seat resource that is held, and its holder."""
        ...


@dataclass(frozen=True, slots=True)
class ImageCommand:
    """ENTRYPOINT and CMD of an image."""

    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]


class Images(Protocol):
    """The container runtime's word on images."""

    async def command_of(self, image: str) -> ImageCommand:
        """`image` as a container's status or spec names it. Raises NotFoundError, RetryableError
        (no answer in 2 s)."""
        ...


class DumpState(StrEnum):
    """What kyb-init, PID 1 of a seat's container, says of the tree below it."""

    RUNNING = "running"
    HOLDING = "holding"
    """The tree is being dumped, ended or recreated: kyb-init takes its end for nothing."""
    PARKED = "parked"
    """The tree was dumped and ended; the container goes on without it."""


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

    async def dump(self, init: int, handle: str, images: Path, deadline: float) -> Phases:
        """Write the tree, frozen before and after, without its executing one instruction.

        The images are complete then, and not yet synced. Raises DumpRefusedError (untouched and
        frozen), DumpError (frozen as before unless it is `suspect`), DeadlineError.
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
        self, init: int, handle: str, images: Path, deadline: float, *, lazy: bool = False
    ) -> Phases:
        """Recreate the tree in its container; it comes back frozen, and the state is RUNNING.

        Also after a restore that was cut short, whose half-made processes are ended first. With
        `lazy` its memory comes later: `pages_done`. Raises RestoreError (the state is PARKED, the
        images are as before), DeadlineError.
        """
        ...

    async def pages_done(self, init: int, deadline: float) -> None:
        """Return once all memory of a lazy restore is in; at once after one that wasn't."""
        ...

    def state(self, init: int) -> DumpState:
        """Where the tree is, by kyb-init's word. Raises NotFoundError if it is gone; quick."""
        ...


class Gatekeeper(Protocol):
    """Holds TCP back from a pod whose tree is not there, so that it is sent again, not reset.

    `init` is the host PID of any process in the pod's network namespace. What is held back
    outlives the agent: after a restart it shuts again, or opens, by what it finds.
    """

    async def shut(self, init: int, on_arrival: Callable[[str], None], deadline: float) -> None:
        """Drop TCP from and to others from now on; loopback goes on.

        `on_arrival` is called on the event loop, once and later, with what has arrived in words
        for people. Idempotent: the latest `on_arrival` counts. Raises NotFoundError if the
        process is gone, OSError, DeadlineError.
        """
        ...

    async def open(self, init: int, deadline: float) -> None:
        """Let TCP pass, and tell of nothing any more. Idempotent; a namespace that is gone is
        open. Raises OSError, DeadlineError."""
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """A saved state in one place. `uid`: the pod whose seat it was; `size` in bytes there;
    `verified`: its bytes were read back and were right."""

    id: ArtifactId
    uid: PodUid
    size: int
    verified: bool = True


class Vault(Protocol):
    """Saved states of this node. A *place* is a tier that can be written; an artifact exists in a
    place from the moment on that its signed manifest is there, and not before.

    Errors: NotFoundError (no such artifact there), CorruptError (its bytes are not what its
    manifest says), RefusedError (not signed, or not for this place), RetryableError (the place
    doesn't answer), OSError (the disk refuses, ENOSPC included), DeadlineError.
    """

    async def begin(self, uid: PodUid) -> Path:
        """An empty directory, mode 0700, for a dump of this seat; what an earlier dump that was
        not sealed left there is gone. On the file system of the local place."""
        ...

    async def abandon(self, uid: PodUid) -> None:
        """Remove what `begin` gave and nobody sealed. Idempotent."""
        ...

    async def seal(self, images: Path, facts: Mapping[str, object], deadline: float) -> ArtifactId:
        """Sync and hash the images, then write the signed manifest: the artifact exists, raw."""
        ...

    async def images(self, artifact: ArtifactId, deadline: float) -> Path:
        """The directory of an artifact that is raw in the local place, its bytes verified."""
        ...

    async def pack(
        self,
        artifact: ArtifactId,
        place: Tier,
        deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Copy it into the place, as chunks that others there share, and verify it there.

        `progress` hears of bytes done. Goes on from where an earlier call was cut short.
        """
        ...

    async def fetch(self, artifact: ArtifactId, images: Path, deadline: float) -> None:
        """Bring its images into a directory, verified, from the fastest place that has it. Goes
        on from where an earlier call was cut short."""
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


class Objects(Protocol):
    """Objects by key in a store or a folder. All block; several threads may call at once.

    Keys are paths with /, without empty or hidden parts. Errors: RetryableError (no answer in
    time), RefusedError (no right to it, or a key that can't be), OSError (the disk refuses).
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


class Journal(Protocol):
    """Records by key that survive the process, and the machine where `synced` is asked for."""

    def load(self) -> Mapping[str, Mapping[str, object]]:
        """The last whole record of each key; what a crash cut off at the end counts as unwritten.
        Blocks; called once, before the first `put`."""
        ...

    def put(self, key: str, record: Mapping[str, object], *, synced: bool) -> Awaitable[None]:
        """Records are written in the order of the calls; the call itself is quick and only
        queues. Once the answer is awaited it is written, and with `synced` it and all before it
        are on the disk. The answer raises OSError if the disk refuses."""
        ...

    def delete(self, key: str) -> Awaitable[None]:
        """Forget the key; idempotent, queued like `put`."""
        ...

    def close(self) -> None:
        """Finish writing and close the file."""
        ...


class KubeApi(Protocol):
    """The API server; calls block up to `timeout`. Errors by the next step, see `errors`."""

    def get(
        self, path: str, params: Mapping[str, str] | None = None, *, timeout: float = 10.0
    ) -> Any:
        """Read an object or list."""
        ...

    def post(self, path: str, body: object, *, timeout: float = 10.0) -> Any:
        """Create."""
        ...

    def patch(
        self,
        path: str,
        body: object,
        kind: str = "merge",
        params: Mapping[str, str] | None = None,
        *,
        timeout: float = 10.0,
    ) -> Any:
        """Change; `kind` is merge, strategic, json or apply."""
        ...
