"""Namespaces are entered by the thread that asks, and the right to is that thread's alone."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from kybernate.lib import netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are made by root")

SYS_ADMIN = 1 << 21


def effective() -> bool:
    with open("/proc/thread-self/status") as file:
        (sets,) = [line.split()[1] for line in file if line.startswith("CapEff")]
    return bool(int(sets, 16) & SYS_ADMIN)


def in_thread(call):
    """What it returns, or raises, in a thread of its own."""
    found = []

    def run():
        try:
            found.append(call())
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def other():
    """The network namespace of another process, open."""
    with subprocess.Popen(
        ["unshare", "--net", "--ipc", "sh", "-c", "echo; read _"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        space = os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY)
        yield space
        os.close(space)
        process.stdin.close()


def test_the_right_is_laid_down_and_taken_up_by_one_thread():
    def there_and_back():
        netns.lay_down_sys_admin()
        without = effective()
        netns.take_sys_admin()
        return without, effective()

    assert in_thread(there_and_back) == (False, True)
    assert effective()


def test_a_namespace_is_entered_by_one_thread(other):
    def entered():
        netns.enter(other, "net")
        return os.stat("/proc/thread-self/ns/net").st_ino

    assert netns.as_admin(entered) == os.fstat(other).st_ino
    assert os.stat("/proc/thread-self/ns/net").st_ino != os.fstat(other).st_ino


def test_without_the_right_no_namespace_is_entered(other):
    def refused():
        netns.lay_down_sys_admin()
        netns.enter(other, "net")

    assert isinstance(in_thread(refused), PermissionError)


def test_another_kind_is_refused(other):
    with pytest.raises(OSError, match="setns"):
        netns.as_admin(lambda: netns.enter(other, "ipc"))
