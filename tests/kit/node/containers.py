"""Containers whose process 1 is kyb-init, on a containerd of their own: a node without Kubernetes.

Each has a network namespace, a pod's cgroup over its own, a log file, and a door at which somebody
says "go" as the agent would.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from images import criu as criu_builder
from images import debs
from kybernate.adapters.criu import Tools
from kybernate.adapters.kernel import smallfile
from kybernate.errors import KybernateError
from tests.cluster.fetched import prefix, servers
from tests.cluster.layout import REPOSITORY, work_root
from tests.cluster.parts.host import CGROUPS, hierarchies, run, thaw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.cluster.layout import Progress

NAMESPACE = "kybtest"
LIMIT = 20.0
"""Seconds in which a container does what is asked of it."""

_LIMIT_FILES = {"memory": "memory.limit_in_bytes", "cpu": "cpu.cfs_quota_us"}
_CONFIG = """version = 2
root = "{work}/root"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", \
"io.containerd.cri.v1.runtime"]
[grpc]
  address = "{work}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{work}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""


def wait_for(
    condition: Callable[[], object], what: str | Callable[[], str], limit: float = LIMIT
) -> None:
    """Raises TimeoutError with `what` unless the condition holds in time."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what if isinstance(what, str) else what())
        time.sleep(0.002)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How a container is to be. Sizes are bytes, `cpus` is a quota; `flags` are ctr's own."""

    command: Sequence[str] = ()
    memory: int = 0
    cpus: float = 0.0
    user: str = ""
    flags: Sequence[str] = ()
    mounts: Mapping[Path, str] = field(default_factory=dict)
    """Folder of the host to place in the container; writable."""
    init: Sequence[str] = ("--",)
    """kyb-init's own arguments before the command."""


class Door(threading.Thread):
    """The agent's side of a seat's socket, as far as a container's start needs it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "seat.sock"))
        (folder / "seat.sock").chmod(0o666)
        self._server.listen()
        self._open: list[socket.socket] = []
        self.heard: list[list[str]] = []
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._server.accept()
                self._open.append(one)
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def close(self) -> None:
        """Hangs up."""
        for one in (self._server, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _serve(self, one: socket.socket) -> None:
        with suppress(OSError, struct.error):
            while True:
                (length,) = struct.unpack(">I", one.recv(4, socket.MSG_WAITALL))
                words = one.recv(length, socket.MSG_WAITALL).decode().split("\0")
                self.heard.append(words)
                if words[0] == "hello":
                    self._say(one, "go", "1")
                elif words[0] == "term":
                    self._say(one, "ok")
                elif words[0] == "status":
                    self._say(one, "status", "parked", "as the agent says")

    def _say(self, one: socket.socket, *fields: str) -> None:
        payload = "\0".join(fields).encode()
        one.sendall(struct.pack(">I", len(payload)) + payload)


class Container:
    """One running container; `init` is the host's PID of its kyb-init."""

    def __init__(self, node: Node, name: str, init: int, ip: str, door: Door) -> None:
        self._node, self.name, self.init, self.ip, self.door = node, name, init, ip, door

    @property
    def log(self) -> str:
        """What it has written so far."""
        return (self._node.work / f"{self.name}.log").read_text()

    @property
    def comm(self) -> str:
        """Process 1's word on itself; empty if it is gone."""
        with suppress(OSError):
            return Path(f"/proc/{self.init}/comm").read_text().strip()
        return ""

    @property
    def tree(self) -> int:
        """The host's PID of kyb-tree."""
        (tree,) = self.children(self.init)
        return tree

    def children(self, pid: int) -> list[int]:
        """The host's PIDs of a process's children."""
        return smallfile.children("/proc", pid)

    def below(self, pid: int) -> list[int]:
        """All processes below this one."""
        return [one for child in self.children(pid) for one in (child, *self.below(child))]

    def status(self, pid: int) -> str:
        """The kernel's word on a process of the tree's."""
        return Path(f"/proc/{pid}/status").read_text()

    def number_inside(self, pid: int) -> int:
        """Its PID in the container."""
        (line,) = [one for one in self.status(pid).splitlines() if one.startswith("NSpid")]
        return int(line.split()[-1])

    def inside(self, *command: str, limit: float = LIMIT) -> str:
        """`kubectl exec`: what the command says. Raises KybernateError if it fails."""
        number = f"x{next(self._node.counter)}"
        argv = ("task", "exec", "--exec-id", number, self.name, *command)
        return self._node.ctr(*argv, limit=limit)

    def spawn(self, *command: str) -> subprocess.Popen[str]:
        """`kubectl exec` that goes on while other things happen."""
        number = f"x{next(self._node.counter)}"
        argv = self._node.ctr_argv("task", "exec", "--exec-id", number, self.name, *command)
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def path(self, inside: str) -> Path:
        """A file of the container's, as the host sees it."""
        return Path(f"/proc/{self.init}/root/{inside.lstrip('/')}")

    def connect(self, port: int, limit: float = LIMIT) -> socket.socket:
        """A connection from outside."""
        return socket.create_connection((self.ip, port), timeout=limit)

    def ask(self, port: int, request: bytes, limit: float = LIMIT) -> bytes:
        """One request on a connection of its own; the first bytes of the answer."""
        with self.connect(port, limit) as link:
            link.sendall(request)
            return link.recv(65536)

    def end(self) -> int:
        """Stops it as a node does (SIGTERM); the exit status, as process 1 tells the agent."""
        self._node.ctr("task", "kill", "--signal", "SIGTERM", self.name)
        wait_for(lambda: self._status() == "STOPPED", f"{self.name} doesn't stop")
        self._node.delete(self.name)
        (code,) = [int(words[1]) for words in self.door.heard if words[0] == "exit"]
        return code

    def _status(self) -> str:
        for line in self._node.ctr("task", "ls").splitlines():
            words = line.split()
            if words[0] == self.name:
                return words[2]
        return "STOPPED"


