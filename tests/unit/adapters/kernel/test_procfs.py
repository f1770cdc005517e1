"""/proc, read of real processes where that is possible and of written files where it isn't."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kybernate.adapters.kernel.procfs import Procfs
from kybernate.errors import NotFoundError

UID = "0f9c2d1e-8a3b-4c5d-9e6f-0123456789ab"
CONTAINER = "ab" * 32


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def listener(family: int = socket.AF_INET, host: str = "127.0.0.1") -> socket.socket:
    server = socket.socket(family)
    server.bind((host, 0))
    server.listen()
    return server


def test_a_process_is_named_by_pid_and_start_time(sleeper):
    procfs = Procfs()
    born = procfs.start_time(sleeper.pid)
    assert procfs.alive(sleeper.pid, born)
    assert not procfs.alive(sleeper.pid, born + 1)


def test_a_zombie_is_not_alive(sleeper):
    procfs = Procfs()
    born = procfs.start_time(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not procfs.alive(sleeper.pid, born)
    assert procfs.ending(sleeper.pid)


def test_a_name_with_spaces_and_parentheses_is_read_over(tmp_path):
    (tmp_path / "7").mkdir()
    fields = " ".join(["S", *map(str, range(1, 50))])
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {fields}")
    assert Procfs(tmp_path).start_time(7) == 19


def test_what_is_gone_is_not_found(sleeper):
    sleeper.kill()
    sleeper.wait()
    procfs = Procfs()
    for question in (procfs.start_time, procfs.child_of, procfs.pod_uid_of):
        with pytest.raises(NotFoundError, match=str(sleeper.pid)):
            question(sleeper.pid)
    assert procfs.ending(sleeper.pid)
    assert not procfs.alive(sleeper.pid, 1)
    assert procfs.descendants(sleeper.pid) == ()


def test_the_tree_is_found_by_its_name(tmp_path):
    for pid, comm in (("5", "sh"), ("6", "kyb-gate")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(f"{comm}\n")
    (tmp_path / "1" / "task" / "1").mkdir(parents=True)
    (tmp_path / "1" / "task" / "1" / "children").write_text("5 6 ")
    assert Procfs(tmp_path).child_of(1) == 6
    (tmp_path / "6" / "comm").write_text("python\n")
    with pytest.raises(NotFoundError, match="no kyb-tree"):
        Procfs(tmp_path).child_of(1)


def test_descendants_come_parents_first():
    script = "sleep 600 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        found = Procfs().descendants(os.getpid())
        assert found.index(shell.pid) < found.index(child)
        os.kill(child, signal.SIGKILL)


THREAD = """
import subprocess, sys, threading
def make():
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    child.wait()
threading.Thread(target=make).start()
"""


def test_the_children_of_all_threads_are_descendants():
    argv = [sys.executable, "-c", THREAD]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as threaded:
        assert threaded.stdout is not None
        child = int(threaded.stdout.readline())
        try:
            leader = Path(f"/proc/{threaded.pid}/task/{threaded.pid}/children").read_text()
            assert not leader, "the kernel notes it with the thread that made it"
            assert Procfs().descendants(threaded.pid) == (child,)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_listening_process_is_recognised(family, host):
    try:
        server = listener(family, host)
    except OSError:
        pytest.skip("this machine has no such address family")
    with closing(server):
        assert Procfs().listening([os.getpid()], server.getsockname()[1])


def test_a_port_of_another_process_does_not_count(sleeper):
    with closing(listener()) as server:
        port = server.getsockname()[1]
        assert not Procfs().listening([sleeper.pid], port)
        assert Procfs().listening([sleeper.pid, os.getpid()], port)


def test_a_connection_is_not_a_listener():
    with closing(listener()) as server:
        client = socket.create_connection(server.getsockname())
        with closing(client):
            assert not Procfs().listening([os.getpid()], client.getsockname()[1])


def test_a_process_that_is_gone_listens_nowhere(sleeper):
    sleeper.kill()
    sleeper.wait()
    assert not Procfs().listening([sleeper.pid], 80)


@pytest.mark.parametrize(
    ("line", "uid", "container"),
    [
        (f"6:freezer:/kubepods/burstable/pod{UID}/{CONTAINER}", UID, CONTAINER),
        (f"6:freezer:/kyb-n1/kubepods/besteffort/pod{UID}/{CONTAINER}/kyb", UID, CONTAINER),
        (f"0::/kubepods/pod{UID}", UID, None),
        (
            f"0::/a.slice/k-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            UID,
            CONTAINER,
        ),
        (f"4:memory:/kubepods/pod{'0' * 32}/{CONTAINER}", "0" * 32, CONTAINER),
        ("0::/system.slice/podman.service", None, None),
        ("0::/", None, None),
    ],
)
def test_the_pod_is_read_from_the_cgroup(tmp_path, line, uid, container):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"9:name=systemd:/\n{line}\n1:cpu:/\n")
    assert Procfs(tmp_path).pod_uid_of(7) == uid
    assert Procfs(tmp_path).container_id_of(7) == container


def test_the_pods_that_run_are_those_of_processes(tmp_path):
    lines = ("0::/", f"0::/kubepods/pod{UID}/{CONTAINER}", f"0::/kubepods/pod{UID}/x", "")
    for pid, line in enumerate(lines, 7):
        (tmp_path / f"{pid}").mkdir()
        (tmp_path / f"{pid}" / "cgroup").write_text(line)
    (tmp_path / "99").mkdir()  # it ends meanwhile
    assert Procfs(tmp_path).pods() == {UID}


def test_processes_share_an_ipc_namespace_or_not(tmp_path):
    for pid, space in ((7, 1), (8, 1), (9, 2)):
        (tmp_path / f"{pid}" / "ns").mkdir(parents=True)
        (tmp_path / f"{pid}" / "ns/ipc").symlink_to(f"ipc:[{space}]")
    assert Procfs(tmp_path).share_ipc(7, 8)
    assert not Procfs(tmp_path).share_ipc(7, 9)
    with pytest.raises(NotFoundError):
        Procfs(tmp_path).share_ipc(7, 10)


def test_a_blocked_sigterm_is_seen_pending():
    script = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGUSR1)
        assert not Procfs().ending(process.pid)
        os.kill(process.pid, signal.SIGTERM)
        assert Procfs().ending(process.pid)


def test_the_pid_in_the_container_is_the_innermost(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nNSpid:\t7\t60\t1\n")
    assert Procfs(tmp_path).pid_in_container(7) == 1
    assert Procfs().pid_in_container(os.getpid()) == int(
        Path("/proc/self/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1]
    )


def test_only_exactly_this_process_is_killed(sleeper):
    procfs = Procfs()
    born = procfs.start_time(sleeper.pid)
    assert procfs.name(sleeper.pid) == "sleep"
    assert not procfs.kill(sleeper.pid, born + 1)
    assert sleeper.poll() is None
    assert procfs.kill(sleeper.pid, born)
    assert sleeper.wait(5) == -signal.SIGKILL
    assert not procfs.kill(sleeper.pid, born)


def test_a_name_is_plain_text(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_bytes(b"a\x1b[2Jb\nc\xff\n")
    assert Procfs(tmp_path).name(7) == "a[2Jbc\ufffd"
