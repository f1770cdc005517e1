"""kyb-init and the agent's adapters together: socket, /proc and freezer, as on a node."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from kybernate.adapters.container.inits import KernelInits
from kybernate.adapters.container.seatsocket import SeatSockets
from kybernate.adapters.kernel.freezer import CgroupFreezer
from kybernate.adapters.kernel.procfs import Procfs

from .conftest import UNSHARE, children, comm

FREEZER = Path("/sys/fs/cgroup/freezer")
UID = "0f9c2d1e-8a3b-4c5d-9e6f-0123456789ab"
LIMIT = 60.0

pytestmark = pytest.mark.skipif(
    not os.access(FREEZER, os.W_OK), reason="needs a cgroup v1 freezer to write to"
)


class Listener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

    def on_hello(self, uid, hello):
        self.told.put_nowait(("hello", hello))

    def on_term(self, uid, signum):
        self.told.put_nowait(("term", signum))

    def on_exit(self, uid, code):
        self.told.put_nowait(("exit", code))

    def on_lost(self, uid):
        self.told.put_nowait(("lost", uid))

    def on_status(self, uid):
        return "active", "it has the group"

    def on_probe(self, uid):
        return "run"

    def on_turn(self, uid, *, wanted):
        self.told.put_nowait(("turn", wanted))

    def on_progress(self, uid, sentence):
        self.told.put_nowait(("progress", sentence))


@pytest.fixture
def pod_cgroup():
    top = FREEZER / f"kyb-test-{uuid.uuid4().hex[:8]}"
    container = top / f"pod{UID}" / ("ab" * 32)
    container.mkdir(parents=True)
    yield container
    end = time.monotonic() + LIMIT
    for folder in (container / "kyb", container, container.parent, top):
        while folder.exists():
            assert time.monotonic() < end, f"{folder} can't be removed"
            with suppress(OSError):
                folder.rmdir()


@pytest.fixture
def node(binary, pod_cgroup):
    """Runs a scene with a container whose kyb-init asks the real adapters."""

    def run(scene, *command):
        async def main(run_dir: Path):
            listener = Listener()
            doors = SeatSockets(run_dir, Procfs(), KernelInits(binary.parent))
            doors.listen(listener)
            path = await doors.open(UID) / "seat.sock"
            process = await asyncio.create_subprocess_exec(
                *UNSHARE,
                str(binary),
                "--",
                *command,
                env={
                    **os.environ,
                    "KYB_SEAT_SOCKET": str(path),
                    "KYB_POD_SOCKET": str(run_dir / "init.sock"),
                    "ASAN_OPTIONS": "detect_leaks=0",
                },
                stdout=asyncio.subprocess.PIPE,
                preexec_fn=lambda: (pod_cgroup / "cgroup.procs").write_text("0"),
            )
            try:
                async with asyncio.timeout(LIMIT):
                    await scene(listener, doors, process)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await CgroupFreezer().kill(str(pod_cgroup / "kyb"), LIMIT)
                await process.communicate()
                await doors.close(UID)

        with tempfile.TemporaryDirectory(prefix="kyb-") as run_dir:
            asyncio.run(main(Path(run_dir)))

    return run


def test_the_tree_is_in_its_cgroup_before_the_command_starts(node, pod_cgroup):
    async def scene(listener, doors, process):
        procs, freezer = Procfs(), CgroupFreezer()
        _, hello = await listener.told.get()
        tree = procs.child_of(hello.peer_pid)
        assert comm(tree) == "kyb-gate"
        handle = freezer.place(tree)
        assert handle == str(pod_cgroup / "kyb")
        doors.go(UID, 1, [])
        assert await process.stdout.readline() == b"up\n"
        (command,) = children(tree)
        assert set(freezer.pids(handle)) >= {tree, command}
        assert procs.pod_uid_of(command) == UID
        assert hello.peer_pid not in freezer.pids(handle)

    node(scene, "sh", "-c", "echo up; sleep 600")


def test_a_frozen_tree_is_thawed_for_its_sigterm(node):
    async def scene(listener, doors, process):
        procs, freezer = Procfs(), CgroupFreezer()
        _, hello = await listener.told.get()
        tree = procs.child_of(hello.peer_pid)
        handle = freezer.place(tree)
        doors.go(UID, 1, [])
        assert await process.stdout.readline() == b"up\n"
        await freezer.freeze(handle, 1)
        os.kill(hello.peer_pid, signal.SIGTERM)
        assert await listener.told.get() == ("term", signal.SIGTERM)
        assert not procs.ending(tree)
        doors.ok(UID)
        while not procs.ending(tree):  # noqa: ASYNC110 - the kernel sends no event
            await asyncio.sleep(0.001)
        freezer.thaw(handle)
        assert await listener.told.get() == ("exit", 143)
        assert await process.wait() == 143

    node(scene, "python3", "-uc", "print('up'); import time; time.sleep(600)")


def test_questions_from_inside_the_container(node, binary):
    async def scene(listener, doors, process):
        await listener.told.get()
        doors.go(UID, 1, [])
        assert await process.stdout.read() == b"active: it has the group\nprobed\n"
        assert await process.wait() == 3

    node(scene, "sh", "-c", f"{binary} status; {binary} probe -- echo probed; exit 3")


def test_only_process_1_gets_the_turn(node, binary):
    script = (
        "import os, socket, struct\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(os.environ['KYB_SEAT_SOCKET'])\n"
        "p = b'hello\\x001\\x00waiting\\x000\\x00plain'\n"
        "s.sendall(struct.pack('>I', len(p)) + p)\n"
        "print(s.recv(100)[4:].decode().split('\\0')[0])"
    )

    async def scene(listener, doors, process):
        await listener.told.get()
        doors.go(UID, 1, [])
        assert await process.stdout.read() == b"refuse\n"

    node(scene, "python3", "-c", script)
