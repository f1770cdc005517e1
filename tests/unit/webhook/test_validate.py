from __future__ import annotations

import json
from typing import Any

import pytest

from kybernate import keys
from kybernate.api.nodeseats import read_gpu_node
from tests.unit.webhook.pods import CLUSTER, pod, seat
from webhook.pods.cluster import Cluster, Wish, cluster_of
from webhook.pods.validate import refusals, unprepared

NAME = keys.SCHEDULER_NAME
ONE, TWO = keys.seat_resource(1), keys.seat_resource(2)
VENDOR = keys.VENDOR_RESOURCE
VRAM = {keys.VRAM: "24Gi"}


def sentences(given_pod: dict[str, Any], cluster: Cluster = CLUSTER) -> list[str]:
    return refusals(given_pod, cluster, NAME)


def with_host_path(path: str) -> dict[str, Any]:
    """A seat whose container mounts a folder or a device of the node."""
    mounts = [{"name": "host", "mountPath": "/host"}]
    volumes = [{"name": "host", "hostPath": {"path": path}}]
    more = {"container": {"volumeMounts": mounts}, "spec": {"volumes": volumes}}
    return pod(seat(), notes=VRAM, **more)


def with_note(name: str, value: str) -> dict[str, Any]:
    return pod(seat(), notes={**VRAM, name: value})


def gang(name: str, size: str) -> dict[str, Any]:
    return pod(seat(), notes={**VRAM, keys.GANG: name, keys.GANG_SIZE: size})


def two_containers() -> dict[str, Any]:
    both = pod(seat(), notes=VRAM)
    both["spec"]["containers"].append({"name": "d", "resources": {"limits": {VENDOR: "1"}}})
    return both


def unclear() -> dict[str, Any]:
    both = pod(notes={**VRAM, keys.GPUS_ANNOTATION: "1"})
    both["spec"]["containers"].append({"name": "d"})
    return both


def with_init(**container: Any) -> dict[str, Any]:
    return pod(seat(), notes=VRAM, spec={"initContainers": [{"name": "i", **container}]})


def probing(probe: dict[str, Any], **more: Any) -> dict[str, Any]:
    return pod(seat(), notes=VRAM, container={"livenessProbe": probe}, **more)


def forged(record: str = "{}", **more: Any) -> dict[str, Any]:
    """A new pod that says it has been here before."""
    whole = {"container": "c", "resources": {}, **json.loads(record)}
    notes = {**VRAM, keys.ORIGINAL_RESOURCES: json.dumps(whole)}
    return pod(seat(), notes=notes, **more)


def mounting(**mount: Any) -> dict[str, Any]:
    return {"volumeMounts": [mount]}


def granted(**rights: Any) -> dict[str, Any]:
    return pod(seat(), notes=VRAM, container={"securityContext": rights})


