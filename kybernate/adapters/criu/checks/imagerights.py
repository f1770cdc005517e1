"""What the images themselves say that a tree may do, against what its container may have.

CRIU gives back what they say, with the node's rights. What else is known of a state was told by
whoever saved it; so the images are read before CRIU starts, also those of a container's own tree.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager, suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kybernate.adapters.criu.checks import rights
from kybernate.adapters.criu.record import Record
from kybernate.adapters.kernel import smallfile
from kybernate.core.artifacts.privileges import Privileges, beyond
from kybernate.errors import RestoreError
from kybernate.gen.criuimages_pb2 import Core, Inventory, Namespaces, Process, Seccomp

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from io import BufferedReader

    from kybernate.adapters.criu.container import Container
    from kybernate.gen.criuimages_pb2 import Creds, SeccompFilter

M = TypeVar("M", Core, Inventory, Namespaces, Process, Seccomp)

_WORD = struct.Struct("<I")
_COMMON = (0x54564319, 0x55105940)
_INVENTORY, _CORE, _IDS = 0x58313116, 0x55053847, 0x54432030
_PSTREE, _SECCOMP = 0x50273030, 0x64413049
_MOST = 1 << 20
"""Bytes of one message: a core with all registers takes some KiB."""
_MOST_FILTERS = 1 << 26
"""Each process's are there once more, with some KiB for those of a container runtime."""
_APPARMOR = 2
_ENDED = 2
_FILTER = 2
_TSYNC = 1
_SPACES = ("pid", "net", "ipc", "uts", "mnt", "user")
"""Not that of time: CRIU gives each tree that it recreates one, for its clocks."""
_MADE = ("mountpoints-*", "userns-*", "tmpfs-*", "autofs-*", "binfmt-misc*", "netdev-*")
"""Images of what CRIU would make anew in namespaces of a tree's own."""


def check(container: Container, images: Path) -> None:
    """Raises RestoreError if the images give a tree more than the container has; OSError."""
    found = next(problems(container, images), "")
    if found:
        why = f"the images say more than the container may have: {found}"
        raise RestoreError(why, refused=True)


def problems(container: Container, images: Path) -> Iterator[str]:
    """Sentences. Raises RestoreError of images that can't be understood, OSError."""
    inventory = _read(images / "inventory.img", _INVENTORY, Inventory())
    named = {path.name: _read(path, _CORE, Core()) for path in sorted(images.glob("core-*.img"))}
    cores = [core for core in named.values() if not _is_dead(core)]
    if not cores or not all(core.thread.HasField("creds") for core in cores):
        raise RestoreError(f"{images} has no process, or one of which it says too little")
    yield from _namespaces(images, inventory, cores)
    status = rights.read(f"{container.proc}/{container.init}/status")
    yield from beyond(_of_images(cores, _least_filtered(images, named)), of_status(status))
    if any(map(_is_of_old, cores)):
        yield "a process has its seccomp filter as old releases of CRIU wrote it"
    if inventory.lsm == _APPARMOR:
        yield from _profiles(container, (core.thread.creds for core in cores))


def of_status(status: Mapping[str, str]) -> Privileges:
    """What a process may do, but for its mounts, by its status file (`rights.read`)."""

    def ids(*names: str) -> tuple[int, ...]:
        return tuple(sorted({int(one) for name in names for one in status.get(name, "").split()}))

    return Privileges(
        uids=ids("Uid"),
        gids=ids("Gid", "Groups"),
        permitted=int(status.get("CapPrm", "0"), 16),
        effective=int(status.get("CapEff", "0"), 16),
        inheritable=int(status.get("CapInh", "0"), 16),
        ambient=int(status.get("CapAmb", "0"), 16),
        bounding=int(status.get("CapBnd", "0"), 16),
        seccomp=int(status.get("Seccomp", "0")),
        no_new_privs=status.get("NoNewPrivs") == "1",
    )


def _is_dead(core: Core) -> bool:
    """Nothing runs as it says. CRIU looks at the state of a process's first thread only."""
    return bool(core.task.state == _ENDED and not core.HasField("thread"))


def _is_of_old(core: Core) -> bool:
    return any(map(core.task.HasField, ("old_seccomp_mode", "old_seccomp_filter")))


def _least_filtered(images: Path, cores: Mapping[str, Core]) -> int:
    """The least seccomp mode that CRIU gives any thread: its own image's, unless the filter of its
    process's first is one for all threads. So CRIU writes it where all have the same."""
    filters: Sequence[SeccompFilter] = ()
    if any(core.thread.seccomp_mode == _FILTER for core in cores.values()):
        filters = _read(images / "seccomp.img", _SECCOMP, Seccomp(), _MOST_FILTERS).filters
    modes = []
    for process in _all_of(images / "pstree.img", _PSTREE, Process):
        leader = cores.get(f"core-{process.pid}.img", Core())
        if _is_dead(leader):
            continue  # its threads' numbers are whatever lay there
        first = leader.thread
        for_all = first.seccomp_mode == _FILTER and _is_for_all(first.seccomp_filter, filters)
        for number in process.threads:
            mode = cores.get(f"core-{number}.img", Core()).thread.seccomp_mode
            modes.append(_FILTER if for_all else mode)
    return min(modes, default=0)


