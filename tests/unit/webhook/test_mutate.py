from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate import keys
from kybernate.core.quantity import parse_quantity
from kybernate.errors import RefusedError
from kybernate.settings.webhook import WebhookSettings
from tests.unit.webhook.pods import CLUSTER, GIB, apply, pod, seat
from webhook.pods.cluster import Cluster
from webhook.pods.mutate import hide_from_debuggers, mutate
from webhook.pods.validate import refusals, unprepared

SETTINGS = WebhookSettings()
NAME = SETTINGS.scheduler_name
VRAM = {keys.VRAM: "24Gi"}


def admitted(given_pod: dict[str, Any], cluster: Cluster = CLUSTER) -> dict[str, Any]:
    return apply(given_pod, mutate(given_pod, cluster, SETTINGS))


def container(given_pod: dict[str, Any], cluster: Cluster = CLUSTER) -> dict[str, Any]:
    first: dict[str, Any] = admitted(given_pod, cluster)["spec"]["containers"][0]
    return first


@pytest.mark.parametrize(
    "asking",
    [
        pod({"nvidia.com/gpu": "2"}, notes=VRAM),
        pod({"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 2}, notes=VRAM),
        pod(notes={**VRAM, keys.GPUS_ANNOTATION: "2"}),
        pod(seat(2), notes=VRAM),
        pod(seat(2), seat(2), notes=VRAM, label=None),
        pod(seat(2), notes={**VRAM, keys.GPUS_ANNOTATION: "2"}),
        pod(requests=seat(2), notes=VRAM, label=None),
        pod(requests={"nvidia.com/gpu": "2"}, notes=VRAM),
    ],
)
def test_every_way_of_asking_becomes_one_seat(asking: dict[str, Any]) -> None:
    resources = container(asking)["resources"]
    assert resources["limits"] == {"kyb.ai/gpu-2x-seat": "1"}
    assert resources["requests"] == {"kyb.ai/gpu-2x-seat": "1", "memory": "48Gi"}


VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def test_only_the_container_with_the_seat_sees_gpus() -> None:
    given_pod = pod(
        seat(),
        notes={**VRAM, keys.COOPERATE: "vllm"},
        container={"ports": [{"containerPort": 80}]},
        spec={"initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "all"}}]}]},
    )
    given_pod["spec"]["containers"] += [{"name": "d"}, {"name": "e", "env": [VOID]}]
    spec = admitted(given_pod)["spec"]
    seated, *others = spec["containers"]
    assert VOID["name"] not in {one["name"] for one in seated["env"]}
    others += spec["initContainers"]
    assert [one["name"] for one in others] == ["d", "e", "i", keys.SIDECAR]
    for other in others:
        assert other["env"] == [VOID], other["name"]


def test_a_container_that_lost_its_word_of_no_gpus_is_told() -> None:
    made = admitted(beside({"name": "d"}))
    assert unprepared(made, NAME) == []
    made["spec"]["containers"][1]["env"] = []
    (found,) = unprepared(made, NAME)
    assert "NVIDIA_VISIBLE_DEVICES of container d is not what it wrote" in found


def beside(other: dict[str, Any]) -> dict[str, Any]:
    made = pod(seat(), notes=VRAM)
    made["spec"]["containers"].append(other)
    return made


def test_new_ephemeral_containers_see_no_gpus() -> None:
    old, new = {"name": "old"}, {"name": "new", "env": [{"name": "A", "value": "b"}]}
    before = pod(seat(), notes=VRAM, spec={"ephemeralContainers": [old]})
    now = pod(seat(), notes=VRAM, spec={"ephemeralContainers": [old, new]})
    found = apply(now, hide_from_debuggers(now, before))["spec"]
    assert found["ephemeralContainers"] == [old, {**new, "env": [*new["env"], VOID]}]
    assert found["containers"] == now["spec"]["containers"]
    plain = pod(label=None, spec={"ephemeralContainers": [new]})
    assert hide_from_debuggers(plain, pod(label=None)) == []


def test_the_short_name_of_a_wish_is_taken_for_the_whole() -> None:
    notes = {**VRAM, keys.SHORT_PREFER_GROUP: "G1"}
    found = admitted(pod(seat(), notes=notes))["metadata"]["annotations"]
    assert (found[keys.PREFER_GROUP], found[keys.SHORT_PREFER_GROUP]) == ("G1", "G1")
    with pytest.raises(RefusedError, match="prefer-group is G9, but no node"):
        admitted(pod(seat(), notes={**VRAM, keys.SHORT_PREFER_GROUP: "G9"}))
    other = pod(label=None, notes={keys.SHORT_PREFER_GROUP: "G1"})
    assert mutate(other, CLUSTER, SETTINGS) == []


def test_a_pod_that_only_asks_for_a_seat_gets_the_label_too() -> None:
    labels = admitted(pod(seat(), notes=VRAM, label=None))["metadata"]["labels"]
    assert labels == {keys.MANAGED_LABEL: "true"}


@pytest.mark.parametrize("said", ["false", "yes", ""])
def test_nobody_has_a_seat_and_a_label_that_denies_it(said: str) -> None:
    with pytest.raises(RefusedError, match=rf'kyb\.ai/managed is "{said}", but container c asks'):
        admitted(pod(seat(), notes=VRAM, label=said))
    assert mutate(pod({keys.VENDOR_RESOURCE: "1"}, label=said), CLUSTER, SETTINGS) == []


@pytest.mark.parametrize("said", [None, "false"])
def test_a_seat_without_its_label_after_admission_is_refused(said: str | None) -> None:
    once = admitted(pod(seat(), notes=VRAM))
    assert unprepared(once, NAME) == []
    del once["metadata"]["labels"][keys.MANAGED_LABEL]
    if said:
        once["metadata"]["labels"][keys.MANAGED_LABEL] = said
    assert refusals(once, CLUSTER, NAME) + unprepared(once, NAME)


def test_the_pod_gets_what_a_seat_needs() -> None:
    spec = admitted(pod(seat(), notes=VRAM))["spec"]
    assert spec["schedulerName"] == "kybernate-scheduler"
    assert spec["readinessGates"] == [{"conditionType": "kyb.ai/wakeable"}]
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert spec["terminationGracePeriodSeconds"] == 60
    assert spec["volumes"] == [
        {"name": "kyb-shm", "emptyDir": {"medium": "Memory"}},
        {"name": "kyb-pod", "emptyDir": {}},
    ]
    first = spec["containers"][0]
    assert first["volumeMounts"] == [
        {"name": "kyb-shm", "mountPath": "/dev/shm"},
        {"name": "kyb-pod", "mountPath": "/kyb-pod"},
    ]
    assert "initContainers" not in spec
    assert {"name": "NCCL_NVLS_ENABLE", "value": "0"} in first["env"]
    assert "hostPath" not in json.dumps(spec)


@pytest.mark.parametrize("n", [1, 2])
def test_variables_for_several_gpus_are_set_only_there(n: int) -> None:
    names = [variable["name"] for variable in container(pod(seat(n), notes=VRAM))["env"]]
    assert ("NCCL_P2P_DISABLE" in names) == (n > 1)


@pytest.mark.parametrize("said", [None, "parkable", "as-is"])
@pytest.mark.parametrize("n", [1, 2])
def test_nccls_transports_are_left_to_who_says_so(n: int, said: str | None) -> None:
    """As the page of time-outs lists them; the time-outs are set in any case."""
    notes = VRAM if said is None else {**VRAM, keys.NCCL: said}
    given = {one["name"] for one in container(pod(seat(n), notes=notes))["env"]}
    every = {"NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"}
    several = {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "VLLM_ALLREDUCE_USE_SYMM_MEM"}
    wanted = every | several if n > 1 else every
    assert given & (every | several) == (set() if said == "as-is" else wanted)
    assert {"NCCL_RAS_ENABLE", "TORCH_NCCL_ENABLE_MONITORING", "VLLM_RPC_TIMEOUT"} <= given
    assert ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in given) == (n > 1)


def test_what_the_pod_says_itself_is_kept() -> None:
    spec = admitted(
        pod(
            seat(),
            notes=VRAM,
            container={
                "env": [{"name": "NCCL_NVLS_ENABLE", "value": "1"}],
                "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/"}],
            },
            spec={
                "terminationGracePeriodSeconds": 600,
                "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "mine", "emptyDir": {}}],
                "readinessGates": [{"conditionType": "other"}],
                "schedulerName": "default-scheduler",
            },
        )
    )["spec"]
    assert spec["terminationGracePeriodSeconds"] == 600
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert [volume["name"] for volume in spec["volumes"]] == ["mine", "kyb-pod"]
    assert [gate["conditionType"] for gate in spec["readinessGates"]] == [
        "other",
        "kyb.ai/wakeable",
    ]
    assert spec["containers"][0]["env"][0]["value"] == "1"
    assert spec["schedulerName"] == "kybernate-scheduler"