WRONG = [
    *(
        (f"capability {name}", granted(capabilities={"add": [name]}), "without a seat")
        for name in ("SYS_ADMIN", "SYS_PTRACE", "sys_ptrace", "CAP_SYS_ADMIN", "ALL", "BPF")
    ),
    ("privileged", granted(privileged=True), "leave privileged out"),
    ("privileged init", with_init(securityContext={"privileged": True}), "Container i is"),
    ("host network", pod(seat(), notes=VRAM, spec={"hostNetwork": True}), "leave it out"),
    ("host IPC", pod(seat(), notes=VRAM, spec={"hostIPC": True}), "leave it out"),
    ("users of its own", pod(seat(), notes=VRAM, spec={"hostUsers": False}), "leave it out"),
    ("a name of two parts", with_note(keys.MODEL, "victim/llama"), "such as llama-8b"),
    ("a name with a line break", with_note(keys.MODEL, "a\nb"), "such as llama-8b"),
    *(
        (f"long {name}", with_note(name, "G" * 1025), "at most 1024")
        for name in (keys.MODEL, keys.GPU_PRODUCT)
    ),
    (
        "forged record and our path",
        forged(container=mounting(name="v", mountPath="/run/kyb")),
        "choose another path",
    ),
    (
        "forged record and our folder from elsewhere",
        forged(container=mounting(name="v", mountPath="/kyb-pod")),
        "choose another path",
    ),
    (
        "forged record and a part of our folder",
        forged(container=mounting(name="kyb-pod", mountPath="/kyb-pod", subPath="x")),
        "choose another path",
    ),
    (
        "forged record and our volume",
        forged(spec={"volumes": [{"name": "kyb-pod", "hostPath": {"path": "/run/kyb"}}]}),
        "choose another name",
    ),
    (
        "forged record and our name",
        forged(spec={"initContainers": [{"name": "kyb-sidecar"}]}),
        "choose another name",
    ),
    *(
        (
            f"forged record and the sidecar's port {port}",
            forged(
                f'{{"probes": {{"livenessProbe": {{"httpGet": {{"port": {port}}}}}}}}}',
                container={"livenessProbe": {"httpGet": {"port": 15480}}},
            ),
            "use another port",
        )
        for port in (15483, 15484)
    ),
    *(
        (
            f"our path as {path}",
            pod(seat(), notes=VRAM, container=mounting(name="v", mountPath=path)),
            "choose another path",
        )
        for path in ("/var/run/kyb", "//run/./kyb", "/x/../run/kyb/", "run/kyb")
    ),
    (
        "GPUs where there is no seat",
        with_init(env=[{"name": keys.ENV_NVIDIA_VISIBLE, "value": "all"}]),
        "remove it",
    ),
    (
        "no GPUs where there is a seat",
        pod(
            seat(),
            notes=VRAM,
            container={"env": [{"name": keys.ENV_NVIDIA_VISIBLE, "value": "void"}]},
        ),
        "remove it",
    ),
    ("two seats", pod(seat(**{TWO: "1"}), notes=VRAM), "ask for one of them"),
    ("a seat twice", pod({ONE: "2"}, notes=VRAM), f"for more GPUs in one seat 1 of {TWO}"),
    ("no seat at all", pod({ONE: "0"}, notes=VRAM), "write 1"),
    ("part of a seat", pod({ONE: "500m"}, notes=VRAM), ONE),
    ("a seat and the vendor's", pod(seat(**{VENDOR: "1"}), notes=VRAM), f"remove {VENDOR}"),
    ("part of a GPU", pod({VENDOR: "1500m"}, notes=VRAM), VENDOR),
    ("two containers", two_containers(), "one container, or into several pods"),
    ("a request of two", pod({}, {ONE: "2"}, notes=VRAM), "write 1"),
    ("request and limit", pod({VENDOR: "2"}, {VENDOR: "1"}, notes=VRAM), "make them equal"),
    ("seat in an init container", with_init(resources={"limits": seat()}), "ask for it there"),
    ("GPU in an init container", with_init(resources={"limits": {VENDOR: 1}}), "ask for it there"),
    ("label alone", pod(notes=VRAM), "or remove the label"),
    ("which container", unclear(), "kubectl.kubernetes.io/default-container"),
    (
        "annotation without label",
        pod(notes={keys.GPUS_ANNOTATION: "1"}, label=None),
        "add the label",
    ),
    ("no number", pod(notes={keys.GPUS_ANNOTATION: "two"}), "such as 2"),
    ("no GPU", pod(notes={keys.GPUS_ANNOTATION: "0"}), "such as 2"),
    ("another number", with_note(keys.GPUS_ANNOTATION, "2"), "leave the annotation out"),
    ("shared processes", pod(seat(), notes=VRAM, spec={"shareProcessNamespace": True}), "leave it"),
    ("host processes", pod(seat(), notes=VRAM, spec={"hostPID": True}), "leave it out"),
    ("node name", pod(seat(), notes=VRAM, spec={"nodeName": "n1"}), "use a nodeSelector"),
    ("scheduler", pod(seat(), notes=VRAM, spec={"schedulerName": "other"}), "leave it out"),
    (
        "resources of the pod",
        pod(seat(), notes=VRAM, spec={"resources": {"limits": {"memory": "1Gi"}}}),
        "on the containers instead",
    ),
    ("vram in words", pod(seat(), notes={keys.VRAM: "24 GB"}), "24Gi"),
    ("no vram", pod(seat(), notes={keys.VRAM: "0"}), "such as 24Gi"),
    ("negative vram", pod(seat(), notes={keys.VRAM: "-1Gi"}), "negative"),
    ("time", with_note(keys.READY_WITHIN, "soon"), "for example 30s"),
    ("time without unit", with_note(keys.READY_WITHIN, "30"), "for example 30s"),
    ("preemption", with_note(keys.ON_PREEMPT, "evict"), "pause or kill"),
    ("park tier", with_note(keys.PARK_TIER, "disk"), "ram, nvme, object"),
    *(
        (f"{name} of a seat", pod(seat(**{name: "1"}), notes=VRAM), f"asks for {name}")
        for name in ("mellanox.com/hca", "openshift.io/mlx5_rdma", "vpc.amazonaws.com/efa")
    ),
    *(
        (f"{path} of a seat", with_host_path(path), "couldn't be parked")
        for path in ("/dev/infiniband/", "//dev/./infiniband/uverbs0", "/dev/nvidia-fs12")
    ),
    ("connections", with_note(keys.CONNECTIONS, "yes"), "end or keep"),
    ("ready while", with_note(keys.READY_WHILE, "parked"), "wakeable or active"),
    ("nccl", with_note(keys.NCCL, "fast"), "parkable or as-is"),
    ("topology", with_note(keys.GPU_TOPOLOGY, "fast"), "nvlink"),
    ("products", with_note(keys.GPU_PRODUCT, " | "), "separated by |"),
    ("a gang without size", with_note(keys.GANG, "train"), "write how many pods the gang has"),
    ("a size without gang", with_note(keys.GANG_SIZE, "2"), "name the gang there"),
    *(
        (f"gang size {size}", gang("train", size), "no whole number from 1 to 256")
        for size in ("0", "two", "-1", "1.0", "257")
    ),
    *((f"gang {name!r}", gang(name, "2"), "such as training-1") for name in ("", "a b", "x" * 64)),
    ("form of a group", with_note(keys.REQUIRE_GROUP, "G 1"), "such as G01"),
    ("unknown group", with_note(keys.REQUIRE_GROUP, "G9"), "there are: G0, G1"),
    ("group of another size", with_note(keys.PREFER_GROUP, "G01"), "there are: G0, G1"),
    *(
        (name, with_note(name, "x"), "written by the system; remove it")
        for name in keys.SYSTEM_ANNOTATIONS
    ),
    *(
        (name, pod(seat(), notes=VRAM, container={"env": [{"name": name}]}), "remove it")
        for name in (*keys.SYSTEM_ENV, "KYB_ANYTHING")
    ),
    ("variable in an init container", with_init(env=[{"name": "KYB_X"}]), "Container i sets KYB_X"),
    ("no command", probing({"exec": {}}), "names no command"),
    ("no handler", probing({"periodSeconds": 1}), "needs one of httpGet"),
    ("two handlers", probing({"exec": {"command": ["x"]}, "grpc": {"port": 1}}), "needs one of"),
    ("host", probing({"httpGet": {"port": 80, "host": "example.org"}}), "leave host out"),
    ("host by TCP", probing({"tcpSocket": {"port": 80, "host": "127.0.0.1"}}), "leave host out"),
    ("unknown port name", probing({"httpGet": {"port": "web"}}), "add it under ports"),
    ("no port", probing({"httpGet": {"path": "/"}}), "add it under ports"),
    ("a port of the sidecar's", probing({"httpGet": {"port": 15482}}), "use another port"),
    (
        "the sidecar's own port",
        probing({"httpGet": {"port": 15480}}),
        "write the workload's own port",
    ),
    (
        "kyb-init by hand",
        probing({"exec": {"command": ["/kyb/kyb-init", "probe", "--", "x"]}}),
        "write the workload's own port or command",
    ),
    (
        "a hook that asks the workload",
        pod(seat(), notes=VRAM, container={"lifecycle": {"postStart": {"httpGet": {"port": 1}}}}),
        "use a startupProbe",
    ),
    ("unknown engine", with_note(keys.COOPERATE, "tgi"), "vllm, sglang, http, hints, none"),
    ("an engine without a port", with_note(keys.COOPERATE, "vllm"), "add the engine's port"),
    (
        "the sidecar's name",
        pod(seat(), notes=VRAM, spec={"initContainers": [{"name": "kyb-sidecar"}]}),
        "choose another name",
    ),
    (
        "the volume's name",
        pod(seat(), notes=VRAM, spec={"volumes": [{"name": "kyb-pod"}]}),
        "choose another name",
    ),
    (
        "the folder's path",
        pod(seat(), notes=VRAM, container={"volumeMounts": [{"mountPath": "/kyb-pod/"}]}),
        "choose another path",
    ),
    (
        "record with strange probes",
        with_note(
            keys.ORIGINAL_RESOURCES,
            '{"container":"c","resources":{},"probes":{"livenessProbe":{"exec":{}}}}',
        ),
        "the webhook writes it",
    ),
    ("empty memory", pod(seat(memory=""), notes=VRAM), "resources.limits.memory"),
    ("memory in words", pod(seat(memory="much"), notes=VRAM), "resources.limits.memory"),
    ("record", with_note(keys.ORIGINAL_RESOURCES, "{}"), "remove it, the webhook writes it"),
    ("record that is no JSON", with_note(keys.ORIGINAL_RESOURCES, "{"), "the webhook writes it"),
    (
        "record of another container",
        with_note(keys.ORIGINAL_RESOURCES, '{"container":"x","resources":{}}'),
        "the webhook writes it",
    ),
    (
        "record with less than nothing",
        with_note(keys.ORIGINAL_RESOURCES, '{"container":"c","resources":{},"vram":-1}'),
        "the webhook writes it",
    ),
    (
        "record with a port that is none",
        with_note(keys.ORIGINAL_RESOURCES, '{"container":"c","resources":{},"scrape":65536}'),
        "the webhook writes it",
    ),
    (
        "record with strange memory",
        with_note(
            keys.ORIGINAL_RESOURCES, '{"container":"c","resources":{"limits":{"memory":"x"}}}'
        ),
        "the webhook writes it",
    ),
]


