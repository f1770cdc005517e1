"""Our services as supervised processes: command lines, environment, and when they are ready."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from images.build import full_name
from tests.cluster.layout import REPOSITORY, cache_root
from tests.cluster.processes.supervisor import ProcessSpec
from tests.cluster.spec import AGENT_PORT, AGENT_PROBE_PORT, NODE_SERVICES, PLUGIN_PROBE_PORT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.layout import Layout
    from tests.cluster.spec import ClusterSpec, Ports

ACCOUNTS = ("agent", "extender", "webhook", "proxy", "registry", "controller", "scheduler")
"""Each has the service account kyb-<name> and a kubeconfig of that name."""

KYB_INIT = REPOSITORY / "build" / "kyb-init"
SIMGPU_BUILD = REPOSITORY / "build" / "simgpu"
SIMGPU_LIBRARIES = "/run/simgpu/lib"

_PYTHON = {
    "PYTHONUNBUFFERED": "1",
    # Compiled modules are kept, as in an installed package, whatever the caller's shell says: a
    # service that compiles all it imports takes a second longer to start.
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(cache_root() / "bytecode"),
}

_MODULES = {
    "agent": "nodeagent",
    "plugin": "deviceplugin",
    "extender": "extender",
    "webhook": "webhook",
    "proxy": "proxy",
    "controller": "controller",
}


@dataclass(frozen=True, slots=True)
class Service:
    """One process of ours, and the URL that answers 200 once it can do its work."""

    process: ProcessSpec
    ready_url: str


def accounts_of(tree: Path) -> tuple[str, ...]:
    """Those of ACCOUNTS that a release's objects make."""
    return tuple(one for one in ACCOUNTS if (tree / "config" / "rbac" / f"{one}.yaml").exists())


def process_name(service: str, node: str | None) -> str:
    """The supervised name: `agent-n1`, or `extender`."""
    return f"{service}-{node}" if node else service


def services(spec: ClusterSpec, layout: Layout, ports: Ports) -> list[Service]:
    """All services of the cluster, in the order in which they are started; without those that its
    release doesn't have."""
    return [
        _service(name, node, spec, layout, ports)
        for name in ("extender", "webhook", "agent", "plugin", "proxy", "controller")
        if name in spec.process_services and (spec.tree / _MODULES[name]).is_dir()
        for node in (spec.node_names if name in NODE_SERVICES else (None,))
    ]


def _service(
    name: str, node: str | None, spec: ClusterSpec, layout: Layout, ports: Ports
) -> Service:
    settings, ready = _SETTINGS[name](spec, layout, ports, node or "")
    env = {**_PYTHON, "PYTHONPATH": str(spec.tree), **settings}
    env.update(spec.service_env.get(name, {}))
    full = process_name(name, node)
    process = ProcessSpec(
        name=full,
        argv=(sys.executable, "-m", _MODULES[name]),
        env=env,
        log=str(layout.logs / f"{full}.log"),
        inside=f"node-{node}" if node else None,
    )
    return Service(process, ready)


def _agent(
    spec: ClusterSpec, layout: Layout, _ports: Ports, node: str
) -> tuple[dict[str, str], str]:
    address = spec.node_ip(node)
    settings = {
        "KYB_AGENT_NODE": node,
        "KYB_AGENT_KUBECONFIG": str(layout.kubeconfig("agent")),
        "KYB_AGENT_LISTEN": f"{address}:{AGENT_PORT}",
        "KYB_AGENT_ADVERTISE": f"{address}:{AGENT_PORT}",
        "KYB_AGENT_TLS_DIR": str(layout.tls),
        # A process has no pod whose token would name its node.
        "KYB_AGENT_OWN_KEY": "false",
        "KYB_AGENT_KYB_INIT": str(spec.tree / "build" / "kyb-init"),
        "KYB_AGENT_PROBE_LISTEN": f"{address}:{AGENT_PROBE_PORT}",
        "LD_LIBRARY_PATH": SIMGPU_LIBRARIES,
    }
    return settings, f"http://{address}:{AGENT_PROBE_PORT}/readyz"


