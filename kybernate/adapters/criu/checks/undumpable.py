"""What can't be dumped, found before anything is stopped, and CRIU's own reasons in plain words.

Only descriptors, mappings and namespaces are looked at, as /proc shows them: nothing is asked of
the tree, and no path of its own is opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.criu.checks import imagerights, ipc, rights, watches
from kybernate.adapters.criu.net import sockets
from kybernate.adapters.kernel import smallfile
from kybernate.adapters.kernel.nodespace import see_pods_network
from kybernate.core.artifacts.privileges import beyond
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.adapters.criu.checks.descriptors import Opened
    from kybernate.adapters.criu.container import Container
    from kybernate.core.artifacts.privileges import Privileges

GHOST_LIMIT = 256 << 20
"""Bytes of a deleted file that is still open, up to which it becomes part of the image."""

_KNOWN_KINDS = frozenset({"eventfd", "eventpoll", "inotify", "signalfd", "timerfd", "pidfd"})
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts", "time", "time_for_children")
"""Not every kernel has one of time."""
_OF_TREES = {"ipc": "ipc", "time": "time", "time_for_children": "time"}
_MEMORY_MAJOR = 1
_DEVICES = frozenset({"/dev/tty", "/dev/ptmx", "/dev/pts/ptmx", "/dev/console"})
_TERMINAL = re.compile(r"/dev/(pts/\d+|console)")
_MEMORY_FILES = ("/dev/shm/", "/dev/zero", "/dev/hugepages")  # noqa: S108 - names, not used
_SECRETMEM = "/secretmem (deleted)"
_GPU = re.compile(r"/dev/(nvidia(?!-fs)|simgpu)")
_DIRECT = {
    "/dev/infiniband/": "what an RDMA adapter holds for a process is in no checkpoint; have NCCL "
    "use sockets (NCCL_IB_DISABLE=1), and leave ib out of UCX_TLS",
    "/dev/nvidia-fs": "what GPUDirect Storage holds for a process is in no checkpoint; have cuFile "
    "read as others do (CUFILE_FORCE_COMPAT_MODE=true)",
}
"""Devices that reach into GPU memory, by how their names begin, with why and the way out."""
_MAPPING = re.compile(
    r"^\S+ \S+ \S+ \S+ \d+ +((?:anon_inode:|/dev/|/secretmem).*)$", re.MULTILINE | re.ASCII
)
"""What in a line of maps could stand against a dump."""
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError)

_LOG = (
    ("In-flight connection", "a connection waits to be accepted; it is served first"),
    (
        "on an in-flight socket",
        "what came to a unix socket waits to be accepted; it is served first",
    ),
    ("External socket is used", "a unix socket leads to a process outside the container's tree"),
    ("half of stream unix", "a unix socket leads to a process outside the container's tree"),
    ("Unsupported mapping", "it maps a device or a kind of memory that CRIU doesn't know"),
    ("Can't dump ghost file", "a deleted file that is still open is too large"),
    ("Can't dump that handle", "it watches a folder (inotify) that can't be found again"),
    ("path=/memfd:", "it has a memfd of huge pages; CRIU saves those only where the node has some"),
    ("Can't lookup mount", "it has a file open that lies outside the container's mounts"),
    ("Unsupported", "it holds something that CRIU doesn't know"),
    ("not supported", "it holds something that CRIU doesn't know"),
)


def find(container: Container, opened: Opened, *, own_network: bool = True) -> tuple[str, ...]:
    """Sentences, each once; empty if nothing is known against a dump. `own_network`: its network
    must be its own, as TCP is held back there. Raises NotFoundError."""
    _ = container.state
    found = [
        *_terminal(container),
        *(_network(container) if own_network else ()),
        *_of_processes(container, opened),
        *sockets.problems(container, sockets.of(container, opened)),
        *ipc.problems(container),
        *_watched(container, opened),
    ]
    return tuple(dict.fromkeys(found))


def extra_options(container: Container, opened: Opened) -> list[str]:
    """Options of a dump for what the tree has open: folders that it watches."""
    folders, _ = watches.folders(container, opened)
    options = [word for one in folders for word in ("--irmap-scan-path", one)]
    return ["--force-irmap", *options] if options else []


def from_log(said: list[str]) -> str:
    """Why CRIU refused, if it is of a kind that it always refuses; else empty."""
    for line in said:
        for mark, sentence in _LOG:
            if mark in line:
                return f"The tree can't be dumped: {sentence} ({line.partition('): ')[2] or line})."
    return ""


@dataclass(frozen=True, slots=True)
class _Around:
    """What each process of a tree is held against: its container's namespaces, mounts and message
    queues (device numbers of their file systems), what its process 1 may do, and the agent's
    rights."""

    namespaces: Mapping[str, str]
    devices: frozenset[int]
    queues: frozenset[int]
    container: Privileges
    rights: Mapping[str, str]

    @classmethod
    def of(cls, container: Container) -> _Around:
        """Raises NotFoundError."""
        init = f"{container.proc}/{container.init}"
        try:
            return cls(
                _spaces(container),
                _devices(init),
                _devices(init, "mqueue"),
                imagerights.of_status(rights.read(f"{init}/status")),
                rights.read("/proc/self/status"),
            )
        except (FileNotFoundError, ProcessLookupError) as error:
            raise NotFoundError(f"There is no process {container.init} any more.") from error


def _spaces(container: Container) -> dict[str, str]:
    init, tree = f"{container.proc}/{container.init}", container.tree()
    has = set(os.listdir(f"{init}/ns"))
    found = {name: os.readlink(f"{init}/ns/{name}") for name in _NAMESPACES if name in has}
    if tree is not None:
        # A restore may have given the whole tree one, and gives it one of time.
        for name, own in _OF_TREES.items():
            if name in has:
                found[name] = os.readlink(f"{container.proc}/{tree}/ns/{own}")
    return found


def _of_processes(container: Container, opened: Opened) -> Iterator[str]:
    if not opened:
        return
    around = _Around.of(container)
    for pid, links in opened.items():
        process = f"{container.proc}/{pid}"
        for look in (_stated, _namespaced, _mapped, _opened):
            with suppress(*_GONE):
                for problem in look(process, around, links):
                    yield f"Process {pid} ({_printable(container.name(pid))}) {problem}"


def _network(container: Container) -> Iterator[str]:
    with suppress(*_GONE):
        space = os.open(f"{container.proc}/{container.init}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            see_pods_network(space)
        except RefusedError as error:
            yield f"TCP can't be held back from it alone: {error}."
        finally:
            os.close(space)


def _terminal(container: Container) -> Iterator[str]:
    with suppress(*_GONE):
        path = container.proc / str(container.init) / "fd" / "1"
        if _TERMINAL.fullmatch(os.readlink(path)):
            yield "The container has a terminal, which can't be recreated: leave out `tty: true`."


def _stated(process: str, around: _Around, _: Mapping[int, str]) -> Iterator[str]:
    state = rights.read(f"{process}/status")
    tracer = state.get("TracerPid", "0")
    if tracer != "0":
        yield f"is traced by process {tracer}: detach the debugger."
    yield from rights.lacking(state, around.rights)
    for more in beyond(imagerights.of_status(state), around.container):
        yield f"has come to more than its container began with, and could not get it back: {more}"


def _namespaced(process: str, around: _Around, _: Mapping[int, str]) -> Iterator[str]:
    for name, own in around.namespaces.items():
        if os.readlink(f"{process}/ns/{name}") != own:
            yield f"has a {name} namespace of its own, which can't be dumped in place."
    if _has_left_its_children(process):
        yield "gives its children a pid namespace of their own, which would be lost."


def _has_left_its_children(process: str) -> bool:
    """Whether what it starts next is process 1 of a new namespace: nothing tells that the dump."""
    own = os.readlink(f"{process}/ns/pid")
    try:
        return os.readlink(f"{process}/ns/pid_for_children") != own
    except FileNotFoundError:
        # It has unshared and started nothing yet; or it has just ended.
        return os.readlink(f"{process}/ns/pid") == own


def _mapped(process: str, around: _Around, _: Mapping[int, str]) -> Iterator[str]:
    for match in _MAPPING.finditer(smallfile.read(f"{process}/maps")):
        name = match[1]
        if name.startswith("anon_inode:") or name == _SECRETMEM:
            yield _unknown_kind(name)
        elif name.startswith("/dev/") and not (name.startswith(_MEMORY_FILES) or _GPU.match(name)):
            yield _device(name, "mapped")


def _opened(process: str, around: _Around, links: Mapping[int, str]) -> Iterator[str]:
    for descriptor, target in links.items():
        if target.startswith("anon_inode:"):
            kind = target.removeprefix("anon_inode:").strip("[]")
            if kind not in _KNOWN_KINDS:
                yield _unknown_kind(target)
        elif target == _SECRETMEM and _is_nowhere(f"{process}/fd/{descriptor}", around.devices):
            yield _unknown_kind(target)
        elif target.startswith("/") and not target.startswith("/memfd:"):
            with suppress(FileNotFoundError):
                yield from _file_problem(f"{process}/fd/{descriptor}", target, around.queues)


def _unknown_kind(target: str) -> str:
    kind = _printable(target.removeprefix("anon_inode:").strip("[]/").removesuffix(" (deleted)"))
    return f"uses {kind}, which can't be dumped: switch it off in the workload if you can."


def _is_nowhere(path: str, devices: frozenset[int]) -> bool:
    """Whether what is open is on none of the container's mounts, but the kernel's own."""
    return os.stat(path).st_dev not in devices


def _file_problem(path: str, target: str, queues: frozenset[int]) -> Iterator[str]:
    is_deleted = target.endswith(" (deleted)")
    if not (is_deleted or queues or target.startswith("/dev/")):
        return
    found = os.stat(path)
    shown = _printable(target.removesuffix(" (deleted)"))
    if found.st_dev in queues:
        yield f"has the POSIX message queue {shown} open."
    elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        if not _is_known_device(found, target):
            yield _device(shown, "open")
    elif is_deleted and stat.S_ISREG(found.st_mode):
        if found.st_nlink:
            yield f"has {shown} open, which was deleted but lives on under another name."
        elif found.st_size > GHOST_LIMIT:
            yield (
                f"has the deleted file {shown} of {found.st_size >> 20} MiB open; "
                f"up to {GHOST_LIMIT >> 20} MiB can be dumped."
            )


def _device(name: str, held: str) -> str:
    more = [why for start, why in _DIRECT.items() if name.startswith(start)]
    return f"has the device {_printable(name)} {held}{': ' + more[0] if more else ''}."


def _is_known_device(found: os.stat_result, target: str) -> bool:
    is_memory = stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) == _MEMORY_MAJOR
    return bool(
        is_memory or target in _DEVICES or _TERMINAL.fullmatch(target) or _GPU.match(target)
    )


def _devices(process: str, kind: str = "") -> frozenset[int]:
    """Of its mounts; of those of one kind."""
    found = set()
    for line in smallfile.read(f"{process}/mountinfo").splitlines():
        if f" - {kind}" in line:
            major, minor = line.split()[2].split(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


def _watched(container: Container, opened: Opened) -> Iterator[str]:
    _, lost = watches.folders(container, opened)
    for pid, count in Counter(lost).items():
        yield (
            f"Process {pid} ({_printable(container.name(pid))}) watches {count} files or folders "
            "(inotify) that are not where folders are usually watched."
        )


def _printable(text: str) -> str:
    return "".join(one for one in text if one.isprintable())[:200]