@pytest.mark.parametrize(
    ("given_pod", "says"), [(p, s) for _, p, s in WRONG], ids=[w[0] for w in WRONG]
)
def test_what_is_wrong_is_refused_in_one_sentence(given_pod: dict[str, Any], says: str) -> None:
    found = sentences(given_pod)
    assert len(found) == 1, found
    assert says in found[0]
    assert found[0].endswith(".")
    assert found[0][0] != " "


@pytest.mark.parametrize(
    "given_pod",
    [
        pod(seat(), notes=VRAM),
        pod(seat()),
        pod({VENDOR: "1"}, notes=VRAM),
        pod({VENDOR: "0", **seat()}, notes=VRAM),
        with_note(keys.REQUIRE_GROUP, "G0"),
        pod({}, seat(), notes=VRAM),
        pod({}, {VENDOR: "2"}, notes=VRAM),
        with_init(env=[{"name": keys.ENV_NVIDIA_VISIBLE, "value": "void"}]),
        with_init(volumeMounts=[{"name": "v", "mountPath": "/run/kyb"}]),
        with_note(keys.MODEL, "Llama-3.1 8B:Q4_K_M"),
        with_note(keys.SHORT_PREFER_GROUP, "G0"),
        granted(capabilities={"add": ["IPC_LOCK", "SYS_NICE", "NET_ADMIN"], "drop": ["ALL"]}),
        granted(allowPrivilegeEscalation=True, runAsUser=0, seccompProfile={"type": "Unconfined"}),
        pod(seat(), notes=VRAM, spec={"hostUsers": True, "hostIPC": False}),
        pod(seat(), notes=VRAM, container=mounting(name="v", mountPath="/run")),
        pod(seat(), notes=VRAM, container={"lifecycle": {"postStart": {"exec": {}}}}),
        pod(seat(), notes=VRAM, spec={"volumes": [{"name": "v", "hostPath": {"path": "/data"}}]}),
        with_note(keys.READY_WITHIN, "1m30.5s"),
        with_note(keys.READY_WHILE, "active"),
        with_note(keys.GPU_TOPOLOGY, "nvlink"),
        with_note(keys.GPU_TOPOLOGY, "PCIE_SWITCH"),
        with_init(restartPolicy="Always", livenessProbe={"exec": {}}, env=[{"name": "A"}]),
        pod({VENDOR: "2"}, label=None, spec={"hostPID": True}),
        pod(label=None, notes={keys.ASSIGNED_GROUP: "x"}),
    ],
)
def test_what_is_right_or_not_ours_passes(given_pod: dict[str, Any]) -> None:
    assert sentences(given_pod) == []


