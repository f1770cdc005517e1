"""The plugin between a kubelet's side and an agent's side."""

from __future__ import annotations

import threading

import pytest

from deviceplugin.plugin import Plugin
from kybernate.settings.plugin import DEFAULT_SEATS, PluginSettings
from tests.unit.deviceplugin.fakes import Agent, Driver, Kubelet


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
def plugin(tmp_path, folder, agent, driver):
    settings = PluginSettings(
        kubelet_dir=tmp_path,
        agent_socket=agent.socket,
        refresh_s=0.05,
        relist_s=0.3,
        prestart_deadline_s=2.0,
    )
    plugin = Plugin(settings, DEFAULT_SEATS, driver)
    stop = threading.Event()
    thread = threading.Thread(target=plugin.run, args=(stop,))
    thread.start()
    yield plugin
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert [path.name for path in folder.iterdir() if path.name != "kubelet.sock"] == []
