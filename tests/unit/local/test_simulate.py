"""The folder of simulated GPUs, in a place where any user may lay things."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from kybernate.errors import ConfigError, RefusedError
from kybernate.local.folders import Folders
from kybernate.local.processes import BoxProcs
from kybernate.local.simgpu import layout, simulate
from kybernate.local.simgpu.folder import compile_node


@pytest.fixture
def shared(tmp_path, monkeypatch):
    def install(spec, root, libraries):
        root.mkdir(exist_ok=True)
        root.chmod(0o755)
        (root / layout.NODE_FILE).write_bytes(compile_node(spec))

    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(simulate, "_SHARED", place)
    monkeypatch.setattr(simulate, "native", lambda name: tmp_path / name)
    monkeypatch.setattr(simulate, "install", install)
    return place


def made(run, monkeypatch) -> str:
    folder = simulate.environment(1, {}, Folders(run, run, run))["SIMGPU_DIR"]
    monkeypatch.setenv("SIMGPU_DIR", folder)
    return folder


def test_no_other_user_may_enter(shared, tmp_path, monkeypatch):
    made(tmp_path, monkeypatch)
    (top,) = shared.iterdir()
    assert stat.S_IMODE(top.stat().st_mode) == 0o700


def test_gpus_that_another_user_laid_there_are_refused(shared, tmp_path, monkeypatch):
    made(tmp_path, monkeypatch)
    victim = os.geteuid() + 1
    (top,) = shared.iterdir()
    shutil.copytree(top, shared / f"kybernate-{victim}")
    monkeypatch.setattr(os, "geteuid", lambda: victim)
    with pytest.raises(ConfigError, match="not this user's own"):
        made(tmp_path, monkeypatch)


def test_a_link_that_somebody_laid_there_is_refused(shared, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir(mode=0o755)
    (shared / f"kybernate-{os.geteuid()}").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="not this user's own"):
        made(tmp_path, monkeypatch)
    assert not any((tmp_path / "mine").iterdir())


def test_two_boxes_of_one_user_have_gpus_of_their_own(shared, tmp_path, monkeypatch):
    one, other = made(tmp_path / "1", monkeypatch), made(tmp_path / "2", monkeypatch)
    simulate.forget(tmp_path / "2")
    assert os.path.exists(one)
    assert not os.path.exists(other)
    monkeypatch.setenv("SIMGPU_DIR", one)
    simulate.forget(tmp_path / "1")
    assert not any(shared.iterdir())


def test_gpus_that_models_use_are_not_made_others(shared, tmp_path, monkeypatch):
    own, running = Folders(tmp_path, tmp_path, tmp_path), {}
    monkeypatch.setattr(BoxProcs, "inits", lambda self: running)
    folder = made(tmp_path, monkeypatch)
    running["model-a"] = 17
    before = Path(folder, layout.NODE_FILE).read_bytes()
    simulate.environment(1, {}, own)  # the same ones
    with pytest.raises(RefusedError, match="end it before --simulate=2"):
        simulate.environment(2, {}, own)
    assert Path(folder, layout.NODE_FILE).read_bytes() == before


def test_gpus_that_were_there_before_are_not_forgotten(shared, tmp_path, monkeypatch):
    folder = made(tmp_path, monkeypatch)
    monkeypatch.setenv("SIMGPU_DIR", str(tmp_path))
    simulate.forget(tmp_path)
    assert os.path.exists(folder)
