"""System V shared memory of a tree: whose it is, and that it goes when the tree does.

CRIU keeps it only with the whole namespace that it is in. So a tree that has some is dumped and
recreated by a CRIU that stands outside the container's: it comes back in a namespace of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.criu.net import network
from kybernate.adapters.kernel import smallfile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kybernate.adapters.criu.container import Container

_TABLES = ("shm", "sem", "msg")
_ATTACHED = re.compile(r"^\S+ \S+ \S+ \S+ (\d+) +/SYSV", re.MULTILINE | re.ASCII)
_REMOVE = 0
_REMOVED = (errno.EINVAL, errno.EIDRM)
"""What is there no more, or goes with the last process that has it."""
_GONE = (FileNotFoundError, ProcessLookupError)

_libc = ctypes.CDLL(None, use_errno=True)


def is_in_use(container: Container) -> bool:
    """Whether the tree has shared memory attached, or a namespace of its own. Mostly there is none
    in the namespace, and no mapping is read."""
    return is_own(container) or bool(_attached(container, _tables(container)["shm"]))


def is_own(container: Container) -> bool:
    """Whether the tree has another namespace than its container: a restore gave it that."""
    tree = container.tree()
    with suppress(*_GONE):
        return tree is not None and _space(container, tree) != _space(container, container.init)
    return False


def problems(container: Container) -> Iterator[str]:
    """Sentences; empty if all that there is in the namespace is the tree's."""
    if is_own(container):
        return
    tables = _tables(container)
    attached = _attached(container, tables["shm"])
    if not attached:
        return
    if tables["sem"] or tables["msg"]:
        yield (
            "Its pod has System V semaphores or message queues beside System V shared memory, and "
            "nobody can tell whose they are: let it use POSIX ones."
        )
    for row in tables["shm"]:
        number, count = int(row[1]), int(row[6])
        if attached[number] != count or not count:
            yield (
                f"System V shared memory ({number}) of its pod is not the tree's alone: only a "
                "container that shares it with no other one can be dumped with it."
            )


def remove(container: Container) -> None:
    """What the tree has attached goes with its last process; so does a namespace of its own. Raises
    OSError."""
    if is_own(container) or not (attached := _attached(container, _tables(container)["shm"])):
        return

    def do() -> None:
        for number in attached:
            if _libc.shmctl(number, _REMOVE, None) and (code := ctypes.get_errno()) not in _REMOVED:
                raise OSError(code, f"System V shared memory {number}: {os.strerror(code)}")

    network.inside(container.init, do, "ipc")


def _tables(container: Container) -> dict[str, list[list[str]]]:
    """The rows of each, as those in the container's namespace see them. Empty if it is gone."""

    def read() -> dict[str, list[list[str]]]:
        texts = {name: smallfile.read(f"/proc/sysvipc/{name}") for name in _TABLES}
        return {
            name: [row.split() for row in text.splitlines()[1:]] for name, text in texts.items()
        }

    with suppress(*_GONE, PermissionError):
        return network.inside(container.init, read, "ipc")
    return {name: [] for name in _TABLES}


def _attached(container: Container, rows: Collection[list[str]]) -> Counter[int]:
    """How often the tree's processes have each segment of these mapped. A file may have such a
    name, too, and its number is none of theirs."""
    found: Counter[int] = Counter()
    for pid in container.pids() if rows else ():
        with suppress(*_GONE):
            maps = smallfile.read(f"{container.proc}/{pid}/maps")
            found.update(int(number) for number in _ATTACHED.findall(maps))
    numbers = {int(row[1]) for row in rows}
    return Counter({number: count for number, count in found.items() if number in numbers})


def _space(container: Container, pid: int) -> str:
    return os.readlink(f"{container.proc}/{pid}/ns/ipc")
