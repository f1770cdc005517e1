from __future__ import annotations

from pathlib import Path

import pytest

from kybernate.settings.agent import AgentSettings
from kybernate.settings.controller import ControllerSettings
from kybernate.settings.extender import ExtenderSettings
from kybernate.settings.plugin import PluginSettings
from kybernate.settings.proxy import ProxySettings
from kybernate.settings.webhook import WebhookSettings
from tests.cluster.layout import Layout
from tests.cluster.parts.services import ACCOUNTS, accounts_of, services
from tests.cluster.spec import ClusterSpec, Ports

SETTINGS = {
    "agent-n1": ("KYB_AGENT_", AgentSettings),
    "plugin-n1": ("KYB_DEVICE_PLUGIN_", PluginSettings),
    "extender": ("KYB_EXTENDER_", ExtenderSettings),
    "webhook": ("KYB_WEBHOOK_", WebhookSettings),
    "proxy": ("KYB_PROXY_", ProxySettings),
    "controller": ("KYB_CONTROLLER_", ControllerSettings),
}


def _services(spec: ClusterSpec):
    return {one.process.name: one for one in services(spec, Layout(Path("/w")), Ports(20000))}


def test_an_older_release_runs_what_it_has(tmp_path: Path) -> None:
    for part in ("extender", "webhook", "proxy", "config/rbac"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "config/rbac/proxy.yaml").touch()
    assert set(_services(ClusterSpec(tree=tmp_path))) == {"extender", "webhook", "proxy"}
    assert accounts_of(tmp_path) == ("proxy",)
    assert set(accounts_of(ClusterSpec().tree)) == set(ACCOUNTS)


def test_node_services_run_inside_every_node_and_the_others_once_on_the_host() -> None:
    inside = {name: one.process.inside for name, one in _services(ClusterSpec()).items()}
    assert inside == {
        "extender": None,
        "webhook": None,
        "proxy": None,
        "controller": None,
        "agent-n1": "node-n1",
        "agent-n2": "node-n2",
        "plugin-n1": "node-n1",
        "plugin-n2": "node-n2",
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_the_environment_holds_settings_that_the_service_has_and_accepts(name) -> None:
    prefix, model = SETTINGS[name]
    env = _services(ClusterSpec())[name].process.env
    values = {
        key.removeprefix(prefix).lower(): value
        for key, value in env.items()
        if key.startswith(prefix)
    }
    assert values
    assert set(values) <= set(model.model_fields)
    model.model_validate(values)


def test_a_test_may_change_a_services_settings() -> None:
    spec = ClusterSpec(service_env={"agent": {"KYB_AGENT_IDLE_AFTER_S": "0.2"}})
    found = _services(spec)
    assert found["agent-n2"].process.env["KYB_AGENT_IDLE_AFTER_S"] == "0.2"
    assert "KYB_AGENT_IDLE_AFTER_S" not in found["extender"].process.env