def test_a_narrower_toleration_does_not_stand_in() -> None:
    narrow = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}
    spec = admitted(pod(seat(), notes=VRAM, spec={"tolerations": [narrow]}))["spec"]
    assert spec["tolerations"] == [narrow, {"key": "nvidia.com/gpu", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("command", "args", "wanted_command", "wanted_args"),
    [
        (["a", "b"], ["c"], ["--", "a", "b", "c"], None),
        (["a"], None, ["--", "a"], None),
        (None, ["c"], ["--image", "--"], ["c"]),
        (None, None, ["--image", "--"], None),
        ([], [], ["--image", "--"], []),
    ],
)
def test_kyb_init_runs_the_command(
    command: list[str] | None,
    args: list[str] | None,
    wanted_command: list[str],
    wanted_args: list[str] | None,
) -> None:
    given_words = {"command": command, "args": args}
    more = {field: words for field, words in given_words.items() if words is not None}
    first = container(pod(seat(), notes=VRAM, container=more))
    assert first["command"] == ["/kyb/kyb-init", *wanted_command]
    assert first.get("args") == wanted_args


@pytest.mark.parametrize(
    ("limit", "request_", "wanted_limit", "wanted_request"),
    [
        (None, None, None, 48),
        (None, "1Gi", None, 49),
        ("2Gi", "1Gi", 50, 49),
        ("2Gi", "2Gi", 50, 50),
        ("2Gi", None, 50, 50),
    ],
)
def test_memory_is_raised_alike(
    limit: str | None, request_: str | None, wanted_limit: int | None, wanted_request: int
) -> None:
    limits = seat(2, **({"memory": limit} if limit else {}))
    requests = {"memory": request_} if request_ else None
    resources = container(pod(limits, requests, notes=VRAM))["resources"]
    found = {field: resources[field].get("memory") for field in ("limits", "requests")}
    in_gib = {field: text and parse_quantity(text) / GIB for field, text in found.items()}
    assert in_gib == {"limits": wanted_limit, "requests": wanted_request}


@pytest.mark.parametrize(
    ("gpus", "product", "wanted"),
    [(1, None, "80Gi"), (2, None, "160Gi"), (1, "NVIDIA L4", "24Gi"), (1, "x | NVIDIA L4", "24Gi")],
)
def test_without_vram_the_largest_gpu_that_fits_counts(
    gpus: int, product: str | None, wanted: str
) -> None:
    notes = {keys.GPU_PRODUCT: product} if product else None
    resources = container(pod(seat(gpus), notes=notes))["resources"]
    assert resources["requests"]["memory"] == wanted


def test_an_assumed_amount_stays_while_there_are_such_gpus_or_none_are_known() -> None:
    once = admitted(pod(seat()), Cluster(CLUSTER.groups[1:]))
    assert once["spec"]["containers"][0]["resources"]["requests"]["memory"] == "24Gi"
    assert mutate(once, Cluster(), SETTINGS) == []
    assert mutate(once, CLUSTER, SETTINGS) == []


def test_an_amount_that_no_gpu_has_is_not_believed() -> None:
    once = admitted(pod(seat()))
    note = once["metadata"]["annotations"][keys.ORIGINAL_RESOURCES]
    once["metadata"]["annotations"][keys.ORIGINAL_RESOURCES] = note.replace(str(80 * GIB), "0")
    assert container(once)["resources"]["requests"]["memory"] == "80Gi"


@pytest.mark.parametrize(
    ("notes", "selector", "wanted"),
    [
        ({keys.REQUIRE_GROUP: "G1"}, {}, "24Gi"),
        ({keys.PREFER_GROUP: "G1"}, {}, "80Gi"),
        ({}, {"kubernetes.io/hostname": "small"}, "24Gi"),
        ({}, {"zone": "small"}, "80Gi"),
    ],
)
def test_only_gpus_that_the_pod_may_get_count(
    notes: dict[str, str], selector: dict[str, str], wanted: str
) -> None:
    asking = pod(seat(), notes=notes, spec={"nodeSelector": selector})
    assert container(asking)["resources"]["requests"]["memory"] == wanted


def test_without_vram_and_without_known_gpus_the_pod_is_refused() -> None:
    with pytest.raises(RefusedError, match=keys.VRAM):
        mutate(pod(seat()), Cluster(), SETTINGS)


def test_a_copy_with_another_vram_is_computed_from_the_original() -> None:
    once = admitted(pod(seat(memory="1Gi"), notes=VRAM))
    once["metadata"]["annotations"][keys.VRAM] = "10Gi"
    resources = container(once)["resources"]
    assert (resources["limits"]["memory"], resources["requests"]["memory"]) == ("11Gi", "11Gi")


def test_quantities_that_the_api_server_rewrote_are_left() -> None:
    once = admitted(pod(seat(memory="500000"), notes={keys.VRAM: "2000000"}))
    assert once["spec"]["containers"][0]["resources"]["limits"]["memory"] == "2500000"
    for field in ("limits", "requests"):
        once["spec"]["containers"][0]["resources"][field]["memory"] = "2500k"
    assert mutate(once, CLUSTER, SETTINGS) == []


def test_other_pods_are_left_alone() -> None:
    plain = pod({"nvidia.com/gpu": "1"}, label=None)
    assert mutate(plain, CLUSTER, SETTINGS) == []
    assert mutate(pod(label="false"), CLUSTER, SETTINGS) == []


def test_the_asking_container_is_found_among_several() -> None:
    both = pod(seat(), notes=VRAM)
    both["spec"]["containers"].insert(0, {"name": "other"})
    after = admitted(both)["spec"]["containers"]
    assert after[0] == {"name": "other", "env": [VOID]}
    assert after[1]["command"][0] == "/kyb/kyb-init"
    named = pod(notes={**VRAM, keys.GPUS_ANNOTATION: "1"})
    named["spec"]["containers"].append({"name": "gpu"})
    named["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "gpu"
    assert admitted(named)["spec"]["containers"][1]["resources"]["limits"] == seat()


def test_all_reasons_are_given_at_once() -> None:
    wrong = pod(
        seat(1, **{"nvidia.com/gpu": "1"}), notes={keys.VRAM: "much"}, spec={"hostPID": True}
    )
    with pytest.raises(RefusedError) as caught:
        mutate(wrong, CLUSTER, SETTINGS)
    assert all(word in str(caught.value) for word in ("hostPID", "kyb.ai/vram", "nvidia.com/gpu"))


VRAMS = st.sampled_from(["512Mi", "1500M", "1.5Gi", "3e9", "2000000"])
QUANTITIES = VRAMS | st.sampled_from(["0", "1", "4Ei"])
WORDS = st.lists(st.sampled_from(["python", "--port", "-c", ""]), max_size=3)


def _some(field: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The field with a value, or without the field."""
    return st.just({}) | st.builds(lambda value: {field: value}, values)


def _merged(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda all_: {k: v for part in all_ for k, v in part.items()})


_HANDLERS = st.sampled_from(
    [
        {"httpGet": {"path": "/health", "port": 8000}},
        {"httpGet": {"port": "web", "scheme": "HTTPS"}},
        {"tcpSocket": {"port": 8000}},
        {"grpc": {"port": 50051, "service": "x"}},
        {"exec": {"command": ["cat", "/x"]}},
    ]
)
_TIMES = _merged(
    _some("periodSeconds", st.integers(1, 60)), _some("failureThreshold", st.integers(1, 60))
)
PROBES = _merged(
    *(
        _some(name, _merged(_HANDLERS, _TIMES))
        for name in ("livenessProbe", "readinessProbe", "startupProbe")
    ),
    st.just({"ports": [{"name": "web", "containerPort": 8000}]}),
)
_NAMES = st.sampled_from(["A", "NCCL_CUMEM_ENABLE"])
_PATHS = st.sampled_from(["/dev/shm", "/v"])
CONTAINERS = _merged(
    _some("command", WORDS),
    _some("args", WORDS),
    _some("env", st.builds(lambda name: [{"name": name, "value": "x"}], _NAMES)),
    _some("volumeMounts", st.builds(lambda path: [{"name": "v", "mountPath": path}], _PATHS)),
    PROBES,
)
SPECS = _merged(
    _some("terminationGracePeriodSeconds", st.integers(0, 100)),
    _some("tolerations", st.just([{"key": "nvidia.com/gpu", "operator": "Exists"}])),
    _some("initContainers", st.just([{"name": "init", "image": "x"}])),
)
MEMORY = _some("memory", QUANTITIES)


@st.composite
def asking_pods(draw: st.DrawFn) -> dict[str, Any]:
    gpus = draw(st.integers(1, 2))
    way = draw(st.sampled_from(["seat", "vendor", "annotation"]))
    limits = draw(_merged(MEMORY, _some("cpu", st.just("1"))))
    limits |= {"seat": seat(gpus), "vendor": {"nvidia.com/gpu": str(gpus)}}.get(way, {})
    notes = draw(_some(keys.VRAM, VRAMS))
    notes |= draw(_some(keys.COOPERATE, st.sampled_from(["vllm", "none"])))
    notes |= draw(_some(keys.SCRAPE, st.just("true")))
    if way == "annotation":
        notes[keys.GPUS_ANNOTATION] = str(gpus)
    return pod(
        limits or draw(st.sampled_from([None, {}])),
        draw(MEMORY) or draw(st.sampled_from([None, {}])),
        notes=notes or draw(st.sampled_from([None, {}])),
        container=draw(CONTAINERS),
        spec=draw(SPECS),
    )


@given(asking_pods())
def test_twice_is_once_and_the_result_is_valid(given_pod: dict[str, Any]) -> None:
    before = copy.deepcopy(given_pod)
    once = admitted(given_pod)
    assert given_pod == before
    assert mutate(once, CLUSTER, SETTINGS) == []
    assert refusals(once, CLUSTER, NAME) == []
    assert unprepared(once, NAME) == []
    assert unprepared(given_pod, NAME)


def test_a_pod_of_a_gang_is_held_by_a_gate_beside_those_of_others() -> None:
    notes = {**VRAM, keys.GANG: "train-1", keys.GANG_SIZE: "2"}
    member = pod(seat(), notes=notes, spec={"schedulingGates": [{"name": "queue"}]})
    once = admitted(member)
    assert once["spec"]["schedulingGates"] == [{"name": "queue"}, {"name": "kyb.ai/gang"}]
    assert mutate(once, CLUSTER, SETTINGS) == []
    assert refusals(once, CLUSTER, NAME) == unprepared(once, NAME) == []
    del once["spec"]["schedulingGates"]
    (sentence,) = unprepared(once, NAME)
    assert "spec.schedulingGates" in sentence
    assert "schedulingGates" not in admitted(pod(seat(), notes=VRAM))["spec"]


@given(asking_pods())
def test_memory_grows_by_what_the_gpus_hold_and_the_class_is_kept(
    given_pod: dict[str, Any],
) -> None:
    old = given_pod["spec"]["containers"][0]["resources"]
    new = container(given_pod)["resources"]
    notes = given_pod["metadata"].get("annotations") or {}
    gpus = keys.seat_resource_size(next(name for name in new["limits"] if "seat" in name)) or 0
    extra = gpus * (parse_quantity(notes[keys.VRAM]) if keys.VRAM in notes else 80 * GIB)
    old_limit = old.get("limits", {}).get("memory")
    old_request = old.get("requests", {}).get("memory", old_limit or "0")
    assert ("memory" in new["limits"]) == (old_limit is not None)
    if old_limit is not None:
        assert parse_quantity(new["limits"]["memory"]) == parse_quantity(old_limit) + extra
    assert parse_quantity(new["requests"]["memory"]) == parse_quantity(old_request) + extra
    assert new["limits"].get("cpu") == old.get("limits", {}).get("cpu")
