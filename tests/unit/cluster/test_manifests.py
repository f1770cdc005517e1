from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from kybernate.settings.plugin import parse_seats_config
from tests.cluster.layout import REPOSITORY, Layout
from tests.cluster.parts.manifests import DAEMON_SETS, fitted, node_labels
from tests.cluster.spec import ClusterSpec, Ports

if TYPE_CHECKING:
    from collections.abc import Iterator

PORTS = Ports(20000)
FOLDERS = ("config/nodeagent", "config/deviceplugin", "config/overlays/one-machine")


@pytest.fixture
def layout() -> Iterator[Layout]:
    # A cluster's path is short, and that of tmp_path isn't where workers share the tests.
    with tempfile.TemporaryDirectory(prefix="kyb-") as path:
        found = Layout(Path(path))
        found.tls.mkdir()
        for name in ("ca.crt", "agent-n1.crt", "agent-n1.key", "proxy.key"):
            (found.tls / name).write_text(name)
        yield found


def rendered() -> str:
    """The node side's objects, and a hook as the overlay patches it."""
    files = [Path(REPOSITORY, *name.split("/")) for name in FOLDERS[:2]]
    texts = [file.read_text() for folder in files for file in sorted(folder.glob("[cd]*.yaml"))]
    return "---\n".join([*texts, "kind: Hook\nurl: https://127.0.0.1:18443/mutate\n"])


def objects(spec: ClusterSpec, layout: Layout) -> dict[str, dict[str, object]]:
    found = yaml.safe_load_all(fitted(rendered(), spec, layout, PORTS))
    return {one.get("metadata", {}).get("name", one["kind"]): one for one in found}


def container(daemon_set) -> dict[str, object]:
    (found,) = daemon_set["spec"]["template"]["spec"]["containers"]
    return found


def test_webhook_urls_on_loopback_get_the_clusters_port(layout) -> None:
    assert objects(ClusterSpec(), layout)["Hook"]["url"].startswith(
        f"https://127.0.0.1:{PORTS.webhook}/"
    )


def test_without_node_pods_no_daemon_set_is_applied(layout) -> None:
    assert not set(DAEMON_SETS.values()) & set(objects(ClusterSpec(), layout))


def test_with_node_pods_settings_seats_and_certificates_go_into_the_objects(layout) -> None:
    env = {"agent": {"KYB_AGENT_IDLE_AFTER_S": "0.2"}}
    spec = ClusterSpec(node_pods=True, service_env=env)
    found = objects(spec, layout)
    agent = container(found["kyb-agent"])
    values = {entry["name"]: entry.get("value") for entry in agent["env"]}
    assert values["KYB_AGENT_IDLE_AFTER_S"] == "0.2"
    assert values["KUBERNETES_SERVICE_PORT"] == str(PORTS.apiserver)
    assert "/proc/meminfo" in {mount["mountPath"] for mount in agent["volumeMounts"]}
    parse_seats_config(found["kyb-deviceplugin-config"]["data"]["config.yaml"])
    assert set(found["kyb-agent-tls"]["data"]) == {"ca.crt", "agent-n1.crt", "agent-n1.key"}
    assert base64.b64decode(found["kyb-agent-tls"]["data"]["agent-n1.key"]) == b"agent-n1.key"


def test_a_service_that_is_left_out_has_no_daemon_set(layout) -> None:
    spec = ClusterSpec(node_pods=True, services=frozenset({"agent"}))
    found = objects(spec, layout)
    assert "kyb-agent" in found
    assert "kyb-device-plugin" not in found


def test_nodes_carry_the_labels_that_the_daemon_sets_ask_for() -> None:
    overlay = REPOSITORY / "config" / "overlays" / "one-machine"
    for file in ("agent.yaml", "device-plugin.yaml"):
        pod = yaml.safe_load((overlay / file).read_text())["spec"]["template"]["spec"]
        assert pod["nodeSelector"].items() <= node_labels().items()
