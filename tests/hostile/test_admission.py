"""What a tenant writes into a pod to get more than a seat, at a real API server."""

from __future__ import annotations

import contextlib
import copy
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError, RefusedError
from tests.integration.hooks import until
from tests.integration.webhook.conftest import create, pods_path, seat_pod
from tests.integration.webhook.test_admission import VRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("webhook")]

VISIBLE = keys.ENV_NVIDIA_VISIBLE
VOID = {"name": VISIBLE, "value": keys.NO_GPUS}
EVERY = {"name": VISIBLE, "value": "all"}
BY_MOUNT = "/var/run/nvidia-container-devices/all"
OWN_NAME = {"fieldRef": {"fieldPath": "metadata.name"}}
FROM_ELSEWHERE = [{"configMapRef": {"name": "says-all"}}]


def tenant_pod(
    name: str, notes: dict[str, str] | None = None, *, spec: Any = None, **container: Any
) -> dict[str, Any]:
    """A pod with a seat; the rest of what the tenant writes goes into it."""
    made = seat_pod(name, annotations={**VRAM, **(notes or {})})
    made["spec"] |= copy.deepcopy(spec or {})
    made["spec"]["containers"][0] |= container
    return made


def beside(name: str, field: str = "containers", **container: Any) -> dict[str, Any]:
    """A pod with a seat and another container."""
    made = tenant_pod(name)
    made["spec"].setdefault(field, []).append({"name": "x", "image": "localhost/x", **container})
    return made


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_config_map_gives_a_container_beside_the_seat_no_gpu(
    control_plane: Cluster, namespace: str, field: str
) -> None:
    pod = beside(f"from-{field.lower()}", field, envFrom=FROM_ELSEWHERE)
    spec = create(control_plane.api(), namespace, pod)["spec"]
    (other,) = [one for one in spec[field] if one["name"] == "x"]
    # A container's own variables win over envFrom's (core/v1, EnvFromSource), and over its image's.
    assert (other["env"], other["envFrom"]) == ([VOID], FROM_ELSEWHERE)
    (seat,) = [one for one in spec["containers"] if one["name"] == "c"]
    assert VISIBLE not in {one["name"] for one in seat["env"]}


@pytest.mark.parametrize(
    "variables", [[EVERY], [VOID, EVERY], [{"name": VISIBLE}], [{"name": "CUDA_VISIBLE_DEVICES"}]]
)
def test_what_a_container_says_itself_is_no_way_to_gpus(
    control_plane: Cluster, namespace: str, variables: list[dict[str, str]]
) -> None:
    for field in ("containers", "initContainers"):
        with pytest.raises(RefusedError, match="remove it"):
            create(control_plane.api(), namespace, beside("says", field, env=variables))


@pytest.mark.parametrize("path", [BY_MOUNT, "/var/run//x/../nvidia-container-devices/0"])
def test_no_mount_is_a_way_to_gpus(control_plane: Cluster, namespace: str, path: str) -> None:
    mount = {"name": "mine", "mountPath": path}
    for field in ("containers", "initContainers"):
        pod = beside("mounts", field, volumeMounts=[mount])
        pod["spec"] |= volume()
        with pytest.raises(RefusedError, match="leave it out, a seat brings its GPUs"):
            create(control_plane.api(), namespace, pod)


def debug(cluster: Cluster, namespace: str, pod: str, **container: Any) -> list[dict[str, Any]]:
    """What `kubectl debug` sends; returns the pod's ephemeral containers."""
    path = f"{pods_path(namespace, pod)}/ephemeralcontainers"
    debugger = {"name": "e", "image": "localhost/x", **container}
    change = {"spec": {"ephemeralContainers": [debugger]}}
    found = cluster.api().patch(path, change, "strategic")
    return list(found["spec"]["ephemeralContainers"])


