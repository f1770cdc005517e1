"""Command lines and configuration files of the Kubernetes parts. Pure: values in, text out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kybernate import keys
from tests.cluster.parts.manifests import node_labels
from tests.cluster.spec import KUBELET_HEALTH_PORT, KUBELET_PORT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.fetched.binaries import Binaries
    from tests.cluster.layout import Layout, NodeLayout
    from tests.cluster.spec import ClusterSpec, Ports

SEAT_SIZES = (1, 2, 4, 8)
SERVICE_RANGE = "10.96.0.0/24"
PAUSE_IMAGE = "localhost/pause:1"


def etcd(binaries: Binaries, layout: Layout, ports: Ports) -> list[str]:
    """etcd with one member; nothing is synced to disk, for nothing here outlives the machine."""
    client = f"http://127.0.0.1:{ports.etcd}"
    peer = f"http://127.0.0.1:{ports.etcd_peer}"
    return [
        str(binaries.path("etcd")),
        f"--data-dir={layout.work}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
    ]


def apiserver(binaries: Binaries, layout: Layout, ports: Ports) -> list[str]:
    """kube-apiserver on loopback; there the endpoint reconciler must be off."""
    pki = layout.pki
    return [
        str(binaries.path("kube-apiserver")),
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.apiserver}",
        "--endpoint-reconciler-type=none",
        # No node proxies the addresses of Services: webhooks that are Services are called directly.
        "--enable-aggregator-routing=true",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--max-requests-inflight=800",
        "--max-mutating-requests-inflight=400",
        "--profiling=false",
        f"--cert-dir={layout.work}/apiserver",
    ]


def controller_manager(binaries: Binaries, layout: Layout, ports: Ports) -> list[str]:
    """kube-controller-manager; without credentials per controller RBAC refuses most of them."""
    kubeconfig = layout.kubeconfig("controller-manager")
    return [
        str(binaries.path("kube-controller-manager")),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--service-account-private-key-file={layout.pki}/sa.key",
        f"--root-ca-file={layout.pki}/ca.crt",
        "--use-service-account-credentials=true",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.controller_manager}",
        "--leader-elect=false",
        "--controllers=*,-bootstrap-signer-controller,-token-cleaner-controller",
        f"--flex-volume-plugin-dir={layout.work}/volume-plugins",
        f"--cert-dir={layout.work}/controller-manager",
    ]


def scheduler(binaries: Binaries, layout: Layout, ports: Ports) -> list[str]:
    """kube-scheduler with the configuration of `scheduler_config`."""
    kubeconfig = layout.kubeconfig("kube-scheduler")
    return [
        str(binaries.path("kube-scheduler")),
        f"--config={layout.configs}/scheduler.json",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.scheduler}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--cert-dir={layout.work}/scheduler",
    ]


def scheduler_config(layout: Layout, ports: Ports, *, ours: bool) -> str:
    """A scheduler for plain pods and, with `ours`, for those with seats.

    Then it has the account and the extender that config/ makes for it.
    """
    account = "scheduler" if ours else "kube-scheduler"
    profiles: list[dict[str, Any]] = [{"schedulerName": "default-scheduler"}]
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(layout.kubeconfig(account)),
            "qps": 5000,
            "burst": 10000,
        },
        "profiles": profiles,
    }
    if ours:
        profiles.append({"schedulerName": keys.SCHEDULER_NAME})
        config["extenders"] = [_extender(layout, ports)]
    return json.dumps(config, indent=1)


def _extender(layout: Layout, ports: Ports) -> dict[str, Any]:
    return {
        "urlPrefix": f"https://127.0.0.1:{ports.extender}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": 1,
        "enableHTTPS": True,
        "tlsConfig": {
            "caFile": f"{layout.tls}/ca.crt",
            "certFile": f"{layout.tls}/scheduler.crt",
            "keyFile": f"{layout.tls}/scheduler.key",
        },
        "httpTimeout": "5s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            {"name": keys.seat_resource(size), "ignoredByScheduler": False} for size in SEAT_SIZES
        ],
    }


def containerd(node: NodeLayout, cni: Path, runc: Path, gpu_spec: Path | None = None) -> str:
    """containerd's TOML, as seen inside the node; `gpu_spec` is where the runtime nvidia starts.

    `restrict_oom_score_adj`: without CAP_SYS_RESOURCE no sandbox would start otherwise.
    """
    ours = f"""
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
        runtime_type = "io.containerd.runc.v2"
        base_runtime_spec = "{gpu_spec}"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
        BinaryName = "{runc}"
        SystemdCgroup = false"""
    return f"""version = 2
root = "{node.root}/containerd-root"
state = "/run/containerd/state"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/var/run/cdi"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{node.root}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false{ours if gpu_spec else ""}
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.root}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""


def cni(spec: ClusterSpec, node: NodeLayout) -> str:
    """The node's pod network: one bridge, addresses from its own /24, no iptables rule."""
    ranges = [[{"subnet": spec.node_subnet(node.name)}]]
    bridge = {
        "type": "bridge",
        "bridge": spec.bridge(node.name),
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(node.root / "addresses"),
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": spec.name, "plugins": [bridge]}, indent=1)


def kubelet_config(spec: ClusterSpec, layout: Layout, node: str) -> str:
    """KubeletConfiguration: own cgroup root, no eviction, no image collection, no iptables."""
    address = spec.node_ip(node)
    nothing = ("nodefs.available", "imagefs.available", "nodefs.inodesFree", "imagefs.inodesFree")
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzPort": KUBELET_HEALTH_PORT,
        "healthzBindAddress": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{spec.cgroup(node)}",
        "failSwapOn": False,
        "failCgroupV1": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": dict.fromkeys((*nothing, "memory.available"), "0%"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "makeIPTablesUtilChains": False,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{layout.configs}/resolv.conf",
        "volumePluginDir": f"{layout.node(node).root}/volume-plugins",
        "nodeStatusUpdateFrequency": "1s",
        "maxPods": 200,
        # A container that is killed again and again comes back within a second or two.
        "featureGates": {"KubeletCrashLoopBackOffMax": spec.node_pods},
    }
    if spec.node_pods:
        config["crashLoopBackOff"] = {"maxContainerRestartPeriod": "1s"}
    return json.dumps(config, indent=1)


def kubelet(binaries: Binaries, spec: ClusterSpec, layout: Layout, node: str) -> list[str]:
    """The kubelet's command line inside its node."""
    return [
        str(binaries.path("kubelet")),
        f"--config={layout.configs}/kubelet-{node}.json",
        f"--kubeconfig={layout.kubeconfig(f'node-{node}')}",
        f"--hostname-override={node}",
        f"--node-ip={spec.node_ip(node)}",
        f"--node-labels={','.join('='.join(label) for label in node_labels().items())}",
        "--v=2",
    ]


def meminfo(real: str, total: int) -> str:
    """/proc/meminfo of a node with `total` bytes: free but for what the machine itself uses.

    MemFree and MemAvailable are static: they only make the node look healthy.
    """
    lines = []
    for line in real.splitlines():
        name = line.split(":")[0]
        if name in {"MemTotal", "MemFree", "MemAvailable"}:
            share = total if name == "MemTotal" else total - total // 16
            line = f"{name + ':':<16}{share >> 10:>10} kB"  # noqa: PLW2901 - the shown line
        lines.append(line)
    return "\n".join(lines) + "\n"
