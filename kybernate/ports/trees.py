"""The trees of processes that seats are: their freezers, memory, ends and arrivals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kybernate.core.seat.budget import HostMemory, MemoryLevel
    from kybernate.core.swap.traffic import Traffic
    from kybernate.types import PodUid


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


@dataclass(frozen=True, slots=True)
class HeldInit:
    """A kyb-init by its descriptor, which whoever asked for it closes, and the file it runs."""

    pidfd: int
    program: Path


class Inits(Protocol):
    """Which processes are a container's kyb-init, and which only say so. All quick.

    One is held from when it was first seen to be one until it ends; nobody else is taken for it.
    """

    def admit(self, pidfd: int) -> None:
        """Hold this process. Raises RefusedError, saying why, if it is no kyb-init of a container
        on this node, NotFoundError if it has ended."""
        ...

    def there(self, pid: int) -> bool:
        """Whether the process that was admitted by this number has not ended."""
        ...

    def hold(self, pid: int) -> HeldInit:
        """The kyb-init that has this number; one that was never admitted is looked at now. Raises
        as `admit`."""
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

    def pods(self) -> frozenset[PodUid]:
        """Those of which a process runs here, by what the kernel says now. Blocks: it reads of
        every process of the node."""
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

    def hasten(self, handle: str) -> None:
        """Somebody waits for `on_watched`: let it be called soon. Idempotent, quick."""
        ...

    def unwatch(self, handle: str) -> None:
        """Close all duplicates; idempotent, quick."""
        ...

    async def traffic(self, handle: str, deadline: float) -> Traffic:
        """What comes to a tree that runs, now. Raises OSError, DeadlineError."""
        ...
