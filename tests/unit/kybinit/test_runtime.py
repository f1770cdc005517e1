"""kyb-runtime in place of a runc that writes down how it was called."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.kybinit.conftest import _let_others_in

SOURCE = Path(__file__).resolve().parents[3] / "native" / "kyb-runtime"
ID = "ab" * 32
LIMIT = 60.0

FAKE = """#!/bin/sh
echo "$@" >>{calls}
case "$*" in
*state*) exit 7;;
*checkpoint*) exec {python} -c 'import fcntl, sys
try: fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH | fcntl.LOCK_NB)
except BlockingIOError: open(sys.argv[2], "a").write("locked\\n")
except OSError: pass' {mark} {calls};;
*resume*) exit {resumes};;
*pause*) test "$(grep -c ' pause ' {calls})" -gt {unpaused} || {{ {says} >&2; exit 1; }};;
esac
"""


class Agent(threading.Thread):
    """Answers one question."""

    def __init__(self, path, *answer):
        super().__init__(daemon=True)
        self.heard = None
        self._answer = answer
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self.start()

    def run(self):
        with suppress(OSError, struct.error):
            one, _ = self._server.accept()
            with one:
                (length,) = struct.unpack(">I", one.recv(4, socket.MSG_WAITALL))
                self.heard = one.recv(length, socket.MSG_WAITALL).decode().split("\0")
                payload = "\0".join(self._answer).encode()
                if payload:
                    one.sendall(struct.pack(">I", len(payload)) + payload)

    def close(self):
        self._server.close()


class Node:
    """The wrapper, built for a folder of its own, and the runtime beside it."""

    def __init__(self, folder, program):
        self.folder = folder
        self.program = folder / "kyb-runtime"
        shutil.copy(program, self.program)
        self.calls = folder / "calls"
        self.run_dir = Path(program.with_name("run-dir").read_text())
        self.mark = self.run_dir / "containers" / ID
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self.mark.parent.mkdir(parents=True)
        self.runtime()

    def runtime(self, resumes=1, unpaused=0, says="true"):
        """Pauses fail `unpaused` times, and the command `says` why."""
        real = self.folder / "kyb-runtime.real"
        facts = {"calls": self.calls, "mark": self.mark, "resumes": resumes}
        facts |= {"unpaused": unpaused, "says": says}
        real.write_text(FAKE.format(python=shutil.which("python3"), **facts))
        real.chmod(0o755)

    def manage(self):
        self.mark.write_text("1 1\n")

    def agent(self, *answer):
        return Agent(self.run_dir / "runtime.sock", *answer)

    def run(self, *words, **how):
        argv = [str(self.program), *words]
        how |= {"capture_output": True, "text": True, "timeout": LIMIT}
        return subprocess.run(argv, check=False, **how)

    def called(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []


def build(folder, *more):
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler")
    run_dir = folder / "run"
    words = ["make", "-s", "-C", str(SOURCE), f"OUT={folder}", f"RUN_DIR={run_dir}"]
    subprocess.run([*words, " ".join(("CFLAGS=-O1 -g", *more))], check=True, timeout=LIMIT)
    (folder / "run-dir").write_text(str(run_dir))
    return folder / "kyb-runtime"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("kyr"))


@pytest.fixture
def node(built, tmp_path):
    return Node(tmp_path, built)


CHECKPOINT = ("--root", "/r", "--log", "LOG", "--log-format", "json", "checkpoint")


def checkpoint(node, *more):
    words = [word.replace("LOG", str(node.folder / "log.json")) for word in CHECKPOINT]
    return node.run(*words, "--image-path", "/i", *more, ID)


@pytest.mark.parametrize(
    "words",
    [
        ("--root", "/r", "create", "--bundle", "/b", ID),
        ("--version",),
        (),
        ("--root", "checkpoint", "state", ID),
        ("exec", ID, "checkpoint", ID),
        ("--root=/checkpoint", "delete", "--force", ID),
    ],
)
def test_everything_else_is_runc_itself(node, words):
    node.manage()
    done = node.run(*words)
    assert node.called() == [" ".join(words)]
    assert done.returncode == (7 if "state" in words else 0)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_process_becomes_runc(node):
    real = node.folder / "kyb-runtime.real"
    real.write_text("#!/bin/sh\necho $$\n")
    argv = [str(node.program), "create", ID]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=LIMIT)
    assert int(out) == process.pid


def test_a_checkpoint_of_another_container_asks_nobody(node):
    agent = node.agent("refuse", "never")
    assert checkpoint(node).returncode == 0
    assert node.called() == [
        f"--root /r --log {node.folder}/log.json --log-format json checkpoint --image-path /i {ID}"
    ]
    assert agent.heard is None
    agent.close()


def test_a_managed_containers_checkpoint_waits_for_the_agent_and_holds_the_lock(node):
    node.manage()
    agent = node.agent("ready")
    assert checkpoint(node, "--leave-running").returncode == 0
    assert agent.heard == ["checkpoint", "1", ID]
    resume, taken, locked = node.called()
    assert resume == f"--root /r resume {ID}"
    assert taken.endswith(f"checkpoint --image-path /i --leave-running {ID}")
    assert locked == "locked"
    agent.close()
    with node.mark.open() as mark:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_container_that_was_paused_runs_while_its_gpu_memory_is_taken_out(node):
    node.manage()
    node.runtime(resumes=0)
    agent = node.agent("ready")
    assert checkpoint(node).returncode == 0
    verbs = [line.split()[2] for line in node.called() if line.startswith("--root")]
    assert verbs == ["resume", "pause", "--log"]
    agent.close()


def test_one_that_runc_can_not_freeze_at_once_is_paused_again_and_again(node):
    """With cgroups of version 1 it can't freeze what forks meanwhile."""
    node.manage()
    node.runtime(resumes=0, unpaused=2)
    agent = node.agent("ready")
    assert checkpoint(node).returncode == 0
    verbs = [line.split()[2] for line in node.called() if line.startswith("--root")]
    assert verbs == ["resume", "pause", "pause", "pause", "--log"]
    agent.close()