def _plugin(
    spec: ClusterSpec, layout: Layout, _ports: Ports, node: str
) -> tuple[dict[str, str], str]:
    address = spec.node_ip(node)
    settings = {
        "KYB_DEVICE_PLUGIN_NODE": node,
        "KYB_DEVICE_PLUGIN_PROFILES": str(seats_file(layout)),
        "KYB_DEVICE_PLUGIN_PROBE_LISTEN": f"{address}:{PLUGIN_PROBE_PORT}",
        "LD_LIBRARY_PATH": SIMGPU_LIBRARIES,
    }
    return settings, f"http://{address}:{PLUGIN_PROBE_PORT}/readyz"


def _extender(
    _spec: ClusterSpec, layout: Layout, ports: Ports, _node: str
) -> tuple[dict[str, str], str]:
    settings = {
        "KYB_EXTENDER_LISTEN": f"127.0.0.1:{ports.extender}",
        "KYB_EXTENDER_PROBE_LISTEN": f"127.0.0.1:{ports.extender_probe}",
        "KYB_EXTENDER_KUBECONFIG": str(layout.kubeconfig("extender")),
        "KYB_EXTENDER_TLS_DIR": str(layout.tls),
    }
    return settings, f"http://127.0.0.1:{ports.extender_probe}/readyz"


def _webhook(
    _spec: ClusterSpec, layout: Layout, ports: Ports, _node: str
) -> tuple[dict[str, str], str]:
    settings = {
        "KYB_WEBHOOK_LISTEN": f"127.0.0.1:{ports.webhook}",
        "KYB_WEBHOOK_PROBE_LISTEN": f"127.0.0.1:{ports.webhook_probe}",
        "KYB_WEBHOOK_KUBECONFIG": str(layout.kubeconfig("webhook")),
        "KYB_WEBHOOK_CERT_DIR": str(layout.work / "webhook"),
        "KYB_WEBHOOK_URL": f"https://127.0.0.1:{ports.webhook}",
        "KYB_WEBHOOK_SIDECAR_IMAGE": full_name("sidecar"),
    }
    return settings, f"http://127.0.0.1:{ports.webhook_probe}/readyz"


def _proxy(
    _spec: ClusterSpec, layout: Layout, ports: Ports, _node: str
) -> tuple[dict[str, str], str]:
    settings = {
        "KYB_PROXY_LISTEN": f"127.0.0.1:{ports.proxy}",
        "KYB_PROXY_KUBECONFIG": str(layout.kubeconfig("proxy")),
        "KYB_PROXY_TLS_DIR": str(layout.tls),
    }
    return settings, f"http://127.0.0.1:{ports.proxy}/readyz"


def _controller(
    _spec: ClusterSpec, layout: Layout, ports: Ports, _node: str
) -> tuple[dict[str, str], str]:
    settings = {
        "KYB_CONTROLLER_PROBE_LISTEN": f"127.0.0.1:{ports.controller}",
        "KYB_CONTROLLER_KUBECONFIG": str(layout.kubeconfig("controller")),
        "KYB_CONTROLLER_TLS_DIR": str(layout.tls),
        "KYB_CONTROLLER_LEASE": "kyb-controller",
        "KYB_CONTROLLER_SIDECAR_IMAGE": full_name("sidecar"),
        "KYB_CONTROLLER_EXTENDER": f"https://127.0.0.1:{ports.extender}",
    }
    return settings, f"http://127.0.0.1:{ports.controller}/readyz"


def seats_file(layout: Layout) -> Path:
    """The device plugin's file of seat profiles."""
    return layout.configs / "seats.yaml"


_SETTINGS = {
    "agent": _agent,
    "plugin": _plugin,
    "extender": _extender,
    "webhook": _webhook,
    "proxy": _proxy,
    "controller": _controller,
}
