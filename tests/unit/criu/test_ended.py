"""What is left of containers that are no more."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from kybernate.adapters.criu import Criu, Tools, limits, running

PROC = Path("/proc")


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


def folder(work, name):
    made = work / name
    made.mkdir(parents=True)
    (made / "dump.log").write_text("of before")
    (made / running.ENTERED).touch()
    return made


def begin(work, tmp_path):
    return Criu(Tools(tmp_path / "enter", tmp_path / "criu", tmp_path / "cache"), None, work)


def own_name():
    start = (PROC / "self" / "stat").read_text().rpartition(")")[2].split()[19]
    return f"{os.getpid()}-{start}"


def test_folders_of_containers_that_are_gone_go(work, tmp_path):
    gone, lives = folder(work, f"{os.getpid()}-1"), folder(work, own_name())
    others = folder(work, "somebody-elses")
    begin(work, tmp_path)
    assert not gone.exists()
    assert (lives / "dump.log").exists()
    assert (others / "dump.log").exists()


def test_one_in_which_a_criu_still_works_stays(work, tmp_path):
    gone = folder(work, f"{os.getpid()}-1")
    with (gone / running.ENTERED).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begin(work, tmp_path)
        assert gone.exists()
    begin(work, tmp_path)
    assert not gone.exists()


def test_one_by_which_a_limit_is_yet_to_be_put_back_stays(work, tmp_path, monkeypatch):
    gone = folder(work, f"{os.getpid()}-1")
    (gone / limits.FILE).write_text("{}")
    monkeypatch.setattr(limits, "put_back", lambda work: None)
    begin(work, tmp_path)
    assert gone.exists()