@pytest.mark.parametrize(
    ("says", "quoted"),
    [
        ("true", "the runtime does not say why"),
        ("""printf 'a warning\\nunable to "freeze"\\n\\n'""", "unable to 'freeze'"),
        (f"printf '%08000d\\n{'e' * 300}' 0", "e" * 300),
        ("printf '%0800000d' 7", "0" * 398 + "7"),
    ],
    ids=["nothing", "its last line", "a long one before", "far too much"],
)
def test_one_that_runc_never_freezes_is_not_taken_and_its_reason_is_told(node, says, quoted):
    node.manage()
    node.runtime(resumes=0, unpaused=1000, says=says)
    agent = node.agent("ready")
    why = f"the container could not be paused again ({quoted}); try again"
    assert told(node, checkpoint(node)) == why
    assert {line.split()[2] for line in node.called()} == {"resume", "pause"}
    agent.close()


def told(node, done):
    """The sentence, which is the same on standard error and in runc's log."""
    line = json.loads((node.folder / "log.json").read_text())
    assert line["level"] == "error"
    assert done.stderr == f"kyb-runtime: {line['msg']}\n"
    assert done.returncode == 1
    return line["msg"]


def test_without_the_agent_nothing_is_taken(node):
    node.manage()
    assert "start the agent, then try again" in told(node, checkpoint(node))
    assert node.called() == []


def test_what_the_agent_refuses_is_not_taken_and_paused_again(node):
    node.manage()
    node.runtime(resumes=0)
    agent = node.agent("refuse", 'pod "a" is\nstarting\\')
    assert told(node, checkpoint(node)) == "the node agent refuses: pod 'a' is'starting'"
    assert [line.split()[2] for line in node.called()] == ["resume", "pause"]
    agent.close()


def test_an_agent_that_hangs_up_has_taken_nothing_out(node):
    node.manage()
    agent = node.agent()
    assert "did not answer" in told(node, checkpoint(node))
    agent.close()


UNUSED_USER = 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user with a limit of its own")
def test_an_agent_that_hangs_up_is_not_waited_for_where_nothing_could_start(node):
    """What a failed fork() leaves in errno is none of the connection's."""
    for folder in (node.folder, node.run_dir):
        _let_others_in(folder)
    node.manage()
    agent = node.agent()
    (node.run_dir / "runtime.sock").chmod(0o666)

    def limited():
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

    done = node.run("checkpoint", ID, user=UNUSED_USER, preexec_fn=limited)
    assert "did not answer" in done.stderr
    assert node.called() == []
    agent.close()


def test_a_runc_that_hangs_is_killed_and_told(tmp_path):
    (tmp_path / "kyr").mkdir()
    node = Node(tmp_path, build(tmp_path / "kyr", "-DRUNTIME_MS=1000"))
    (tmp_path / "kyb-runtime.real").write_text("#!/bin/sh\nexec sleep 600\n")
    node.manage()
    agent = node.agent("ready")
    why = f"{tmp_path}/kyb-runtime.real resume has hung for 1 s and was killed"
    assert told(node, checkpoint(node)).startswith(why)
    assert agent.heard is None
    agent.close()
    end = time.monotonic() + LIMIT
    while True:
        # What was killed had the lock as well.
        with node.mark.open() as mark, suppress(BlockingIOError):
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        assert time.monotonic() < end


def test_one_checkpoint_at_a_time(node):
    node.manage()
    with node.mark.open() as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        assert "another checkpoint" in told(node, checkpoint(node))


def test_a_restore_is_announced_and_needs_nobody(node):
    words = ("--root", "/r", "restore", "--image-path", "/i", "--detach", ID)
    assert node.run(*words).returncode == 0
    agent = node.agent("ready")
    assert node.run(*words).returncode == 0
    agent.join(LIMIT)
    assert agent.heard == ["restore", "1", ID]
    assert node.called() == [" ".join(words)] * 2
    agent.close()


@pytest.mark.parametrize("name", ["../x", "..", "", "-h", "a/b"])
def test_what_is_no_id_becomes_no_path(node, name):
    (node.run_dir / "x").write_text("1 1\n")
    assert node.run("checkpoint", name).returncode == 0
    assert node.called()[0] == f"checkpoint {name}"


def test_without_runc_it_says_what_is_missing(node):
    os.unlink(node.folder / "kyb-runtime.real")
    done = node.run("state", ID)
    assert done.returncode == 1
    assert "make it a link to runc" in done.stderr
