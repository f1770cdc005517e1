from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kybernate.errors import ConfigError
from kybernate.settings.plugin import parse_seats_config
from tests import simgpu
from tests.cluster.layout import SOCKET_PATH_LIMIT, Layout, work_root
from tests.cluster.spec import FIRST_PORT, PORTS, ClusterSpec, GpuSpec, Ports
from tests.cluster.start.bringup import gpu_description


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("name", {"name": "Kyb"}),
        ("name", {"name": "far-too-long"}),
        ("nodes", {"nodes": ("n1", "n1")}),
        ("nodes", {"nodes": ()}),
        ("nodes", {"nodes": ("n/1",)}),
        ("subnet", {"subnet": "10.88.0.0/24"}),
        ("subnet", {"subnet": "here"}),
        ("port_base", {"port_base": 80}),
        ("services", {"services": frozenset({"operator"})}),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_field(field, change) -> None:
    with pytest.raises(ConfigError) as caught:
        ClusterSpec(**change)
    assert caught.value.field == field


def test_each_node_has_its_own_network_and_names() -> None:
    spec = ClusterSpec(nodes=("a", "b"), subnet="10.99.0.0/16")
    assert spec.node_subnet("b") == "10.99.2.0/24"
    assert [spec.node_ip(node) for node in spec.nodes] == ["10.99.1.1", "10.99.2.1"]
    assert [spec.bridge(node) for node in spec.nodes] == ["kyb1", "kyb2"]
    assert [spec.cgroup(node) for node in spec.nodes] == ["kyb-a", "kyb-b"]


def test_a_control_plane_alone_has_neither_kubelets_nor_node_services() -> None:
    spec = ClusterSpec(control_plane_only=True)
    assert spec.node_names == ()
    assert spec.running_services == {"extender", "webhook", "proxy", "controller"}


def test_without_our_objects_none_of_our_services_runs() -> None:
    assert ClusterSpec(overlay=None).running_services == frozenset()


def test_ports_are_all_different_and_lie_in_their_block() -> None:
    ports = Ports(20000)
    named = [
        getattr(ports, name) for name, value in vars(Ports).items() if isinstance(value, property)
    ]
    assert len(set(named)) == len(named)
    assert set(named) <= set(ports.all())


def test_the_first_block_without_a_taken_port_is_chosen() -> None:
    assert Ports.free(lambda port: port == FIRST_PORT + 3).base == FIRST_PORT + PORTS
    with pytest.raises(ConfigError):
        Ports.free(lambda _port: True)


def test_a_folder_too_deep_for_unix_sockets_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long"):
        Layout(Path("/" + "x" * 90))
    with pytest.raises(ConfigError, match="absolute"):
        Layout(Path("relative"))
    with pytest.raises(ConfigError, match="cover"):
        Layout(Path("/run/kyb"))
    with pytest.raises(ConfigError, match="blanks"):
        Layout(Path("/tmp/a b"))


def test_sockets_of_the_longest_names_fit() -> None:
    layout = Layout(Path("/" + "x" * 60))
    node = layout.node("n2345678")
    for path in (node.cri_socket, node.root / "kubelet/pod-resources/kubelet.sock"):
        assert len(str(path)) <= SOCKET_PATH_LIMIT


def test_clusters_of_each_checkout_have_a_folder_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KYB_WORK", raising=False)
    here = work_root()
    monkeypatch.setattr("tests.cluster.layout.REPOSITORY", Path("/another"))
    assert work_root() != here
    Layout(here / "n2345678")
    monkeypatch.setenv("KYB_WORK", "/given")
    assert work_root() == Path("/given")


@pytest.mark.parametrize(("gpus", "sizes"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4])])
def test_the_seats_of_a_node_fit_its_gpus_and_the_plugin_accepts_them(gpus, sizes) -> None:
    spec = ClusterSpec(gpus=GpuSpec(count=gpus))
    config = parse_seats_config(yaml.safe_dump(dict(spec.seats_config)))
    assert [entry.group_size for entry in config.profiles] == sizes


def test_gpus_are_described_in_pairs_for_the_driver() -> None:
    described = simgpu.parse(gpu_description(ClusterSpec()), name="n1")
    assert len(described.gpus) == 4
    assert {gpu.memory for gpu in described.gpus} == {80 << 30}
    assert described.links[0][1] == described.links[2][3] == "NV18"
    assert described.links[1][2] == "SYS"
