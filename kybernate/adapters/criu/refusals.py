"""What can't be dumped, found before anything is stopped, and CRIU's own reasons in plain words.

Only descriptors, mappings and namespaces are looked at, as /proc shows them: nothing is asked of
the tree, and no path of its own is opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters import smallfile

from . import rights, sockets, watches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .container import Container

GHOST_LIMIT = 256 << 20
"""Bytes of a deleted file that is still open, up to which it becomes part of the image."""

_KNOWN_KINDS = frozenset({"eventfd", "eventpoll", "inotify", "signalfd", "timerfd", "pidfd"})
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_MEMORY_MAJOR = 1
_DEVICES = frozenset({"/dev/tty", "/dev/ptmx", "/dev/pts/ptmx", "/dev/console", "/dev/net/tun"})
_TERMINAL = re.compile(r"/dev/(pts/\d+|console)")
_MEMORY_FILES = ("/dev/shm/", "/dev/zero", "/dev/hugepages")  # noqa: S108 - names, not used
_GPU = re.compile(r"/dev/(nvidia|simgpu)")
_MAPPING = re.compile(r"\S+ (\S+) \S+ \S+ \d+ +(\S.*)")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError)

_LOG = (
    ("In-flight connection", "a connection waits to be accepted; it is served first"),
    ("External socket is used", "a unix socket leads to a process outside the container's tree"),
    ("half of stream unix", "a unix socket leads to a process outside the container's tree"),
    ("Unsupported mapping", "it maps a device or a kind of memory that CRIU doesn't know"),
    ("Can't dump ghost file", "a deleted file that is still open is too large"),
    ("Can't dump that handle", "it watches a folder (inotify) that can't be found again"),
    ("Can't lookup mount", "it has a file open that lies outside the container's mounts"),
    ("Unsupported", "it holds something that CRIU doesn't know"),
    ("not supported", "it holds something that CRIU doesn't know"),
)


def find(container: Container) -> tuple[str, ...]:
    """Sentences, each once; empty if nothing is known against a dump. Raises NotFoundError."""
    _ = container.state
    held = sockets.of(container)
    found = [
        *_terminal(container),
        *_of_processes(container),
        *sockets.problems(container, held),
        *_watched(container),
    ]
    return tuple(dict.fromkeys(found))


def extra_options(container: Container) -> list[str]:
    """Options of a dump for what the tree has open: folders that it watches."""
    folders, _ = watches.folders(container)
    options = [word for one in folders for word in ("--irmap-scan-path", one)]
    return ["--force-irmap", *options] if options else []


def from_log(said: list[str]) -> str:
    """Why CRIU refused, if it is of a kind that it always refuses; else empty."""
    for line in said:
        for mark, sentence in _LOG:
            if mark in line:
                return f"The tree can't be dumped: {sentence} ({line.partition('): ')[2] or line})."
    return ""


def _of_processes(container: Container) -> Iterator[str]:
    for pid in container.pids():
        who = f"Process {pid} ({_printable(container.name(pid))})"
        for look in (_traced, _namespaced, _entitled, _mapped, _opened):
            try:
                yield from (f"{who} {problem}" for problem in look(container, pid))
            except _GONE:
                continue


def _terminal(container: Container) -> Iterator[str]:
    with suppress(*_GONE):
        path = container.proc / str(container.init) / "fd" / "1"
        if _TERMINAL.fullmatch(os.readlink(path)):
            yield "The container has a terminal, which can't be recreated: leave out `tty: true`."


def _traced(container: Container, pid: int) -> Iterator[str]:
    for line in smallfile.read(f"{container.proc}/{pid}/status").splitlines():
        if line.startswith("TracerPid:") and line.split()[1] != "0":
            yield f"is traced by process {line.split()[1]}: detach the debugger."


def _namespaced(container: Container, pid: int) -> Iterator[str]:
    for name in _NAMESPACES:
        theirs = os.readlink(f"{container.proc}/{container.init}/ns/{name}")
        if os.readlink(f"{container.proc}/{pid}/ns/{name}") != theirs:
            yield f"has a {name} namespace of its own, which can't be dumped in place."


def _entitled(container: Container, pid: int) -> Iterator[str]:
    yield from rights.lacking(f"{container.proc}/{pid}/status")


def _mapped(container: Container, pid: int) -> Iterator[str]:
    for line in smallfile.read(f"{container.proc}/{pid}/maps").splitlines():
        match = _MAPPING.match(line)
        name = match[2] if match else ""
        if name.startswith("/SYSV"):
            yield "has System V shared memory attached: let it use POSIX shared memory or mmap."
        elif name.startswith("anon_inode:"):
            yield _unknown_kind(name)
        elif name.startswith("/dev/") and not (name.startswith(_MEMORY_FILES) or _GPU.match(name)):
            yield f"has the device {_printable(name)} mapped."


def _opened(container: Container, pid: int) -> Iterator[str]:
    queues = _queue_devices(container, pid)
    folder = f"{container.proc}/{pid}/fd"
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            path = f"{folder}/{name}"
            target = os.readlink(path)
            if target.startswith("anon_inode:"):
                kind = target.removeprefix("anon_inode:").strip("[]")
                if kind not in _KNOWN_KINDS:
                    yield _unknown_kind(target)
            elif target.startswith("/") and not target.startswith("/memfd:"):
                yield from _file_problem(path, target, queues)


def _unknown_kind(target: str) -> str:
    kind = _printable(target.removeprefix("anon_inode:").strip("[]"))
    return f"uses {kind}, which can't be dumped: switch it off in the workload if you can."


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
            yield f"has the device {shown} open."
    elif is_deleted and stat.S_ISREG(found.st_mode):
        if found.st_nlink:
            yield f"has {shown} open, which was deleted but lives on under another name."
        elif found.st_size > GHOST_LIMIT:
            yield (
                f"has the deleted file {shown} of {found.st_size >> 20} MiB open; "
                f"up to {GHOST_LIMIT >> 20} MiB can be dumped."
            )


def _is_known_device(found: os.stat_result, target: str) -> bool:
    is_memory = stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) == _MEMORY_MAJOR
    return bool(
        is_memory or target in _DEVICES or _TERMINAL.fullmatch(target) or _GPU.match(target)
    )


def _queue_devices(container: Container, pid: int) -> frozenset[int]:
    """Device numbers of the message queues' file systems that the process sees."""
    found = set()
    for line in smallfile.read(f"{container.proc}/{pid}/mountinfo").splitlines():
        if " - mqueue " in line:
            major, minor = line.split()[2].split(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


def _watched(container: Container) -> Iterator[str]:
    _, lost = watches.folders(container)
    by_pid: defaultdict[int, int] = defaultdict(int)
    for pid in lost:
        by_pid[pid] += 1
    for pid, count in by_pid.items():
        yield (
            f"Process {pid} ({_printable(container.name(pid))}) watches {count} files or folders "
            "(inotify) that are not where folders are usually watched."
        )


def _printable(text: str) -> str:
    return "".join(one for one in text if one.isprintable())[:200]
