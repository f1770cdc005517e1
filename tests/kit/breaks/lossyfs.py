"""A disk that loses what was not synced, and whose fsync fails: a file system in memory, by FUSE.

It has two states: what processes see, and what a crash leaves. `fsync` of a file takes its dirty
pages over, `fsync` of a folder its names. Nothing else is there after a crash: POSIX promises no
more. An fsync that fails leaves the pages clean, as Linux does: a second one has nothing to do and
says that all is well, though they never got to the disk.

`python -m tests.kit.breaks.lossyfs MOUNT STATE` serves one mount; it is told what to do by lines
of JSON.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images import debs
from images.cache import silent
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = debs.DebSet("fuse", "bookworm", (("libfuse3-3", "3.14.0-4"),))
LIBRARY = "lib/x86_64-linux-gnu/libfuse3.so.3"
PAGE = 4096
_STARTS_S = 20.0


def why_not() -> str:
    """Why there can't be one here, as a sentence; empty if there can."""
    if os.getuid() != 0:
        return "a file system is mounted by root alone"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse can't be opened: {error.strerror}"
    return ""


class Disk:
    """One of these file systems, mounted at `path`."""

    def __init__(self, folder: Path) -> None:
        self.path, self._state = folder / "disk", folder / "disk.state"
        self.path.mkdir()
        self._process: subprocess.Popen[str] | None = None
        self._mount()

    def fails(self, pattern: str, times: int = 1) -> None:
        """The next so many syncs of what is called so fail with EIO."""
        self._tell(do="fail", pattern=pattern, times=times)

    def full(self, room: int | None) -> None:
        """Only so many bytes more can be written; None: as many as you like."""
        self._tell(do="room", room=room)

    def failed(self) -> int:
        """How many syncs have failed."""
        return int(self._tell(do="failed"))

    def crash(self) -> None:
        """The power is cut, and comes back. Whoever used the disk should be dead."""
        self._tell(do="save")
        self._unmount()
        self._mount()

    def close(self) -> None:
        """It is not there any more."""
        self._unmount()

    def _mount(self) -> None:
        library = debs.unpack(PACKAGES, silent).folder / LIBRARY
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.breaks.lossyfs", str(self.path), str(self._state)],
            env={**os.environ, "FUSE_LIBRARY_PATH": str(library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        until = time.monotonic() + _STARTS_S
        while not os.path.ismount(self.path):
            if self._process.poll() is not None or time.monotonic() > until:
                raise KybernateError("the disk of the test can't be mounted")
            time.sleep(0.01)

    def _unmount(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        subprocess.run(["umount", "-l", str(self.path)], check=True, timeout=_STARTS_S)
        process.kill()
        process.communicate()

    def _tell(self, **words: object) -> Any:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise KybernateError("the disk of the test is not mounted")
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())


@contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """A disk in a folder. Raises KybernateError."""
    made = Disk(folder)
    try:
        yield made
    finally:
        made.close()


@dataclass
class Node:
    """A file or a folder. `data` and `names` are what is seen, `kept` what a crash leaves."""

    number: int
    mode: int
    data: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    names: dict[str, int] = field(default_factory=dict)
    kept: bytes = b""
    kept_names: dict[str, int] = field(default_factory=dict)
    at: int = field(default_factory=time.time_ns)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def touch(self, start: int, end: int) -> None:
        self.dirty.update(range(start // PAGE, -(-max(end, start + 1) // PAGE)))
        self.at = time.time_ns()

    def keep(self) -> None:
        kept = bytearray(self.kept[: len(self.data)].ljust(len(self.data), b"\0"))
        for page in self.dirty:
            kept[page * PAGE : (page + 1) * PAGE] = self.data[page * PAGE : (page + 1) * PAGE]
        self.kept, self.kept_names, self.dirty = bytes(kept), dict(self.names), set()


class Lossy:
    """The file system's calls, as mfusepy makes them, and what they are told to do wrong."""

    use_ns = True

    def __init__(self, state: Path) -> None:
        self._state = state
        self.mutex = threading.RLock()
        self.nodes = {1: Node(1, stat.S_IFDIR | 0o755)}
        self.failing: dict[str, int] = {}
        self.failed = 0
        self.room: int | None = None
        if state.exists():
            self.nodes = pickle.loads(state.read_bytes())  # noqa: S301 - ours
        self._last = max(self.nodes)

    def obey(self, words: dict[str, Any]) -> object:
        """One line of whoever tests."""
        with self.mutex:
            if words["do"] == "fail":
                self.failing[words["pattern"]] = words["times"]
            if words["do"] == "room":
                self.room = words["room"]
            if words["do"] == "save":
                self._save()
            return self.failed

    def _save(self) -> None:
        """What a crash leaves: nodes that names lead to, as they were kept."""
        found, todo = {}, [1]
        while todo:
            node = self.nodes[todo.pop()]
            if node.number not in found:
                names = {n: i for n, i in node.kept_names.items() if i in self.nodes}
                found[node.number] = Node(
                    node.number, node.mode, bytearray(node.kept), set(), names, node.kept, names
                )
                todo += names.values()
        self._state.write_bytes(pickle.dumps(found))

    def _node(self, path: str) -> Node:
        node = self.nodes[1]
        for name in filter(None, path.split("/")):
            try:
                node = self.nodes[node.names[name]]
            except KeyError:
                raise OSError(errno.ENOENT, path) from None
        return node

    def _home(self, path: str) -> tuple[Node, str]:
        above, _, name = path.rpartition("/")
        return self._node(above), name

    def _make(self, path: str, mode: int) -> Node:
        home, name = self._home(path)
        if name in home.names:
            raise OSError(errno.EEXIST, path)
        self._last += 1
        node = self.nodes[self._last] = Node(self._last, mode)
        home.names[name] = node.number
        return node

    def _sync(self, node: Node, path: str) -> int:
        with self.mutex:
            for pattern, left in self.failing.items():
                if left and fnmatch.fnmatch(path, pattern):
                    self.failing[pattern] -= 1
                    self.failed += 1
                    # Clean from now on, and nowhere.
                    node.dirty = set()
                    raise OSError(errno.EIO, path)
            node.keep()
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        node = self.nodes[fh] if fh else self._node(path)
        links = sum(list(n.names.values()).count(node.number) for n in self.nodes.values())
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), node.at)
        own = {"st_mode": node.mode, "st_size": len(node.data), "st_ino": node.number}
        return {**own, **times, "st_nlink": max(1, links), "st_uid": 0, "st_gid": 0}

    def readdir(self, path: str, _fh: int) -> list[tuple[str, dict[str, int], int]]:
        home = self._node(path)
        found = {".": home.number, "..": home.number, **home.names}
        return [
            (name, {"st_ino": number, "st_mode": self.nodes[number].mode}, 0)
            for name, number in found.items()
        ]

    def open(self, path: str, flags: int) -> int:
        node = self._node(path)
        if flags & os.O_TRUNC:
            self.truncate(path, 0, node.number)
        return node.number

    def create(self, path: str, mode: int, _fi: object = None) -> int:
        with self.mutex:
            return self._make(path, stat.S_IFREG | mode).number

    def mkdir(self, path: str, mode: int) -> int:
        with self.mutex:
            self._make(path, stat.S_IFDIR | mode)
        return 0

    def read(self, _path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self.nodes[fh].data[offset : offset + size])

    def write(self, _path: str, data: bytes, offset: int, fh: int) -> int:
        with self.mutex:
            if self.room is not None:
                data = data[: self.room]
                self.room -= len(data)
                if not data:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            node, end = self.nodes[fh], offset + len(data)
            if len(node.data) < offset:
                node.data.extend(bytes(offset - len(node.data)))
            node.data[offset:end] = data
            node.touch(offset, end)
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        with self.mutex:
            node = self.nodes[fh] if fh else self._node(path)
            start = min(length, len(node.data))
            del node.data[length:]
            node.data.extend(bytes(length - len(node.data)))
            node.touch(start, length)
        return 0

    def fsync(self, path: str, _datasync: int, fh: int) -> int:
        return self._sync(self.nodes[fh], path)

    def fsyncdir(self, path: str, _datasync: int, _fh: int) -> int:
        return self._sync(self._node(path), path)

    def unlink(self, path: str) -> int:
        with self.mutex:
            home, name = self._home(path)
            if name not in home.names:
                raise OSError(errno.ENOENT, path)
            del home.names[name]
        return 0

    def rmdir(self, path: str) -> int:
        if self._node(path).names:
            raise OSError(errno.ENOTEMPTY, path)
        return self.unlink(path)

    def rename(self, old: str, new: str) -> int:
        with self.mutex:
            node = self._node(old)
            self.unlink(old)
            home, name = self._home(new)
            home.names[name] = node.number
        return 0

    def link(self, target: str, source: str) -> int:
        with self.mutex:
            home, name = self._home(target)
            if name in home.names:
                raise OSError(errno.EEXIST, target)
            home.names[name] = self._node(source).number
        return 0

    def chmod(self, path: str, mode: int) -> int:
        node = self._node(path)
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return 0

    def chown(self, _path: str, _uid: int, _gid: int) -> int:
        return 0

    def utimens(self, _path: str, _times: object = None) -> int:
        return 0

    def statfs(self, _path: str) -> dict[str, int]:
        free = 1 << 20 if self.room is None else self.room // PAGE
        return {"f_bsize": PAGE, "f_frsize": PAGE, "f_blocks": 2 << 20, "f_bfree": free} | {
            "f_bavail": free
        }


def _serve(mount: str, state: str) -> None:
    # It loads the library that the environment names.
    import mfusepy  # type: ignore[import-untyped]  # noqa: PLC0415

    lossy = type("Operations", (Lossy, mfusepy.Operations), {})(Path(state))

    def obey() -> None:
        for line in sys.stdin:
            print(json.dumps(lossy.obey(json.loads(line))), flush=True)

    threading.Thread(target=obey, daemon=True).start()
    with suppress(RuntimeError):
        mfusepy.FUSE(lossy, mount, foreground=True, nothreads=False, use_ino=True, allow_other=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
