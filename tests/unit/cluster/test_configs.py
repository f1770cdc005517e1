from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from kybernate import keys
from tests.cluster.fetched.binaries import Binaries
from tests.cluster.layout import Layout
from tests.cluster.parts import configs
from tests.cluster.parts.nodes import holder_script
from tests.cluster.spec import ClusterSpec, Ports

LAYOUT = Layout(Path("/w"))
SPEC = ClusterSpec()
PORTS = Ports(20000)
BINARIES = Binaries(Path("/bin"))


@pytest.mark.parametrize(
    "command", [configs.etcd, configs.apiserver, configs.controller_manager, configs.scheduler]
)
def test_command_lines_name_each_flag_once_and_listen_on_loopback_only(command) -> None:
    argv = command(BINARIES, LAYOUT, PORTS)
    flags = [word.split("=")[0] for word in argv[1:]]
    assert len(set(flags)) == len(flags)
    assert all(word.startswith("--") for word in argv[1:])
    assert not [word for word in argv if "0.0.0.0" in word]


def test_the_scheduler_asks_the_extender_only_about_seats_and_by_mutual_tls() -> None:
    config = json.loads(configs.scheduler_config(LAYOUT, PORTS, ours=True))
    (extender,) = config["extenders"]
    assert {one["name"] for one in extender["managedResources"]} == {
        keys.seat_resource(size) for size in (1, 2, 4, 8)
    }
    assert extender["tlsConfig"] == {
        "caFile": "/w/tls/ca.crt",
        "certFile": "/w/tls/scheduler.crt",
        "keyFile": "/w/tls/scheduler.key",
    }
    names = {profile["schedulerName"] for profile in config["profiles"]}
    assert names == {"default-scheduler", keys.SCHEDULER_NAME}


def test_without_our_objects_the_scheduler_has_its_own_account_and_no_extender() -> None:
    config = json.loads(configs.scheduler_config(LAYOUT, PORTS, ours=False))
    assert "extenders" not in config
    assert [one["schedulerName"] for one in config["profiles"]] == ["default-scheduler"]
    assert config["clientConnection"]["kubeconfig"].endswith("/kube-scheduler.kubeconfig")


def test_containerd_reads_its_configuration_and_finds_cdi_and_runc() -> None:
    text = configs.containerd(LAYOUT.node("n1"), Path("/cni"), Path("/runc"))
    cri = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["enable_cdi"] is True
    assert cri["cdi_spec_dirs"] == ["/var/run/cdi"]
    assert cri["restrict_oom_score_adj"] is True
    runc = cri["containerd"]["runtimes"]["runc"]["options"]
    assert runc == {"BinaryName": "/runc", "SystemdCgroup": False}


def test_the_pod_network_is_the_nodes_own_and_needs_no_iptables() -> None:
    (plugin,) = json.loads(configs.cni(SPEC, LAYOUT.node("n2")))["plugins"]
    assert plugin["bridge"] == "kyb2"
    assert plugin["ipMasq"] is False
    assert plugin["ipam"]["ranges"] == [[{"subnet": "10.88.2.0/24"}]]


def test_the_kubelet_keeps_to_its_own_cgroup_and_evicts_nothing() -> None:
    config = json.loads(configs.kubelet_config(SPEC, LAYOUT, "n2"))
    assert config["cgroupRoot"] == "/kyb-n2"
    assert config["address"] == "10.88.2.1"
    assert set(config["evictionHard"].values()) == {"0%"}
    assert config["makeIPTablesUtilChains"] is False


def test_paper_memory_replaces_the_total_and_what_is_free() -> None:
    real = "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable: 2 kB\nSwapTotal:     0 kB\n"
    shown = dict(line.split(":") for line in configs.meminfo(real, 1 << 41).splitlines())
    assert int(shown["MemTotal"].split()[0]) == 1 << 31
    assert int(shown["MemAvailable"].split()[0]) > 1 << 30
    assert shown["SwapTotal"].split() == ["0", "kB"]


def test_a_node_mounts_all_its_folders_before_it_says_that_it_is_up() -> None:
    node = LAYOUT.node("n1")
    lines = holder_script(node, Path("/pause"), paper=True).splitlines()
    assert lines[-1] == "exec /pause"
    assert lines[-2] == ": > /w/n1/up"
    for source, target in node.binds().items():
        assert f"mount --rbind {source} {target}" in lines
    assert "mount --bind /w/n1/meminfo /proc/meminfo" in lines


def test_a_node_with_the_machines_own_memory_binds_no_meminfo() -> None:
    assert "meminfo" not in holder_script(LAYOUT.node("n1"), Path("/pause"), paper=False)
