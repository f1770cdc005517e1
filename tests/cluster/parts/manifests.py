"""config/ as it is applied to one cluster: its ports, its settings, and who runs as pods."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import yaml

from kybernate import keys

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.layout import Layout
    from tests.cluster.spec import ClusterSpec, Ports

DAEMON_SETS = {"agent": "kyb-agent", "plugin": "kyb-device-plugin"}
"""The node services' DaemonSets; each has one container, named as the service."""

_LOCAL_URL = re.compile(r"https://127\.0\.0\.1:\d+")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def fitted(rendered: str, spec: ClusterSpec, layout: Layout, ports: Ports) -> str:
    """The rendered objects with what only this cluster knows."""
    text = _LOCAL_URL.sub(f"https://127.0.0.1:{ports.webhook}", rendered)
    objects = [one for one in yaml.load_all(text, _LOADER) if one]
    if not spec.node_pods:
        objects = [one for one in objects if one["kind"] != "DaemonSet"]
        return _dumped(objects)
    for service, name in DAEMON_SETS.items():
        if service in spec.running_services:
            _fit(_named(objects, "DaemonSet", name), service, spec, ports)
        else:
            objects.remove(_named(objects, "DaemonSet", name))
    seats = _named(objects, "ConfigMap", "kyb-deviceplugin-config")
    seats["data"] = {"config.yaml": yaml.safe_dump(dict(spec.seats_config), sort_keys=False)}
    objects.append(tls_secret(layout.tls))
    return _dumped(objects)


def stopper(service: str) -> str:
    """The node label without which a node doesn't run this service's pod."""
    return f"one-machine/{service}"


def node_labels() -> dict[str, str]:
    """The labels of every node."""
    return {keys.GPU_NODE_LABEL: "true", **{stopper(name): "true" for name in DAEMON_SETS}}


def tls_secret(folder: Path) -> dict[str, Any]:
    """The agents' certificates, as docs/how-to/install/install.md makes them without a registry,
    and whom they believe: nodes ask for their own as soon as somebody signs."""
    authorities = [folder / "ca.crt", *folder.glob("agents-ca.crt")]
    files = [*authorities, *sorted(folder.glob("agent-*.crt")), *folder.glob("agent-*.key")]
    data = {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}
    metadata = {"name": "kyb-agent-tls", "namespace": keys.NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


def _fit(daemon_set: dict[str, Any], service: str, spec: ClusterSpec, ports: Ports) -> None:
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = dict(spec.service_env.get(service, {}))
    if service == "agent":
        variables["KUBERNETES_SERVICE_PORT"] = str(ports.apiserver)
    known = {entry["name"]: entry for entry in container["env"]}
    for name, value in variables.items():
        entry = known.get(name)
        if entry is None:
            container["env"].append({"name": name, "value": value})
        else:
            entry["value"] = value
    if service == "agent" and spec.host_memory is not None:
        _show_paper_memory(pod, container)


def _show_paper_memory(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """What the node shows in place of /proc/meminfo covers only the node's own /proc."""
    source = {"path": "/proc/meminfo", "type": "File"}
    pod["volumes"].append({"name": "meminfo", "hostPath": source})
    mount = {"name": "meminfo", "mountPath": "/proc/meminfo", "readOnly": True}
    container["volumeMounts"].append(mount)


def _named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name)


def _dumped(objects: list[dict[str, Any]]) -> str:
    return str(yaml.dump_all(objects, Dumper=_DUMPER, sort_keys=False))
