"""The control side's Deployments: no right that they don't need, and in step with the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kybernate import keys
from kybernate.adapters.registry.client import SERVICE
from kybernate.settings.controller import ControllerSettings
from kybernate.settings.extender import ExtenderSettings
from kybernate.settings.proxy import ProxySettings
from kybernate.settings.registry import RegistrySettings
from kybernate.settings.webhook import WebhookSettings

if TYPE_CHECKING:
    from pydantic import BaseModel

CONFIG = Path(__file__).parents[3] / "config"
UPGRADE = CONFIG.parent / "docs/how-to/install/upgrade.md"
FOLDERS = (
    *("extender/beside", "extender/service", "webhook", "proxy"),
    *("registry/sqlite", "registry/postgresql", "controller"),
)
SETTINGS: dict[str, tuple[str, type[BaseModel]]] = {
    "extender": ("KYB_EXTENDER_", ExtenderSettings),
    "webhook": ("KYB_WEBHOOK_", WebhookSettings),
    "proxy": ("KYB_PROXY_", ProxySettings),
    "registry": ("KYB_REGISTRY_", RegistrySettings),
    "controller": ("KYB_CONTROLLER_", ControllerSettings),
}


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONFIG / path).read_text())
    return found


def deployment(folder: str) -> dict[str, Any]:
    return read(f"{folder}/deployment.yaml")


def pod(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = deployment(folder)["spec"]["template"]["spec"]
    return found


def containers(folder: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in pod(folder)["containers"]}


def values(container: dict[str, Any]) -> dict[str, str | None]:
    return {entry["name"]: entry.get("value") for entry in container.get("env", ())}


def settings(name: str, container: dict[str, Any]) -> Any:
    prefix, kind = SETTINGS[name]
    ours = {
        key.removeprefix(prefix).lower(): str(value).replace("$(KYB_POD_IP)", "10.0.0.1")
        for key, value in values(container).items()
        if key.startswith(prefix)
    }
    return kind(**ours)


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_no_container_has_a_right_that_it_does_not_need(folder: str) -> None:
    assert pod(folder)["securityContext"]["runAsNonRoot"] is True
    assert pod(folder)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod(folder))
    assert not [one for one in pod(folder).get("volumes", ()) if "hostPath" in one]
    for one in containers(folder).values():
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_variables_are_settings_that_the_service_takes(folder: str) -> None:
    for name, one in containers(folder).items():
        if name == "controller":
            assert settings(name, one).lease == read("controller/lease.yaml")["metadata"]["name"]
        elif name != "scheduler":
            listen = settings(name, one).listen
            ports = [port["containerPort"] for port in one["ports"]]
            local = listen.startswith("127.0.0.1:")
            assert local or int(listen.rpartition(":")[2]) in ports


def test_probes_ask_the_port_that_is_served(folder: str) -> None:
    for name, one in containers(folder).items():
        ports = {port["name"]: port["containerPort"] for port in one["ports"]}
        for probe in ("startupProbe", "livenessProbe"):
            assert one[probe]["httpGet"]["path"] == "/healthz"
            assert one[probe]["httpGet"]["port"] in ports
        if name in ("extender", "webhook", "registry", "controller"):
            listen = settings(name, one).probe_listen
            assert listen == f"0.0.0.0:{ports['probes']}"
            assert one["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}


def test_every_volume_is_mounted_and_a_service_that_writes_can(folder: str) -> None:
    mounts = [mount for one in containers(folder).values() for mount in one["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == {one["name"] for one in pod(folder)["volumes"]}
    if folder != "proxy":
        assert "/tmp" in {mount["mountPath"] for mount in mounts}, "gunicorn's and OpenSSL's files"


def test_a_rollout_leaves_somebody_to_answer(folder: str) -> None:
    spec = deployment(folder)["spec"]
    if folder == "registry/sqlite":
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"}), "one owner"
        return
    rolling = spec["strategy"]["rollingUpdate"]
    assert spec["replicas"] > rolling["maxUnavailable"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_beside_the_scheduler_its_lease_decides() -> None:
    parts = containers("extender/beside")
    extender = settings("extender", parts["extender"])
    scheduler = read("scheduler/kube-scheduler-config.yaml")
    election = scheduler["leaderElection"]
    assert (extender.lease, extender.scheduler_lease) == ("", election["resourceName"])
    assert (election["leaderElect"], election["resourceNamespace"]) == (True, keys.NAMESPACE)
    (called,) = scheduler["extenders"]
    assert extender.listen == "0.0.0.0:9444", "the controller asks it, too"
    assert called["urlPrefix"] == "https://127.0.0.1:9444/v1"


def test_beside_the_scheduler_each_has_its_own_token_and_key() -> None:
    parts = containers("extender/beside")
    assert pod("extender/beside")["automountServiceAccountToken"] is False
    assert pod("extender/beside")["serviceAccountName"] == "kyb-extender"
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    volumes = {
        name: {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
        for name, one in parts.items()
    }
    for path in (token, "/etc/kyb/tls"):
        assert volumes["scheduler"][path] != volumes["extender"][path]
    secret = read("extender/beside/token.yaml")
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert account == "kyb-scheduler"
    sources = {one["name"]: one for one in pod("extender/beside")["volumes"]}
    assert sources["scheduler-token"]["secret"]["secretName"] == secret["metadata"]["name"]


def test_behind_a_service_the_leader_is_the_only_endpoint() -> None:
    extender = settings("extender", containers("extender/service")["extender"])
    service, lease = read("extender/service/service.yaml"), read("extender/service/lease.yaml")
    assert extender.lease == lease["metadata"]["name"]
    assert extender.advertise == "10.0.0.1:9444"
    assert "selector" not in service["spec"]
    (port,) = service["spec"]["ports"]
    assert (port["name"], f"0.0.0.0:{port['targetPort']}") == ("https", extender.listen)


def test_proxies_and_controllers_ask_the_registry_where_it_is() -> None:
    for name in ("proxy", "controller"):
        assert settings(name, containers(name)[name]).registry_url == SERVICE
    (port,) = read("registry/sqlite/service.yaml")["spec"]["ports"]
    assert SERVICE.endswith(f":{port['port']}")


def test_two_ways_to_run_are_never_both_installed() -> None:
    default = read("default/kustomization.yaml")["resources"]
    assert [one for one in default if "registry" in one] == ["../registry/sqlite"]
    assert "../extender/beside" in default
    assert "../extender/service" not in default
    assert "../../scheduler" in read("extender/beside/kustomization.yaml")["resources"]


def test_an_upgrade_can_replace_the_webhook_before_what_sends_pods_to_it() -> None:
    """The selector of docs/how-to/install/upgrade.md finds the Deployment and nothing
    else."""
    selector = "app.kubernetes.io/name=kyb-webhook"
    assert f"kubectl apply --server-side -k OVERLAY -l {selector} " in UPGRADE.read_text()
    name, _, value = selector.partition("=")
    every = [
        one
        for path in CONFIG.rglob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
        if isinstance(one, dict)
        and value == ((one.get("metadata") or {}).get("labels") or {}).get(name)
    ]
    assert [(one["kind"], one["metadata"]["name"]) for one in every] == [
        ("Deployment", "kyb-webhook")
    ]


def test_the_proxy_lets_nobody_in_without_a_key_and_reads_no_secret_by_the_api() -> None:
    """Its records are mounted: its account may read GPUNodes and requests, and nothing else, kyb-ca
    least."""
    container = containers("proxy")["proxy"]
    found = settings("proxy", container)
    assert found.auth == "keys"
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one["secret"] for one in pod("proxy")["volumes"]}
    clients = volumes[mounts[str(found.clients_dir)]]
    assert (clients["secretName"], clients["optional"]) == (keys.PROXY_CLIENTS, True)
    roles = yaml.safe_load_all((CONFIG / "rbac/proxy.yaml").read_text())
    rules = [rule for role in roles if role for rule in role.get("rules", ())]
    assert [rule["resources"] for rule in rules] == [["gpunodes"], ["checkpointrequests"]]
    memory = container["resources"]["limits"]["memory"]
    assert (memory, 2 * found.max_held_bytes + 150 * 2**20 < 2**30) == ("1Gi", True)


def test_a_proxy_takes_connections_until_no_service_leads_to_it() -> None:
    proxy = containers("proxy")["proxy"]
    before = proxy["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before > 0
    after = settings("proxy", proxy).shutdown_limit_s
    assert before + after < pod("proxy")["terminationGracePeriodSeconds"]


def test_several_proxies_run_and_a_drain_of_nodes_takes_one_at_a_time() -> None:
    assert deployment("proxy")["spec"]["replicas"] > 1
    budget = read("proxy/disruption.yaml")
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment("proxy")["spec"]["selector"]
    assert "disruption.yaml" in read("proxy/kustomization.yaml")["resources"]
