from __future__ import annotations

import json
from typing import Any

import pytest

from kybernate import keys
from tests.unit.webhook.pods import CLUSTER, pod, seat
from webhook.cluster import Cluster, Wish, read_nodes
from webhook.validate import refusals, unprepared

NAME = keys.SCHEDULER_NAME
ONE, TWO = keys.seat_resource(1), keys.seat_resource(2)
VENDOR = keys.VENDOR_RESOURCE
VRAM = {keys.VRAM: "24Gi"}


def sentences(given_pod: dict[str, Any], cluster: Cluster = CLUSTER) -> list[str]:
    return refusals(given_pod, cluster, NAME)


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


WRONG = [
    ("two seats", pod(seat(**{TWO: "1"}), notes=VRAM), "ask for one of them"),
    ("a seat twice", pod({ONE: "2"}, notes=VRAM), f"for more GPUs in one seat 1 of {TWO}"),
    ("no seat at all", pod({ONE: "0"}, notes=VRAM), "write 1"),
    ("part of a seat", pod({ONE: "500m"}, notes=VRAM), ONE),
    ("a seat and the vendor's", pod(seat(**{VENDOR: "1"}), notes=VRAM), f"remove {VENDOR}"),
    ("part of a GPU", pod({VENDOR: "1500m"}, notes=VRAM), VENDOR),
    ("two containers", two_containers(), "one container, or into several pods"),
    ("only a request", pod({}, seat(), notes=VRAM), "set it under limits"),
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
    ("time", with_note(keys.READY_WITHIN, "soon"), "such as 30s"),
    ("time without unit", with_note(keys.READY_WITHIN, "30"), "such as 30s"),
    ("preemption", with_note(keys.ON_PREEMPT, "evict"), "pause or kill"),
    ("park tier", with_note(keys.PARK_TIER, "disk"), "ram, nvme or object"),
    ("connections", with_note(keys.CONNECTIONS, "yes"), "end or keep"),
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
        "the host's network",
        probing({"httpGet": {"port": 80}}, spec={"hostNetwork": True}),
        "or write an exec probe",
    ),
    (
        "a hook that asks the workload",
        pod(seat(), notes=VRAM, container={"lifecycle": {"postStart": {"httpGet": {"port": 1}}}}),
        "use a startupProbe",
    ),
    ("unknown engine", with_note(keys.COOPERATE, "tgi"), "vllm, sglang, http, none"),
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
        with_note(keys.READY_WITHIN, "1m30.5s"),
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
        {"uuid": "a", "product": "P", "memoryBytes": 10},
        {"uuid": "b", "product": "P", "memoryBytes": 20},
    ]
    groups = [{"name": "G0", "resource": ONE, "gpus": ["a"]}, {"name": "Gx", "resource": TWO}]
    nodes = [{}, {"status": {}}, {"status": {"gpus": gpus, "groups": groups}}]
    cluster = read_nodes(json.loads(json.dumps(nodes)))
    assert cluster.names(ONE) == {"G0"}
    assert cluster.gpu_sizes(Wish(ONE, ("P",))) == {10}
    assert cluster.gpu_sizes(Wish(ONE, ("P",), "G0", "")) == {10}
    assert cluster.gpu_sizes(Wish(ONE, ("P",), "G0", "n2")) == frozenset()
    assert cluster.gpu_sizes(Wish(ONE, ("Q",))) == frozenset()
    assert cluster.gpu_sizes(Wish(TWO)) == frozenset()
