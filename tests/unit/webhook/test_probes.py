"""Probes that are taken over, and the sidecar that answers them."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kybernate import keys
from kybernate.settings.webhook import WebhookSettings
from sidecar.options import parse
from tests.unit.webhook.pods import CLUSTER, apply, pod, seat
from webhook.pods.mutate import mutate
from webhook.pods.validate import refusals, unprepared

SETTINGS = WebhookSettings()
VRAM = {keys.VRAM: "24Gi"}
PORTS = {"ports": [{"name": "web", "containerPort": 8000}, {"containerPort": 9000}]}


def admitted(container: dict[str, Any], **notes: str) -> dict[str, Any]:
    given = pod(seat(), notes={**VRAM, **notes}, container={**PORTS, **container})
    assert refusals(given, CLUSTER, SETTINGS.scheduler_name) == []
    return apply(given, mutate(given, CLUSTER, SETTINGS))


def sidecar(spec: dict[str, Any]) -> dict[str, Any]:
    (found,) = [c for c in spec["initContainers"] if c["name"] == keys.SIDECAR]
    return found


@pytest.mark.parametrize(
    ("handler", "wanted", "argument"),
    [
        (
            {"httpGet": {"path": "/h?x=1", "port": 8000, "httpHeaders": [{"name": "A"}]}},
            {
                "httpGet": {
                    "path": "/h?x=1",
                    "port": 15481,
                    "scheme": "HTTP",
                    "httpHeaders": [{"name": "A"}],
                }
            },
            "http:8000",
        ),
        (
            {"httpGet": {"port": "web", "scheme": "HTTPS"}},
            {"httpGet": {"port": 15481, "scheme": "HTTP"}},
            "https:8000",
        ),
        (
            {"tcpSocket": {"port": "8000"}},
            {"httpGet": {"path": "/", "port": 15481, "scheme": "HTTP"}},
            "tcp:8000",
        ),
        (
            {"grpc": {"port": 50051, "service": "s"}},
            {"grpc": {"port": 15481, "service": "s"}},
            "grpc:50051",
        ),
    ],
)
def test_the_kubelet_asks_the_sidecar_which_knows_where_to_ask(
    handler: dict[str, Any], wanted: dict[str, Any], argument: str
) -> None:
    times = {"periodSeconds": 3, "timeoutSeconds": 2, "failureThreshold": 7}
    spec = admitted({"readinessProbe": {**handler, **times}})["spec"]
    assert spec["containers"][0]["readinessProbe"] == {**wanted, **times}
    assert sidecar(spec)["args"] == [
        "--socket=/kyb-pod/init.sock",
        f"--readiness={argument}:timeout=2",
    ]


def test_exec_probes_go_through_kyb_init_and_need_no_sidecar() -> None:
    startup = {"exec": {"command": ["up"]}, "failureThreshold": 30, "initialDelaySeconds": 5}
    alive = {"exec": {"command": ["sh", "-c", "cat x"]}}
    spec = admitted({"livenessProbe": alive, "startupProbe": startup})["spec"]
    first = spec["containers"][0]
    words = ["/kyb/kyb-init", "probe"]
    assert first["startupProbe"]["exec"]["command"] == [*words, "--", "up"]
    assert first["livenessProbe"]["exec"]["command"] == [
        *words,
        "--liveness",
        "305",
        "--",
        "sh",
        "-c",
        "cat x",
    ]
    assert "initContainers" not in spec


@pytest.mark.parametrize(
    ("probes", "grace"),
    [
        ({"startupProbe": {"tcpSocket": {"port": 1}, "failureThreshold": 60}}, "600"),
        ({"startupProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 5}}, "15"),
    ],
)
def test_the_start_up_time_is_the_pods_own(probes: dict[str, Any], grace: str) -> None:
    alive = {"httpGet": {"port": 8000}, "initialDelaySeconds": 40}
    arguments = sidecar(admitted({"livenessProbe": alive, **probes})["spec"])["args"]
    assert f"--liveness=http:8000:timeout=1:grace={grace}" in arguments
    arguments = sidecar(admitted({"livenessProbe": alive})["spec"])["args"]
    assert "--liveness=http:8000:timeout=1:grace=40" in arguments


def test_the_sidecar_can_read_what_it_is_told() -> None:
    probe = {"httpGet": {"port": "web"}}
    names = ("livenessProbe", "readinessProbe", "startupProbe")
    spec = admitted(dict.fromkeys(names, probe), **{keys.COOPERATE: "vllm"})["spec"]
    options = parse(sidecar(spec)["args"])
    assert {one.role: one.listen for one in options.probes} == {
        name.removesuffix("Probe"): spec["containers"][0][name]["httpGet"]["port"] for name in names
    }
    assert (options.engine, options.engine_port) == ("vllm", 8000)
    assert options.socket == f"{keys.POD_SOCKET_DIR}/init.sock"


def test_probes_of_other_containers_are_their_own_business() -> None:
    given = pod(seat(), notes=VRAM)
    other = {"name": "d", "livenessProbe": {"httpGet": {"port": 80}}}
    given["spec"]["containers"].append(copy.deepcopy(other))
    spec = apply(given, mutate(given, CLUSTER, SETTINGS))["spec"]
    assert spec["containers"][1]["livenessProbe"] == other["livenessProbe"]
    assert "initContainers" not in spec


def test_prometheus_scrapes_the_sidecar_of_a_pod_that_asks_to_be_scraped() -> None:
    for port in ({}, {keys.SCRAPE_PORT: "9000"}):
        once = admitted({}, **{keys.SCRAPE: "true", **port})
        assert once["metadata"]["annotations"][keys.SCRAPE_PORT] == "15483"
        wanted = port.get(keys.SCRAPE_PORT, "8000")
        assert sidecar(once["spec"])["args"][1:] == [f"--scrape=http:{wanted}:timeout=10"]
        assert parse(sidecar(once["spec"])["args"]).probes[0].listen == 15483
        assert mutate(once, CLUSTER, SETTINGS) == []
        assert unprepared(once, SETTINGS.scheduler_name) == []
    unasked = admitted({}, **{keys.SCRAPE: "false", keys.SCRAPE_PORT: "9000"})
    assert unasked["metadata"]["annotations"][keys.SCRAPE_PORT] == "9000"
    assert "initContainers" not in unasked["spec"]


def test_a_pod_that_cooperates_gets_the_sidecar_without_probes() -> None:
    spec = admitted({}, **{keys.COOPERATE: "http"})["spec"]
    assert sidecar(spec)["args"][-1] == "--cooperate=http:8000"
    assert "initContainers" not in admitted({}, **{keys.COOPERATE: "none"})["spec"]


@pytest.mark.parametrize("ports", [None, [{"containerPort": 8000}]])
def test_a_pod_that_gives_hints_gets_the_sidecar_and_is_asked_nothing(ports) -> None:
    """A training pod: no port, no probes, nobody who scrapes it."""
    once = admitted({"ports": ports}, **{keys.COOPERATE: "hints", keys.TURN: "always"})
    assert sidecar(once["spec"])["args"] == ["--socket=/kyb-pod/init.sock"]
    options = parse(sidecar(once["spec"])["args"])
    assert (options.probes, options.engine) == ([], "none")
    assert mutate(once, CLUSTER, SETTINGS) == []
    assert unprepared(once, SETTINGS.scheduler_name) == []


def test_a_training_pod_without_a_word_gets_no_sidecar() -> None:
    assert "initContainers" not in admitted({}, **{keys.TURN: "always"})["spec"]


def test_the_sidecar_stands_behind_the_pods_own_init_containers() -> None:
    init = {"name": "fetch", "image": "x"}
    container = {"livenessProbe": {"httpGet": {"port": 1}}}
    given = pod(seat(), notes=VRAM, container=container, spec={"initContainers": [init]})
    spec = apply(given, mutate(given, CLUSTER, SETTINGS))["spec"]
    assert [one["name"] for one in spec["initContainers"]] == ["fetch", "kyb-sidecar"]


def test_the_sidecar_is_clean_by_the_strictest_pod_security_and_small() -> None:
    found = sidecar(admitted({"livenessProbe": {"httpGet": {"port": 1}}})["spec"])
    context = found["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["readOnlyRootFilesystem"] is True
    resources = found["resources"]
    assert resources["limits"] == resources["requests"] == {"cpu": "50m", "memory": "32Mi"}
    assert found["restartPolicy"] == "Always"
    assert "hostPath" not in json.dumps(found)


def test_what_the_api_server_fills_in_changes_nothing_at_a_second_pass() -> None:
    once = admitted({"livenessProbe": {"tcpSocket": {"port": 8000}}})
    container = sidecar(once["spec"])
    container |= {"imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/t"}
    container["volumeMounts"].append({"name": "token", "mountPath": "/var/run/secrets"})
    once["spec"]["containers"][0]["livenessProbe"] |= {"periodSeconds": 10, "timeoutSeconds": 1}
    assert mutate(once, CLUSTER, SETTINGS) == []
    assert refusals(once, CLUSTER, SETTINGS.scheduler_name) == []
    assert unprepared(once, SETTINGS.scheduler_name) == []


def test_a_probe_added_to_an_admitted_pod_is_taken_over_at_its_next_pass() -> None:
    once = admitted({"livenessProbe": {"httpGet": {"port": 8000}}})
    first = once["spec"]["containers"][0]
    first["readinessProbe"] = {"grpc": {"port": 9000}}
    del first["livenessProbe"]
    again = apply(once, mutate(once, CLUSTER, SETTINGS))
    assert sidecar(again["spec"])["args"][1:] == ["--readiness=grpc:9000:timeout=1"]
    assert again["spec"]["containers"][0]["readinessProbe"] == {"grpc": {"port": 15481}}
    assert unprepared(again, SETTINGS.scheduler_name) == []


def test_the_original_probe_can_be_read_off_the_pod() -> None:
    handler = {"httpGet": {"path": "/h", "port": "web"}}
    notes = admitted({"livenessProbe": {**handler, "periodSeconds": 3}})["metadata"]["annotations"]
    assert json.loads(notes[keys.ORIGINAL_RESOURCES])["probes"] == {"livenessProbe": handler}


@pytest.mark.parametrize("undo", ["args", "container", "probe"])
def test_what_another_webhook_undoes_is_refused(undo: str) -> None:
    once = admitted({"livenessProbe": {"httpGet": {"port": 8000}}})
    if undo == "args":
        sidecar(once["spec"])["args"].pop()
    elif undo == "container":
        del once["spec"]["initContainers"]
    else:
        once["spec"]["containers"][0]["livenessProbe"] = {"httpGet": {"port": 8000}}
    (sentence, *_) = unprepared(once, SETTINGS.scheduler_name)
    assert "no other webhook undoes its work" in sentence


def test_the_default_image_is_of_this_version() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert SETTINGS.sidecar_image == f"kybernate/sidecar:{project['project']['version']}"
