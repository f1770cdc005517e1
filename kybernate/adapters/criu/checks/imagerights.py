"""What the images themselves say that a tree may do, against what its container may have.

CRIU gives back what they say, with the node's rights. What else is known of a state was told by
whoever saved it; so the images are read before CRIU starts, also those of a container's own tree.
"""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager, suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError

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
_MODULES = {1: "SELinux", 2: "AppArmor"}
_SEEN = "self/root/sys/kernel/security/apparmor"
"""Below proc: there where CRIU sees the profiles of AppArmor, and so writes them down."""
_LAYERS = "Seccomp_filters"
"""Of a status file, since Linux 5.9."""
_ENDED = 2
_FILTER = 2
_TSYNC = 1
_SPACES = ("pid", "net", "ipc", "uts", "mnt", "user")
"""Not that of time: CRIU gives each tree that it recreates one, for its clocks."""
_MADE = ("mountpoints-*", "userns-*", "tmpfs-*", "autofs-*", "binfmt-misc*", "netdev-*")
"""Images of what CRIU would make again in namespaces of a tree's own."""


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
    threads = _filtered(images, named)
    least = min((mode for mode, _ in threads), default=0)
    yield from beyond(_of_images(cores, least), of_status(status))
    yield from _layers([filters for _, filters in threads], int(status.get(_LAYERS, "0")))
    if any(map(_is_of_old, cores)):
        yield "a process has its seccomp filter as old releases of CRIU wrote it"
    yield from _labels(container, inventory.lsm, [core.thread.creds for core in cores])


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


def _filtered(images: Path, cores: Mapping[str, Core]) -> list[tuple[int, tuple[bytes, ...]]]:
    """The seccomp mode that CRIU gives each thread, and its filters, the oldest first: its own
    image's, unless the filter of its process's first is one for all threads. So CRIU writes it
    where all have the same."""
    filters: Sequence[SeccompFilter] = ()
    if any(core.thread.seccomp_mode == _FILTER for core in cores.values()):
        filters = _read(images / "seccomp.img", _SECCOMP, Seccomp(), _MOST_FILTERS).filters
    found = []
    for process in _all_of(images / "pstree.img", _PSTREE, Process):
        leader = cores.get(f"core-{process.pid}.img", Core())
        if _is_dead(leader):
            continue  # its threads' numbers are whatever lay there
        chain = _chain(leader, filters)
        for_all = bool(chain) and all(one.flags & _TSYNC for one in chain)
        for number in process.threads:
            thread = leader if for_all else cores.get(f"core-{number}.img", Core())
            programs = tuple(one.filter for one in _chain(thread, filters))
            found.append((thread.thread.seccomp_mode, programs))
    return found


def _chain(core: Core, filters: Sequence[SeccompFilter]) -> list[SeccompFilter]:
    """The filters of a thread that lie over each other, the oldest first; none of a chain that
    leads nowhere, or in a circle."""
    found: list[SeccompFilter] = []
    number = core.thread.seccomp_filter if core.thread.seccomp_mode == _FILTER else len(filters)
    while number < len(filters) and len(found) < len(filters):
        found.append(filters[number])
        if not filters[number].HasField("prev"):
            return found
        number = filters[number].prev
    return []


def _layers(threads: Sequence[tuple[bytes, ...]], own: int) -> Iterator[str]:
    """Each process of a container has inherited the filters of its process 1, so that the oldest
    of all are the same. What these are of process 1 no kernel shows without stopping it."""
    least = min(map(len, threads), default=0)
    if least < own:
        yield f"a process has {least} seccomp filters, the container's process 1 {own}"
    elif len({filters[:own] for filters in threads}) > 1:
        yield "the processes differ in the seccomp filters that they have from process 1"


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
        # Of a tree with System V shared memory: CRIU makes it again, with that and nothing else.
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


def _labels(container: Container, lsm: int, creds: Iterable[Creds]) -> Iterator[str]:
    own, kind = _label(container), _MODULES.get(lsm, "security")
    for one in creds if lsm else ():
        if _plain(one.lsm_profile) != own:
            yield f"a process has the {kind} label {one.lsm_profile!r}, the container {own!r}"
        elif _plain(one.lsm_sockcreate) not in ("", own):
            yield f"a process labels its sockets {one.lsm_sockcreate!r}, the container is {own!r}"
    if own and not lsm and os.path.isdir(f"{container.proc}/{_SEEN}"):
        yield f"they name no security profile, and the container has {own!r}"


def _label(container: Container) -> str:
    """Under which AppArmor profile or SELinux label its process 1 is; empty if it is confined by
    neither."""
    with suppress(OSError):
        path = f"{container.proc}/{container.init}/attr/current"
        return _plain(smallfile.read(path).strip("\0\n "))
    return ""


def _plain(label: str) -> str:
    """Without AppArmor's mode; of what isn't confined, nothing."""
    name = label.partition(" (")[0]
    return "" if name == "unconfined" else name


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
