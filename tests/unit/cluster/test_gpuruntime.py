"""What the runtime class nvidia adds to containers of the one-machine cluster."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tests import simgpu
from tests.cluster.layout import Layout
from tests.cluster.parts import configs
from tests.cluster.parts.gpuruntime import base_spec
from tests.cluster.spec import ClusterSpec, GpuSpec
from tests.cluster.start.bringup import gpu_description

DEFAULT = {"linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}}, "mounts": []}


def test_containers_get_the_devices_and_libraries_of_the_driver(tmp_path) -> None:
    ctr = tmp_path / "ctr"
    ctr.write_text(f"#!/bin/sh\necho '{json.dumps(DEFAULT)}'\n")
    ctr.chmod(0o755)
    node = simgpu.parse(gpu_description(ClusterSpec(gpus=GpuSpec(count=2))), name="n1")
    found = json.loads(base_spec(ctr, node))
    made = {one["path"]: (one["major"], one["minor"]) for one in found["linux"]["devices"]}
    assert set(made) >= {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"}
    first, *rules = found["linux"]["resources"]["devices"]
    assert not first["allow"]
    assert {(rule["major"], rule["minor"]) for rule in rules} == set(made.values())
    assert all(rule["access"] == "rw" for rule in rules)
    places = {one["destination"]: one["options"][0] for one in found["mounts"]}
    assert places["/usr/lib/x86_64-linux-gnu/libcuda.so.1"] == "ro"
    assert places["/run/simgpu"] == "rw"


def test_containerd_has_the_runtime_where_there_are_gpus() -> None:
    node = Layout(Path("/w")).node("n1")

    def runtimes(gpu_spec: Path | None) -> dict[str, dict[str, object]]:
        text = configs.containerd(node, Path("/cni"), Path("/runc"), gpu_spec)
        cri = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]
        return cri["containerd"]["runtimes"]

    assert set(runtimes(None)) == {"runc"}
    nvidia = runtimes(Path("/w/nvidia.json"))["nvidia"]
    assert nvidia["base_runtime_spec"] == "/w/nvidia.json"
    assert nvidia["options"]["BinaryName"] == "/runc"


def test_images_and_processes_follow_who_runs_as_pods() -> None:
    processes, pods = ClusterSpec(), ClusterSpec(node_pods=True)
    assert {"agent", "plugin"} <= processes.process_services
    assert not {"agent", "plugin"} & pods.process_services
    assert {"agent", "device-plugin"} <= set(pods.all_images) - set(processes.all_images)
    assert pods.all_images.count("sidecar") == 1


def test_killed_containers_come_back_soon_where_tests_kill_them() -> None:
    for pods in (True, False):
        spec = ClusterSpec(node_pods=pods)
        config = json.loads(configs.kubelet_config(spec, Layout(Path("/w")), "n1"))
        assert config["featureGates"]["KubeletCrashLoopBackOffMax"] == pods
        assert ("crashLoopBackOff" in config) == pods
