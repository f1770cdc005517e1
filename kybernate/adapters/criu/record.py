"""What CRIU doesn't keep of a tree, and what its restore must know: a file beside the images."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING

from kybernate.adapters.criu.checks import ipc
from kybernate.adapters.criu.net import addresses, sockets
from kybernate.dataclass import dataclass
from kybernate.errors import RestoreError, UnfitError

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.adapters.criu.checks.descriptors import Opened
    from kybernate.adapters.criu.container import Container

FILE = "kybernate.json"
_FORMAT = 1
_UNREADABLE_S = 30.0
"""Until it is tried again what only a newer release reads."""


@dataclass(frozen=True, slots=True)
class Record:
    """`tree`: number of kyb-tree in the container; `highest`: the highest number in use there.

    `stdio`: what process 1's descriptors 0, 1 and 2 led to. `pinned`: the CPUs of threads that may
    not run where process 1 may, by their numbers in the container. `stopped`: processes that were
    stopped by a signal. `addresses`: those that its sockets are bound to. `first`: bytes of what
    was on its GPUs that also a lazy restore brings in at once. `ipc`: it has System V shared
    memory, and gets a namespace of its own for it. `home`: the container that it is of;
    empty in images of older releases.
    """

    tree: int
    highest: int
    stdio: tuple[str, ...]
    pinned: dict[int, tuple[int, ...]] = field(default_factory=dict)
    stopped: tuple[int, ...] = ()
    addresses: tuple[str, ...] = ()
    first: int = 0
    ipc: bool = False
    home: str = ""

    def write(self, images: Path) -> None:
        """Beside the images, in place of an older one. Raises OSError."""
        beside = images / f"{FILE}.new"
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"format": _FORMAT, **asdict(self)}, file)
        beside.replace(images / FILE)

    @classmethod
    def read(cls, images: Path) -> Record:
        """Raises RestoreError if these are no images of ours, UnfitError if a newer release wrote
        them in a format that this one can't read."""
        try:
            found = json.loads((images / FILE).read_text())
            _see_format(found["format"], images)
            return cls(
                tree=int(found["tree"]),
                highest=int(found["highest"]),
                stdio=tuple(map(str, found["stdio"])),
                pinned={int(at): tuple(map(int, cpus)) for at, cpus in found["pinned"].items()},
                stopped=tuple(map(int, found["stopped"])),
                addresses=tuple(map(str, found["addresses"])),
                first=int(found.get("first", 0)),
                ipc=bool(found.get("ipc", False)),
                home=str(found.get("home", "")),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RestoreError(f"{images / FILE} can't be understood: {error}") from error


def _see_format(written: object, images: Path) -> None:
    if type(written) is not int or written < 1:
        raise ValueError(f"format: {written!r} is no number of a format")
    if written > _FORMAT:
        raise UnfitError(
            f"{images / FILE} has format {written}, and this release reads formats up to "
            f"{_FORMAT}; it is kept: run the release that wrote it, or a newer one, on this node",
            _UNREADABLE_S,
        )


def note_first(images: Path, size: int) -> None:
    """That so many bytes come first. Raises as `Record.read`, OSError."""
    replace(Record.read(images), first=size).write(images)


def take(container: Container, tree: int, opened: Opened | None = None) -> Record:
    """Of a frozen tree. `opened`: what it has open, if that was read before."""
    usual = _cpus(container.init)
    pinned, highest, stopped = {}, container.number_inside(tree), []
    for pid in container.pids():
        if _is_stopped(container, pid):
            stopped.append(container.number_inside(pid))
        for thread in container.threads(pid):
            number = container.number_inside(thread)
            highest = max(highest, number)
            cpus = _cpus(thread)
            if cpus != usual:
                pinned[number] = cpus
    stdio = tuple(_link(container, descriptor) for descriptor in (0, 1, 2))
    return Record(
        tree=container.number_inside(tree),
        highest=highest,
        stdio=stdio,
        pinned=pinned,
        stopped=tuple(stopped),
        addresses=addresses.used(container, sockets.of(container, opened)),
        ipc=ipc.is_in_use(container),
        home=container.home,
    )


def put_back(container: Container, record: Record) -> None:
    """The CPUs of each thread, which are CRIU's own after a restore. CPUs that this node hasn't
    got leave a thread where the container may run."""
    usual = _cpus(container.init)
    for pid in container.pids():
        for thread in container.threads(pid):
            wanted = usual
            if record.pinned:
                wanted = record.pinned.get(container.number_inside(thread), usual)
            if not _pin(thread, wanted):
                _pin(thread, usual)


def _pin(thread: int, cpus: tuple[int, ...]) -> bool:
    try:
        os.sched_setaffinity(thread, cpus)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True


def _cpus(thread: int) -> tuple[int, ...]:
    with suppress(ProcessLookupError):
        return tuple(sorted(os.sched_getaffinity(thread)))
    return ()


def _is_stopped(container: Container, pid: int) -> bool:
    with suppress(OSError):
        stat = (container.proc / str(pid) / "stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[0] == "T"
    return False


def _link(container: Container, descriptor: int) -> str:
    with suppress(OSError):
        return os.readlink(container.proc / str(container.init) / "fd" / str(descriptor))
    return ""
