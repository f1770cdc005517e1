"""What is said to kyb-init, and what kubelet and runtime say of its container."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kybernate.types import Gpu, PodUid


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
        """kyb-init is at the door, again or for the first time."""
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

    def on_turn(self, uid: PodUid, *, wanted: bool) -> None:
        """The workload wants its GPUs until it says otherwise, or gives up its turn."""
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

    async def shut(self, uid: PodUid) -> None:
        """Hang up, without a word to the listener, and let nobody in until `open`. Idempotent."""
        ...

    def go(self, uid: PodUid, generation: int, argv_prefix: Sequence[str]) -> None:
        """Its turn: kyb-init starts the command. Quick."""
        ...

    def refuse(self, uid: PodUid, sentence: str) -> None:
        """It will never get a turn: kyb-init prints the sentence and exits 1. Quick."""
        ...

    def expect(self, uid: PodUid, root: int) -> None:
        """A tree whose root had this number elsewhere is brought there: kyb-init starts nothing,
        and is PARKED soon. Quick. Raises RefusedError if this kyb-init can't."""
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
    environment by its device ID, and only where the mounts lead to is settled here. `pod` is kept
    from the GPUs until `Specs.release`, where that can be done; None: it runs already.
    """

    gpus: tuple[Gpu, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    cdi: bool = True
    pod: PodUid | None = None


class Specs(Protocol):
    """Our CDI files, one per device ID. All block; a file is whole or absent."""

    def write(self, device_id: str, spec: SeatSpec) -> str:
        """Write or replace. Why `spec.pod` is not kept from its GPUs until `release`, or empty.
        Raises RetryableError if the vendor's specification isn't there,
        RefusedError if it doesn't know one of the GPUs; the message says what to do."""
        ...

    def remove(self, device_id: str) -> None:
        """Idempotent."""
        ...

    async def release(
        self,
        device_id: str,
        init: int,
        is_there: Callable[[], bool],
        deadline: float,
        *,
        stays: bool = False,
    ) -> None:
        """Let the container of this process 1 open the device's GPUs, which it can't before where
        that can be kept from it. Idempotent. `is_there`: whether the number still is the process
        that is meant. Raises NotFoundError if it is gone, RetryableError, OSError, DeadlineError
        after so many seconds: what comes of it later is undone, unless it `stays`."""
        ...

    async def shut(
        self, device_id: str, init: int, is_there: Callable[[], bool], deadline: float
    ) -> None:
        """Keep the container of this process 1 from the device's GPUs again, as before its turn.
        Idempotent. Raises as `release`."""
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

    async def digest_of(self, uid: PodUid, container: str) -> str:
        """Of the image that this container of a pod runs, alike on every node. Raises
        NotFoundError, RetryableError (no answer in 2 s)."""
        ...
