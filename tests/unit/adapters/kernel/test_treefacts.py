"""What a tree may do, as the kernel says of this process and of one with less."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kybernate.adapters.kernel.treefacts import highest_pid, kyb_init_of, privileges_of
from kybernate.errors import NotFoundError


def test_this_process_is_described_as_it_is():
    found = privileges_of([os.getpid()])
    assert os.getuid() in found.uids
    assert os.getgid() in found.gids
    assert "/proc" in {mount.path for mount in found.mounts}
    assert found.bounding >= found.effective


def test_of_several_the_most_that_any_may_counts():
    words = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, user=os.getuid(), group=os.getgid())
    try:
        both = privileges_of([os.getpid(), other.pid])
        assert set(both.uids) == {*privileges_of([os.getpid()]).uids, os.getuid()}
        assert both.no_new_privs is privileges_of([other.pid]).no_new_privs
    finally:
        other.communicate()


def test_the_highest_number_of_several_processes_is_told():
    # Threads of this process come and go.
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as two:
        assert highest_pid([one.pid, two.pid]) == max(one.pid, two.pid)
        one.kill()
        two.kill()


def test_a_process_that_is_gone_is_told():
    for ask in (privileges_of, highest_pid):
        with pytest.raises(NotFoundError):
            ask([2**22 + 1])


def test_the_build_of_process_1_is_found_by_its_file(tmp_path):
    (tmp_path / "kyb-init-abc").symlink_to(sys.executable)
    assert kyb_init_of(os.getpid(), tmp_path) == "abc"
    (tmp_path / "kyb-init-abc").unlink()
    assert kyb_init_of(os.getpid(), tmp_path) == ""
    assert kyb_init_of(2**22 + 1, tmp_path) == ""