def test_groups_are_compared_only_with_known_ones() -> None:
    assert sentences(with_note(keys.REQUIRE_GROUP, "G9"), Cluster()) == []


def test_a_pod_that_was_not_prepared_is_named_with_what_lacks() -> None:
    found = unprepared(pod(seat(), notes=VRAM, spec={"schedulerName": NAME}), NAME)
    assert len(found) == 3
    assert "spec.readinessGates" in found[0]
    assert unprepared(pod(label=None), NAME) == []


def test_gpu_nodes_are_read_leniently() -> None:
    gpus = [
        {"index": 0, "uuid": "a", "product": "P", "memoryBytes": 10, "healthy": True},
        {"index": 1, "uuid": "b", "product": "P", "memoryBytes": 20, "healthy": True},
    ]
    groups = [
        {"name": "G0", "resource": ONE, "gpus": ["a"], "seats": 1},
        {"name": "Gx", "resource": TWO, "gpus": [], "seats": 1},
    ]
    odd = {"status": {"gpus": [{"uuid": "c"}], "groups": groups}}
    nodes = [{}, {"status": {}}, odd, {"status": {"gpus": gpus, "groups": groups}}]
    cluster = cluster_of(read_gpu_node(node, 0) for node in nodes)
    assert cluster.names(ONE) == {"G0"}
    assert cluster.gpu_sizes(Wish(ONE, ("P",))) == {10}
    assert cluster.gpu_sizes(Wish(ONE, ("P",), "G0", "")) == {10}
    assert cluster.gpu_sizes(Wish(ONE, ("P",), "G0", "n2")) == frozenset()
    assert cluster.gpu_sizes(Wish(ONE, ("Q",))) == frozenset()
    assert cluster.gpu_sizes(Wish(TWO)) == frozenset()


def test_devices_that_pass_the_driver_by_are_others_business() -> None:
    """Of no amount, of another container, of a folder that only begins alike."""
    made = with_host_path("/dev/shm")
    made["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] = "0"
    aside = {"name": "d", "resources": {"limits": {"rdma/hca": "1"}}}
    made["spec"]["containers"].append(aside)
    assert refusals(made, CLUSTER, keys.SCHEDULER_NAME) == []


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_that_none_is_is_named_as_what_the_user_wrote(port: str) -> None:
    notes = {**VRAM, keys.SCRAPE: "true", keys.SCRAPE_PORT: port}
    (said,) = sentences(pod(seat(), notes=notes))
    assert (
        said
        == f"Annotation {keys.SCRAPE_PORT} is {port}, which is no port; write one from 1 to 65535."
    )
