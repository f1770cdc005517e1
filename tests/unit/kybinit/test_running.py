"""A running command: its status, its signals, its descendants, an agent that comes and goes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import HOLD, RESUME, children, comm

FOREVER = "import time; print('up'); time.sleep(600)"


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def send(pid: int, signum: int) -> None:
    os.kill(pid, signum)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("print('up')", 0),
        ("print('up'); raise SystemExit(7)", 7),
        ("import os; print('up'); os.kill(os.getpid(), 9)", 137),
        ("import os; print('up'); os.abort()", 134),
    ],
)
def test_the_containers_status_is_the_commands(running, script, code):
    container, line = running(script)
    assert line.receive() == ["exit", str(code)]
    assert container.end()[0] == code


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [("no-such-program", 127, "No such file"), ("/etc/passwd", 126, "Permission denied")],
)
def test_a_command_that_cannot_run_says_so(waiting, command, code, said):
    container, line = waiting("--", command)
    line.send("go", "1")
    ended, _, err = container.end()
    assert ended == code
    assert said in err


def test_an_image_without_a_command_says_so(waiting):
    container, line = waiting("--image", "--")
    line.send("go", "1")
    code, _, err = container.end()
    assert code == 127
    assert "nothing to run" in err


def test_names_tell_the_state_and_the_tree_has_no_descriptor_of_ours(running):
    container, _ = running(FOREVER)
    assert comm(container.init) == "kyb-run"
    assert comm(container.tree) == "kyb-tree"
    (command,) = children(container.tree)
    for pid in (container.tree, command):
        assert sorted(os.listdir(f"/proc/{pid}/fd"), key=int) == ["0", "1", "2"]
    assert os.getsid(container.tree) == container.tree
    assert os.getsid(command) == command


def test_the_command_gets_the_signal_mask_of_the_container(running):
    container, _ = running(FOREVER)
    (command,) = children(container.tree)
    status = Path(f"/proc/{command}/status").read_text()
    assert "SigBlk:\t0000000000000000" in status


def test_a_daemon_that_loses_its_parent_stays_below_the_tree(running):
    container, _ = running(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.wait(); print('up'); time.sleep(600)"
    )
    wait_for(lambda: len(children(container.tree)) == 2)
    assert children(container.init) == [container.tree]


def test_orphans_are_reaped(running):
    container, _ = running(
        "import os, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: os._exit(3)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "print('up'); time.sleep(600)"
    )
    wait_for(lambda: len(children(container.tree)) == 1)


def test_signals_reach_the_command(running):
    container, _ = running(
        "import signal, time\n"
        "seen = []\n"
        "for s in (signal.SIGUSR1, signal.SIGWINCH, signal.SIGRTMIN + 5):\n"
        "    signal.signal(s, lambda n, f: seen.append(print(n)))\n"
        "print('up')\n"
        "while len(seen) < 3: time.sleep(0.005)"
    )
    for signum in (signal.SIGUSR1, signal.SIGWINCH, signal.SIGRTMIN + 5):
        send(container.init, signum)
        assert container.process.stdout.readline() == f"{int(signum)}\n"
    assert container.end()[0] == 0


def test_what_a_command_sends_to_its_group_does_not_come_back(running):
    container, _ = running(
        "import os, signal, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGUSR1, lambda n, f: seen.append(n))\n"
        "os.kill(0, signal.SIGUSR1); time.sleep(0.1); print('up'); print(len(seen))"
    )
    assert container.end()[:2] == (0, "1\n")


def test_sigterm_asks_the_agent_and_its_ok_forwards_it(running):
    container, line = running(FOREVER)
    send(container.init, signal.SIGTERM)
    assert line.receive() == ["term", "15"]
    assert children(container.tree)
    line.send("ok")
    assert container.end()[0] == 143


def test_without_an_answer_sigterm_is_forwarded_after_two_seconds(running):
    container, line = running(FOREVER)
    asked = time.monotonic()
    send(container.init, signal.SIGTERM)
    assert line.receive() == ["term", "15"]
    assert container.end()[0] == 143
    assert time.monotonic() - asked > 1.9


def test_who_asks_twice_is_not_kept_waiting(running):
    def took() -> float:
        container, line = running(FOREVER)
        asked = time.monotonic()
        send(container.init, signal.SIGTERM)
        line.receive()
        send(container.init, signal.SIGINT)
        # With both pending, the kernel hands out the one of the lower number first.
        assert container.end()[0] in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        return time.monotonic() - asked

    # One that waits takes two seconds each time; a busy machine lets one through soon.
    assert any(took() < 1.9 for _ in range(10))


def test_a_restarted_agent_is_told_of_the_pending_sigterm(running, agent):
    container, line = running(FOREVER)
    agent.die()
    send(container.init, signal.SIGTERM)
    agent.listen()
    line = agent.accept()
    assert line.receive()[:5] == ["hello", "1", "running", "7", "plain"]
    assert line.receive() == ["term", "15"]
    line.send("ok")
    assert container.end()[0] == 143


def test_a_running_command_outlives_an_agent_that_refuses_it(running, agent):
    container, line = running(FOREVER)
    line.send("refuse", "unknown protocol")
    line = agent.accept()
    assert line.receive()[:5] == ["hello", "1", "running", "7", "plain"]
    assert container.process.poll() is None


def test_hold_and_resume_come_from_outside_only(running):
    container, _ = running(
        "import ctypes, os, signal, time\n"
        "os.kill(1, signal.SIGRTMIN + 1)\n"
        "forged = (ctypes.c_int * 32)(signal.SIGRTMIN + 1, 0, -1)\n"
        "assert ctypes.CDLL(None).syscall(129, 1, signal.SIGRTMIN + 1, forged) == 0\n"
        # Passed on in its turn: when it is back, the signals before it have been looked at.
        "signal.signal(signal.SIGUSR1, lambda n, f: print('up'))\n"
        "os.kill(1, signal.SIGUSR1)\n"
        "time.sleep(600)"
    )
    assert comm(container.init) == "kyb-run"
    send(container.init, HOLD)
    wait_for(lambda: comm(container.init) == "kyb-hold")
    send(container.init, RESUME)
    wait_for(lambda: comm(container.init) == "kyb-run")


def test_a_held_container_outlives_its_tree(running, agent):
    container, line = running(FOREVER)
    send(container.init, HOLD)
    wait_for(lambda: comm(container.init) == "kyb-hold")
    (command,), tree = children(container.tree), container.tree
    os.kill(tree, signal.SIGKILL)
    os.kill(command, signal.SIGKILL)
    wait_for(lambda: comm(container.init) == "kyb-parked")
    line.close()
    line = agent.accept()
    assert line.receive()[:5] == ["hello", "1", "parked", "7", "plain"]
    send(container.init, signal.SIGTERM)
    assert line.receive() == ["exit", "143"]
    assert container.end()[0] == 143


def test_a_sigterm_that_came_before_the_held_tree_was_gone_ends_it_at_once(running):
    container, line = running(FOREVER)
    send(container.init, HOLD)
    wait_for(lambda: comm(container.init) == "kyb-hold")
    tree = container.tree
    # It sees both at once, and of two signals that of the lower number first.
    send(container.init, signal.SIGSTOP)
    send(container.init, signal.SIGTERM)
    os.kill(tree, signal.SIGKILL)
    wait_for(lambda: state_of(tree) == "Z")
    send(container.init, signal.SIGCONT)
    assert line.receive() == ["term", "15"]
    assert line.receive() == ["exit", "143"]
    assert container.end()[0] == 143


def test_resume_without_a_tree_ends_with_its_status(running):
    container, _ = running(FOREVER)
    send(container.init, HOLD)
    wait_for(lambda: comm(container.init) == "kyb-hold")
    (command,) = children(container.tree)
    os.kill(command, signal.SIGKILL)
    wait_for(lambda: comm(container.init) == "kyb-parked")
    send(container.init, RESUME)
    assert container.end()[0] == 137


def test_a_killed_tree_is_the_containers_end(running):
    container, _ = running(FOREVER)
    os.kill(container.tree, signal.SIGKILL)
    assert container.end()[0] == 137


def test_it_runs_as_any_user(running):
    container, line = running(FOREVER, before=("setpriv", "--reuid=65534", "--clear-groups"))
    assert line.uid == 65534
    # Not dumpable: nobody but root looks into them. The command is as it would be without us.
    (command,) = children(container.tree)
    owners = [Path(f"/proc/{pid}/fd").stat().st_uid for pid in (container.init, container.tree)]
    assert owners == [0, 0]
    assert Path(f"/proc/{command}/fd").stat().st_uid == 65534


def test_an_empty_read_only_image_without_shell_or_libc_is_enough(
    binaries, agent, tmp_path, binary
):
    if binary.name != "kyb-init":
        pytest.skip("the sanitized build is not static")
    root = tmp_path / "root"
    (root / "kyb").mkdir(parents=True)
    (root / "run").mkdir()
    (root / "kyb" / "kyb-init").write_bytes(binaries["plain"].read_bytes())
    (root / "kyb" / "kyb-init").chmod(0o755)
    script = (
        f"mount --bind {agent.path.parent} {root}/run && mount --bind {root} {root} && "
        f"mount -o remount,bind,ro {root} && mount --rbind {agent.path.parent} {root}/run && "
        f"exec chroot {root} /kyb/kyb-init -- /kyb/kyb-init --version"
    )
    process = subprocess.Popen(
        ["unshare", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c", script],
        env={"KYB_SEAT_SOCKET": "/run/seat.sock", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = agent.accept()
    line.receive()
    line.send("go", "1")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("kyb-init ")