def test_an_ephemeral_container_sees_no_gpu(control_plane: Cluster, namespace: str) -> None:
    create(control_plane.api(), namespace, tenant_pod("debugged"))
    (first,) = debug(control_plane, namespace, "debugged", envFrom=FROM_ELSEWHERE)
    assert first["env"] == [VOID]
    # kubectl's own profiles `legacy` and `general`; the first one's stays as it is.
    rights = {"capabilities": {"add": ["SYS_PTRACE"]}}
    more = {"targetContainerName": "c", "securityContext": rights}
    found = debug(control_plane, namespace, "debugged", **more, name="f")
    assert [one["env"] for one in found] == [[VOID], [VOID]]


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ({"env": [EVERY]}, "sets a variable"),
        ({"env": [VOID, EVERY]}, "sets a variable"),
        ({"env": [{"name": VISIBLE, "valueFrom": OWN_NAME}]}, "sets a variable"),
        ({"volumeMounts": [{"name": "kyb-shm", "mountPath": BY_MOUNT}]}, "by which the vendor"),
        ({"securityContext": {"privileged": True}}, "leave privileged"),
        ({"securityContext": {"capabilities": {"add": ["CAP_sys_admin"]}}}, "leave privileged"),
    ],
)
def test_an_ephemeral_container_takes_no_gpu(
    control_plane: Cluster, namespace: str, container: dict[str, Any], says: str
) -> None:
    name = "taking"
    with contextlib.suppress(ConflictError):
        create(control_plane.api(), namespace, tenant_pod(name))
    with pytest.raises(RefusedError, match=says):
        debug(control_plane, namespace, name, **container)


def test_no_pod_with_a_seat_hides_from_those_who_wait_for_it(
    control_plane: Cluster, namespace: str
) -> None:
    api, pod = control_plane.api(), tenant_pod("hidden")
    pod["metadata"]["labels"] = {keys.MANAGED_LABEL: "false"}
    pod["spec"]["containers"][0]["resources"]["limits"] = {keys.seat_resource(1): "1"}
    with pytest.raises(RefusedError, match=r'managed is "false", but container c asks'):
        create(api, namespace, pod)
    create(api, namespace, tenant_pod("hidden"))
    for said in (None, "false", ""):
        change = {"metadata": {"labels": {keys.MANAGED_LABEL: said, "mine": "x"}}}
        for subresource in ("", "/status"):
            with pytest.raises(RefusedError, match='of a pod with a seat stays "true"'):
                api.patch(f"{pods_path(namespace, 'hidden')}{subresource}", change)
    api.patch(pods_path(namespace, "hidden"), {"metadata": {"labels": {"mine": "x"}}})


@pytest.fixture
def unasked(control_plane: Cluster) -> Iterator[None]:
    """The mutating webhook isn't asked about ephemeral containers."""
    api = control_plane.api()
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kyb-webhook"
    rule = api.get(path)["webhooks"][0]["rules"][1]
    assert rule["resources"] == ["pods/ephemeralcontainers"]
    api.patch(path, [{"op": "remove", "path": "/webhooks/0/rules/1"}], "json")
    yield
    api.patch(path, [{"op": "add", "path": "/webhooks/0/rules/1", "value": rule}], "json")


@pytest.mark.usefixtures("unasked")
def test_the_policy_refuses_what_the_webhook_was_not_asked_about(
    control_plane: Cluster, namespace: str
) -> None:
    create(control_plane.api(), namespace, tenant_pod("policy"))

    said: list[str] = []

    def refused() -> bool:
        # The API server takes a moment to have the changed configuration.
        try:
            debug(control_plane, namespace, "policy", name=f"e{time.monotonic_ns()}")
        except RefusedError as error:
            said.append(str(error))
        return bool(said)

    until(refused, "a container that may see GPUs is admitted")
    assert "add --env NVIDIA_VISIBLE_DEVICES=void" in said[0]
    debug(control_plane, namespace, "policy", env=[VOID])