def _is_for_all(number: int, filters: Sequence[SeccompFilter]) -> bool:
    """Whether each of those that lie over each other, from this one on, is for all threads."""
    for _ in filters:
        if number >= len(filters) or not filters[number].flags & _TSYNC:
            return False
        if not filters[number].HasField("prev"):
            return True
        number = filters[number].prev
    return False


def _of_images(cores: Collection[Core], seccomp: int) -> Privileges:
    creds = [core.thread.creds for core in cores]

    def union(words: Iterable[Sequence[int]]) -> int:
        return reduce(or_, map(_mask, words), 0)

    return Privileges(
        uids=_all((one.uid, one.euid, one.suid, one.fsuid) for one in creds),
        gids=_all((one.gid, one.egid, one.sgid, one.fsgid, *one.groups) for one in creds),
        permitted=union(one.cap_prm for one in creds),
        effective=union(one.cap_eff for one in creds),
        inheritable=union(one.cap_inh for one in creds),
        ambient=union(one.cap_amb for one in creds),
        bounding=union(one.cap_bnd for one in creds),
        seccomp=seccomp,
        no_new_privs=all(one.no_new_privs for one in creds),
    )


def _all(numbers: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted({number for some in numbers for number in some}))


def _mask(words: Sequence[int]) -> int:
    return sum(word << 32 * at for at, word in enumerate(words))


def _namespaces(images: Path, inventory: Inventory, cores: Iterable[Core]) -> Iterator[str]:
    paths = sorted(images.glob("ids-*.img"))
    found = [core.namespaces for core in cores if core.HasField("namespaces")]
    found += [_read(path, _IDS, Namespaces()) for path in paths]
    spaces = list(_SPACES)
    if Record.read(images).ipc:
        # Of a tree with System V shared memory: CRIU makes it anew, with that and nothing else.
        # CRIU itself is not in the container's then, and so who is in CRIU's own isn't either.
        spaces.remove("ipc")
        ipcs = {one.ipc for one in found}
        if len(ipcs) != 1 or ipcs & {0, inventory.own.ipc}:
            yield "the processes are not all in one ipc namespace of their own"
    for one in found:
        for name in spaces:
            if getattr(one, name) != getattr(inventory.own, name):
                yield f"a process has a {name} namespace of its own"
    for pattern in _MADE:
        for path in images.glob(f"{pattern}.*"):
            yield f"{path.name} tells CRIU to make what only a node may"


def _profiles(container: Container, creds: Iterable[Creds]) -> Iterator[str]:
    own = ""
    with suppress(OSError):
        own = smallfile.read(f"{container.proc}/{container.init}/attr/current").strip("\0\n ")
    own = own.partition(" (")[0]
    for one in creds:
        if one.lsm_profile.partition(" (")[0] != ("" if own == "unconfined" else own):
            yield f"a process has the AppArmor profile {one.lsm_profile!r}, the container {own!r}"


def _read(path: Path, magic: int, message: M, most: int = _MOST) -> M:
    """The first message of an image. Raises RestoreError if it is none, OSError."""
    with _opened(path, magic) as file:
        return _next(file, message, most)


def _all_of(path: Path, magic: int, kind: type[M]) -> Iterator[M]:
    """All messages of an image. Raises RestoreError if it is none, OSError."""
    with _opened(path, magic) as file:
        while file.peek(1):
            yield _next(file, kind(), _MOST)


@contextmanager
def _opened(path: Path, magic: int) -> Iterator[BufferedReader]:
    with path.open("rb") as file:
        found = _word(file.read(_WORD.size))
        if found in _COMMON:
            found = _word(file.read(_WORD.size))
        if found != magic:
            raise RestoreError(f"{path.name} is no image of CRIU's, or is cut off")
        yield file


def _next(file: BufferedReader, message: M, most: int) -> M:
    name = Path(file.name).name
    size = _word(file.read(_WORD.size))
    data = file.read(size) if 0 <= size <= most else b""
    if len(data) != size:
        raise RestoreError(f"{name} is no image of CRIU's, or is cut off")
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RestoreError(f"{name} can't be understood: {error}") from error
    return message


def _word(data: bytes) -> int:
    return int(_WORD.unpack(data)[0]) if len(data) == _WORD.size else -1
