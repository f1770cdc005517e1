"""kyb-runtime under a real containerd, runc and CRIU: plain `ctr` checkpoints and restores."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from images import criu, debs
from kybernate.errors import KybernateError
from tests.cluster.fetched import servers
from tests.cluster.fetched.prefix import RUNC
from tests.cluster.layout import REPOSITORY
from tests.kit.node.containers import Node, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

COUNTS = "i=0; while :; do i=$((i+1)); echo $i >/count.new; mv /count.new /count; sleep .02; done"
SCRIPT = """#!/bin/sh
case "$*" in *swrk*) echo "criu" >>{log};; esac
CRIU_CONFIG_FILE={config} exec {criu} "$@"
"""
REAL = """#!/bin/sh
for word in "$@"; do case "$word" in
checkpoint|restore|resume|pause) echo "$word" >>{log};;
esac; done
exec {runc} "$@"
"""


class Agent(threading.Thread):
    """Answers every question with `ready`, and notes it beside what the runtime does."""

    def __init__(self, path: Path, log: Path) -> None:
        super().__init__(daemon=True)
        self._log = log
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self.start()

    def run(self) -> None:
        with suppress(OSError, struct.error):
            while True:
                one, _ = self._server.accept()
                with one:
                    (length,) = struct.unpack(">I", one.recv(4, socket.MSG_WAITALL))
                    words = one.recv(length, socket.MSG_WAITALL).decode().split("\0")
                    with self._log.open("a") as file:
                        file.write(f"agent: {' '.join(words)}\n")
                    one.sendall(struct.pack(">I", 5) + b"ready")

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


class Stage:
    """A containerd whose containers are run by kyb-runtime, built for a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.log, self.run_dir = folder / "log", folder / "run"
        (self.run_dir / "containers").mkdir(parents=True)
        self.program = folder / "kyb-runtime"
        words = ["make", "-s", "-C", str(REPOSITORY / "native" / "kyb-runtime")]
        words += [f"OUT={folder}", f"RUN_DIR={self.run_dir}"]
        subprocess.run(words, check=True, timeout=120)
        config = folder / "criu.conf"
        config.write_text("network-lock skip\n")
        real = criu.for_this_machine(print)
        self._program(folder / "criu", SCRIPT.format(log=self.log, config=config, criu=real))
        runc = debs.unpack(RUNC, print).folder / "usr/sbin/runc"
        self._program(folder / "kyb-runtime.real", REAL.format(log=self.log, runc=runc))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(folder), prepend=":")
            self.node = Node(f"kyr{os.getpid() % 1000}", print)
        self.agent = Agent(self.run_dir / "runtime.sock", self.log)
        self._tasks: list[str] = []

    def _program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def start(self, name: str) -> None:
        """A container that counts."""
        self._tasks.append(name)
        flags = ["--runc-binary", str(self.program), "--net-host"]
        flags += ["--cgroup", f"/{self.node.name}/{name}"]
        self.node.ctr("run", "-d", *flags, servers.NAME, name, "sh", "-c", COUNTS)
        wait_for(lambda: self.count(name) > 0, f"{name} doesn't count")

    def pid(self, name: str) -> int:
        """The host's PID of its process 1; 0 if it has ended."""
        for line in self.node.ctr("task", "ls").splitlines():
            words = line.split()
            if words[0] == name and words[2] == "RUNNING":
                return int(words[1])
        return 0

    def count(self, name: str) -> int:
        """How far it has counted."""
        with suppress(OSError, ValueError):
            return int(Path(f"/proc/{self.pid(name)}/root/count").read_text())
        return 0

    def checkpoint(self, name: str) -> str:
        """By containerd's own tool; the image."""
        image = f"local/{name}:1"
        self.node.ctr("c", "checkpoint", "--task", "--rw", "--image", name, image, limit=60)
        return image

    def restore(self, name: str, image: str) -> None:
        """Into a new container."""
        self._tasks.append(name)
        self.node.ctr("c", "restore", "--live", "--rw", name, image, limit=60)

    def kill(self, name: str) -> None:
        """End it and remove it."""
        with suppress(KybernateError):
            self.node.ctr("task", "kill", "--signal", "SIGKILL", name)
        wait_for(lambda: not self.pid(name), f"{name} outlives SIGKILL")
        time.sleep(0.1)  # containerd hears of it a moment later
        with suppress(KybernateError):
            self.node.ctr("task", "rm", name)
        self.node.ctr("c", "rm", name)
        self._tasks.remove(name)

    def steps(self) -> list[str]:
        """What happened since the last look, in order."""
        found = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        for name in list(self._tasks):
            self.kill(name)
        self.agent.close()
        self.node.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if os.geteuid() != 0 or shutil.which("gcc") is None:
        pytest.skip("containers on this machine need root and a C compiler")
    try:
        made = Stage(tmp_path_factory.mktemp("kyr"))
    except KybernateError as error:
        pytest.skip(f"a node for containers can't be made here: {error}")
    yield made
    made.close()


def test_a_managed_containers_image_is_taken_after_the_agents_word(stage: Stage) -> None:
    stage.start("mine")
    (stage.run_dir / "containers" / "mine").write_text("1 1\n")
    stage.steps()
    before = stage.count("mine")
    image = stage.checkpoint("mine")
    steps = [step for step in stage.steps() if step != "criu"]
    assert steps == [
        *("pause", "resume", "agent: checkpoint 1 mine"),
        *("pause", "checkpoint", "resume"),
    ]
    wait_for(lambda: stage.count("mine") > before, "it doesn't continue")
    stage.kill("mine")
    stage.restore("again", image)
    # It doesn't wait for the agent's answer, so either may be noted first.
    assert set(stage.steps()) == {"agent: restore 1 again", "restore", "criu"}
    assert stage.count("again") >= before
    then = stage.count("again")
    wait_for(lambda: stage.count("again") > then, "what was restored doesn't continue")


def test_other_containers_go_on_without_an_agent(stage: Stage) -> None:
    stage.agent.close()
    stage.start("theirs")
    stage.steps()
    before = stage.count("theirs")
    image = stage.checkpoint("theirs")
    steps = [step for step in stage.steps() if step != "criu"]
    assert steps == ["pause", "checkpoint", "resume"]
    stage.kill("theirs")
    stage.restore("theirs-again", image)
    assert stage.count("theirs-again") >= before


def test_a_managed_container_is_refused_without_an_agent(stage: Stage) -> None:
    stage.agent.close()
    stage.start("alone")
    (stage.run_dir / "containers" / "alone").write_text("1 1\n")
    with pytest.raises(KybernateError, match="the node agent is away"):
        stage.checkpoint("alone")
    before = stage.count("alone")
    wait_for(lambda: stage.count("alone") > before, "it doesn't continue")
