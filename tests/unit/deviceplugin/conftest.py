"""The plugin between a kubelet's side and an agent's side."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from deviceplugin.plugin import Plugin
from kybernate.errors import ConfigError
from kybernate.settings.plugin import PluginSettings
from tests.simgpu import build
from tests.unit.deviceplugin.fakes import Agent, Driver, Kubelet
from tests.unit.deviceplugin.realnode import ROOT, Node


@pytest.fixture
def tmp_path():
    """Short, also where several workers share the tests: sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="kyb-dp-") as path:
        yield Path(path)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "device-plugins").mkdir()
    return tmp_path / "device-plugins"


@pytest.fixture
def kubelet(folder):
    kubelet = Kubelet(folder)
    yield kubelet
    kubelet.stop()


@pytest.fixture
def agent(tmp_path):
    agent = Agent(tmp_path / "agent.sock")
    yield agent
    agent.stop()


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def settings(tmp_path, agent):
    return PluginSettings(
        kubelet_dir=tmp_path,
        agent_socket=agent.socket,
        state_dir=tmp_path / "state",
        refresh_s=0.05,
        health_s=0.05,
        recovery_s=0.1,
        reload_s=0.05,
        boot_grace_s=0.5,
        relist_s=60.0,
        prestart_deadline_s=20.0,
    )


@pytest.fixture
def running(settings, folder, driver):
    """Starts plugins one after the other; `running.stop()` ends the one that runs."""
    runner = Runner(settings, driver)
    yield runner
    runner.stop()
    assert [path.name for path in folder.iterdir() if path.name != "kubelet.sock"] == []


@pytest.fixture
def plugin(running):
    return running.start()


class Runner:
    def __init__(self, settings, driver):
        self.settings = settings
        self.driver = driver
        self._thread = None
        self._stop = threading.Event()

    def start(self, **changes):
        self.settings = self.settings.model_copy(update=changes)
        plugin = Plugin(self.settings, self.driver)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=plugin.run, args=(self._stop,))
        self._thread.start()
        return plugin

    def stop(self):
        if self._thread is not None:
            self._stop.set()
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._thread = None

    def restart(self, **changes):
        self.stop()
        return self.start(**changes)


@pytest.fixture(scope="module")
def library() -> Path:
    pytest.importorskip("pynvml")
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    try:
        return build(ROOT / "build" / "simgpu")
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture
def node(library):
    """One of four GPUs, whose plugin has told the kubelet of them."""
    folder = Path(tempfile.mkdtemp(prefix="kyb-dp-", dir="/dev/shm"))
    node = Node(folder, library)
    node.start()
    node.turn("G01", "Healthy")
    yield node
    node.kill()
    print((folder / "log").read_text())
    node.kubelet.stop()
    shutil.rmtree(folder)