HOST = [
    ({"hostNetwork": True}, "spec.hostNetwork is true"),
    ({"hostPID": True}, "spec.hostPID is true"),
    ({"hostIPC": True}, "spec.hostIPC is true"),
    ({"hostUsers": False}, "spec.hostUsers is false"),
    ({"shareProcessNamespace": True}, "spec.shareProcessNamespace is true"),
]


@pytest.mark.parametrize(("spec", "says"), HOST, ids=[says.split()[0] for _, says in HOST])
def test_a_seat_shares_nothing_with_the_node(
    control_plane: Cluster, namespace: str, spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(RefusedError, match=f"{says}.*leave it out"):
        create(control_plane.api(), namespace, tenant_pod("host", spec=spec))


@pytest.mark.parametrize(
    "path", ["/dev/infiniband", "/dev/nvidia-fs0", "//dev/./infiniband/uverbs0"]
)
def test_a_seat_has_no_device_that_passes_the_driver_by(
    control_plane: Cluster, namespace: str, path: str
) -> None:
    spec = {"volumes": [{"name": "direct", "hostPath": {"path": path}}]}
    pod = tenant_pod("direct", spec=spec, volumeMounts=[{"name": "direct", "mountPath": "/d"}])
    with pytest.raises(RefusedError, match=r"Volume direct is /dev/.* couldn't be parked"):
        create(control_plane.api(), namespace, pod)
    pod = tenant_pod("direct")
    pod["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] = "1"
    with pytest.raises(RefusedError, match=r"asks for rdma/hca, .* couldn't be parked"):
        create(control_plane.api(), namespace, pod)


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("name", ["SYS_ADMIN", "SYS_PTRACE", "ALL", "cap_sys_ptrace"])
def test_no_container_has_rights_over_the_node(
    control_plane: Cluster, namespace: str, field: str, name: str
) -> None:
    for rights in ({"capabilities": {"add": [name]}}, {"privileged": True}):
        with pytest.raises(RefusedError, match="leave"):
            create(control_plane.api(), namespace, beside("mighty", field, securityContext=rights))


def forged(container: str = "c", **record: Any) -> dict[str, str]:
    whole = {"container": container, "resources": {}, **record}
    return {keys.ORIGINAL_RESOURCES: json.dumps(whole)}


def volume(name: str = "mine", **source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": name, **(source or {"emptyDir": {}})}]}


FORGERIES: list[tuple[str, dict[str, Any], str]] = [
    *(
        (
            path,
            tenant_pod(
                "forged",
                forged(),
                spec=volume(),
                volumeMounts=[{"name": "mine", "mountPath": path}],
            ),
            "choose another path",
        )
        for path in ("/run/kyb", "/kyb", "/kyb-pod", "/var/run/kyb", "/run/x/../kyb")
    ),
    (
        "volume",
        tenant_pod("forged", forged(), spec=volume("kyb-pod", hostPath={"path": "/run/kyb"})),
        "choose another name",
    ),
    (
        "sidecar",
        beside("forged", "initContainers"),
        "choose another name",
    ),
    (
        "probe",
        tenant_pod(
            "forged",
            forged(probes={"livenessProbe": {"httpGet": {"port": 15483}}}),
            livenessProbe={"httpGet": {"port": 15480}},
        ),
        "are the sidecar's",
    ),
]
FORGERIES[-2][1]["metadata"]["annotations"] |= forged()
FORGERIES[-2][1]["spec"]["initContainers"][0]["name"] = keys.SIDECAR


@pytest.mark.parametrize(("pod", "says"), [f[1:] for f in FORGERIES], ids=[f[0] for f in FORGERIES])
def test_a_forged_record_spares_no_check(
    control_plane: Cluster, namespace: str, pod: dict[str, Any], says: str
) -> None:
    with pytest.raises(RefusedError, match=says):
        create(control_plane.api(), namespace, pod)


def test_a_forged_record_makes_no_smaller_memory_than_the_gpus(
    control_plane: Cluster, namespace: str, gpu_node: str
) -> None:
    pod = seat_pod("small", annotations=forged(vram=1))
    pod["spec"]["containers"][0]["resources"] = {"limits": {keys.VENDOR_RESOURCE: "2"}}

    def memory() -> str:
        made = create(control_plane.api(), namespace, pod, dryRun="All")
        return str(made["spec"]["containers"][0]["resources"]["requests"]["memory"])

    until(lambda: memory() == "160Gi", f"the webhook doesn't know {gpu_node}, or believes the pod")


def test_no_pod_takes_the_full_name_of_another_namespace_s_model(
    control_plane: Cluster, namespace: str
) -> None:
    api = control_plane.api()
    with pytest.raises(RefusedError, match="write a name without '/'"):
        create(api, namespace, tenant_pod("thief", {keys.MODEL: "victim/llama"}))
    create(api, namespace, tenant_pod("thief", {keys.MODEL: "llama"}))
    change = {"metadata": {"annotations": {keys.MODEL: "victim/llama"}}}
    for path in (pods_path(namespace, "thief"), f"{pods_path(namespace, 'thief')}/status"):
        with pytest.raises(RefusedError, match="write a name without it"):
            api.patch(path, change)
    change["metadata"]["annotations"][keys.MODEL] = "llama-2"
    api.patch(pods_path(namespace, "thief"), change)


@pytest.mark.parametrize(
    "name", [keys.MODEL, keys.GPU_PRODUCT, keys.PREFER_GROUP, keys.READY_WITHIN, keys.POLICY]
)
def test_annotations_of_ours_have_a_length(
    control_plane: Cluster, namespace: str, name: str
) -> None:
    api, huge = control_plane.api(), "x" * 200_000
    with pytest.raises(RefusedError, match=f"{name} has 200000 characters; write at most 1024"):
        create(api, namespace, tenant_pod("huge", {name: huge}))
    pod = f"grows-{name.partition('/')[2]}"
    create(api, namespace, tenant_pod(pod))
    with pytest.raises(RefusedError, match="more than 1024 characters"):
        api.patch(pods_path(namespace, pod), {"metadata": {"annotations": {name: huge}}})


def test_annotations_of_others_may_be_as_long_as_ever(
    control_plane: Cluster, namespace: str
) -> None:
    """256 KiB in all are what the API server lets a pod have: ours must leave room for nothing."""
    notes = {"example.org/notes": "x" * 200_000}
    made = create(control_plane.api(), namespace, tenant_pod("notes", notes))
    assert made["metadata"]["annotations"]["example.org/notes"] == notes["example.org/notes"]


def test_a_record_has_a_length(control_plane: Cluster, namespace: str) -> None:
    """What the record repeats is the tenant's, and so is its length: it is refused, not cut."""
    probe = {"exec": {"command": ["true", "x" * 200_000]}}
    with pytest.raises(RefusedError, match="write at most 16384, such as a script in the image"):
        create(control_plane.api(), namespace, tenant_pod("record", livenessProbe=probe))


def test_what_ordinary_charts_have_is_admitted(control_plane: Cluster, namespace: str) -> None:
    """A mesh's init container, a hook, a cache on the node, a hostPort, root."""
    pod = tenant_pod(
        "chart",
        spec={
            "volumes": [{"name": "cache", "hostPath": {"path": "/data"}}],
            "initContainers": [
                {
                    "name": "mesh",
                    "image": "localhost/mesh",
                    "securityContext": {
                        "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]}
                    },
                }
            ],
        },
        envFrom=FROM_ELSEWHERE,
        lifecycle={"postStart": {"exec": {"command": ["true"]}}},
        ports=[{"containerPort": 8000, "hostPort": 8000}],
        securityContext={"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK", "SYS_NICE"]}},
        volumeMounts=[{"name": "cache", "mountPath": "/root/.cache"}],
    )
    create(control_plane.api(), namespace, pod)
