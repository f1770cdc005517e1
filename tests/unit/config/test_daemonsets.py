"""The node side's DaemonSets: least privilege, and in step with settings and documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kybernate import keys
from kybernate.settings.agent import AgentSettings
from kybernate.settings.plugin import PluginSettings

REPOSITORY = Path(__file__).parents[3]
RIGHTS = (REPOSITORY / "docs" / "reference" / "rights.md").read_text()
PREFIXES = {
    "nodeagent": ("KYB_AGENT_", AgentSettings),
    "deviceplugin": ("KYB_DEVICE_PLUGIN_", PluginSettings),
}
CAPABILITIES = {
    "nodeagent": {"SYS_PTRACE", "DAC_OVERRIDE", "KILL", "SYS_ADMIN", "NET_ADMIN"},
    "deviceplugin": set(),
}


def daemon_set(folder: str) -> dict[str, Any]:
    text = (REPOSITORY / "config" / folder / "daemonset.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def pod(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = daemon_set(folder)["spec"]["template"]["spec"]
    return found


def container(folder: str) -> dict[str, Any]:
    (found,) = pod(folder)["containers"]
    return dict(found)


@pytest.fixture(params=sorted(PREFIXES))
def folder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_container_has_the_rights_that_are_written_down_and_no_more(folder: str) -> None:
    security = container(folder)["securityContext"]
    assert not security["privileged"]
    assert not security["allowPrivilegeEscalation"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"]["drop"] == ["ALL"]
    assert set(security["capabilities"].get("add", ())) == CAPABILITIES[folder]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostIPC"} & set(pod(folder))
    assert pod(folder).get("hostPID", False) == (folder == "nodeagent")


def test_every_right_is_told_in_the_installation_page(folder: str) -> None:
    for capability in container(folder)["securityContext"]["capabilities"].get("add", ()):
        assert f"`{capability}`" in RIGHTS
    for volume in pod(folder)["volumes"]:
        if "hostPath" in volume:
            assert f"`{volume['hostPath']['path']}`" in RIGHTS


def test_every_volume_is_mounted(folder: str) -> None:
    mounted = {mount["name"] for mount in container(folder)["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod(folder)["volumes"]}


def test_variables_are_settings_of_the_service(folder: str) -> None:
    prefix, settings = PREFIXES[folder]
    names = {entry["name"] for entry in container(folder)["env"]}
    ours = {name.removeprefix(prefix).lower() for name in names if name.startswith(prefix)}
    assert ours
    assert ours <= set(settings.model_fields)


def test_it_stays_on_every_gpu_node_and_is_replaced_one_by_one(folder: str) -> None:
    assert pod(folder)["nodeSelector"] == {keys.GPU_NODE_LABEL: "true"}
    assert pod(folder)["tolerations"] == [{"operator": "Exists"}]
    assert pod(folder)["priorityClassName"] == "system-node-critical"
    rolling = daemon_set(folder)["spec"]["updateStrategy"]
    assert rolling["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    resources = container(folder)["resources"]
    assert set(resources["requests"]) == {"cpu", "memory"}
    assert set(resources["limits"]) == {"memory"}


def test_probes_ask_the_port_that_the_service_serves(folder: str) -> None:
    found = container(folder)
    (port,) = [one["containerPort"] for one in found["ports"] if one["name"] == "probes"]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz")):
        assert found[probe]["httpGet"] == {"path": path, "port": "probes"}
    assert found["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}
    values = {entry["name"]: entry.get("value") for entry in found["env"]}
    listen = values.get("KYB_DEVICE_PLUGIN_PROBE_LISTEN")
    default = AgentSettings(node="n").probe_listen if folder == "nodeagent" else listen
    assert str(default).endswith(f":{port}")


def test_the_agent_has_time_for_a_step_that_it_has_begun() -> None:
    grace = pod("nodeagent")["terminationGracePeriodSeconds"]
    assert grace > AgentSettings(node="n").step_deadline_s


def test_only_the_agent_may_ask_the_api_server() -> None:
    assert pod("nodeagent")["automountServiceAccountToken"]
    assert not pod("deviceplugin")["automountServiceAccountToken"]