class Node:
    """containerd and what containers need. Made and closed by the same process."""

    def __init__(self, name: str, progress: Progress, subnet: str = "") -> None:
        # Two runs of the tests beside each other would take each other's routes.
        self.name, self._subnet = name, subnet or f"10.{160 + os.getpid() % 90}"
        self.work = work_root() / name
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.counter = itertools.count(1)
        self._runtime = debs.unpack(prefix.RUNTIME, progress).folder
        self._runc = debs.unpack(prefix.RUNC, progress).folder / "usr/sbin/runc"
        run("make", "-s", "-C", str(REPOSITORY / "native"), "kyb-init", "kyb-enter", limit=120)
        self.tools = Tools(
            enter=REPOSITORY / "build" / "kyb-enter",
            criu=criu_builder.for_this_machine(progress),
        )
        self._image = servers.build(progress)
        self._made: list[str] = []
        self._doors: list[Door] = []
        self._containers: list[Container] = []
        self._containerd = self._start()
        self.ctr("images", "import", "--local", str(self._image.archive), limit=120)

    def ctr(self, *arguments: str, limit: float = LIMIT) -> str:
        """containerd's own tool. Raises KybernateError."""
        return run(*self.ctr_argv(*arguments), limit=limit)

    def ctr_argv(self, *arguments: str) -> list[str]:
        """The command line of containerd's own tool."""
        ctr = str(self._runtime / "usr/bin/ctr")
        return [ctr, "-a", f"{self.work}/containerd.sock", "-n", NAMESPACE, *arguments]

    def start(self, wish: Wish) -> Container:
        """A container, once its command runs. Raises KybernateError, TimeoutError."""
        number = next(self.counter)
        name = f"{self.name}-{number}"
        door = Door(self.work / f"{name}.run")
        self._doors.append(door)
        self._network(name, number)
        self._made.append(name)
        mounts = {
            REPOSITORY / "build": ("/kyb", "rbind:ro"),
            self.work / f"{name}.run": ("/run/kyb", "rbind:ro"),
            **{path: (place, "rbind:rw") for path, place in wish.mounts.items()},
        }
        flags = [
            *("--runc-binary", str(self._runc), "--cgroup", f"/{self.name}/pod{number}/{name}"),
            *("--with-ns", f"network:/run/netns/{name}"),
            *("--log-uri", f"file://{self.work}/{name}.log"),
            *wish.flags,
        ]
        for path, (place, options) in mounts.items():
            flags += ["--mount", f"type=bind,src={path},dst={place},options={options}"]
        flags += ["--memory-limit", str(wish.memory)] if wish.memory else []
        flags += ["--cpu-quota", str(int(wish.cpus * 100000)), "--cpu-period", "100000"] * bool(
            wish.cpus
        )
        flags += ["--user", wish.user] if wish.user else []
        command = ["/kyb/kyb-init", *wish.init, *wish.command]
        self.ctr("run", "-d", *flags, servers.NAME, name, *command)
        (line,) = [line for line in self.ctr("task", "ls").splitlines() if line.split()[0] == name]
        found = Container(self, name, int(line.split()[1]), self._address(number, 2), door)
        self._containers.append(found)
        wait_for(
            lambda: found.comm in ("kyb-run", "kyb-parked"),
            lambda: f"{name} doesn't start: {found.log}",
        )
        return found

    def cgroup(self, container: Container, controller: str) -> Iterator[Path]:
        """The file with the container's limit, then that with its pod's."""
        number = container.name.rpartition("-")[2]
        below = f"{self.name}/pod{number}"
        for place in (f"{below}/{container.name}", below):
            if (CGROUPS / "cgroup.controllers").exists():
                yield CGROUPS / place / f"{controller}.max"
            else:
                yield CGROUPS / controller / place / _LIMIT_FILES[controller]

    def homes(self, container: Container, handle: str) -> list[Path]:
        """The container's cgroups, and the freezer's in place of its parent."""
        lines = Path(f"/proc/{container.init}/cgroup").read_text().splitlines()
        found = [Path(handle)]
        for line in lines:
            names, path = line.split(":", 2)[1:]
            hierarchy = names.removeprefix("name=") or "unified"
            group = CGROUPS / hierarchy / path.lstrip("/")
            if group.is_dir() and group != Path(handle).parent:
                found.append(group)
        return found

    def delete(self, name: str) -> None:
        """Removes a container whose task has ended."""
        self.ctr("task", "rm", name)
        self.ctr("c", "rm", name)
        self._made.remove(name)
        self._unplug(name)

    def discard(self, container: Container) -> None:
        """Ends and removes a container, in whatever state it is; nothing if it is gone."""
        name = container.name
        if name not in self._made:
            return
        with suppress(KybernateError):
            self.ctr("task", "kill", "--signal", "SIGKILL", name)
        thaw(self.name)
        wait_for(lambda: not container.comm, f"{name} outlives SIGKILL")
        time.sleep(0.05)  # containerd hears of it a moment later
        self.delete(name)

    def close(self) -> None:
        """Ends and removes everything."""
        for container in self._containers:
            self.discard(container)
        for door in self._doors:
            door.close()
        self._containerd.terminate()
        self._containerd.wait(LIMIT)
        for root in hierarchies():
            for path, _, _ in os.walk(root / self.name, topdown=False):
                with suppress(OSError):
                    Path(path).rmdir()
        shutil.rmtree(self.work, ignore_errors=True)

    # --- parts --------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        config = self.work / "containerd.toml"
        state = Path(f"/run/kyb-{self.name}")
        shutil.rmtree(state, ignore_errors=True)
        config.write_text(_CONFIG.format(work=self.work, state=state))
        folders = [str(self._runtime / "usr/bin"), str(self._runc.parent), os.environ["PATH"]]
        log = (self.work / "containerd.log").open("wb")
        process = subprocess.Popen(
            [str(self._runtime / "usr/bin/containerd"), "-c", str(config)],
            env={**os.environ, "PATH": ":".join(folders)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()

        def answers() -> bool:
            with suppress(KybernateError):
                self.ctr("version")
                return True
            if process.poll() is not None:
                raise TimeoutError((self.work / "containerd.log").read_text()[-2000:])
            return False

        wait_for(answers, "containerd doesn't answer")
        return process

    def _address(self, number: int, host: int) -> str:
        network, block = divmod(number * 4, 256)
        return f"{self._subnet}.{network}.{block + host}"

    def _network(self, name: str, number: int) -> None:
        outside = f"{self.name}v{number}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "address", "add", f"{self._address(number, 1)}/30", "dev", outside)
        run("ip", "link", "set", outside, "up")
        inside = ("ip", "-n", name)
        run(*inside, "address", "add", f"{self._address(number, 2)}/30", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "route", "add", "default", "via", self._address(number, 1))

    def _unplug(self, name: str) -> None:
        with suppress(KybernateError):
            run("ip", "netns", "delete", name)


def kill(pid: int) -> None:
    """SIGKILL; nothing if it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
