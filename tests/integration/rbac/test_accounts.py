"""Each account may do what its service does, and nothing else that matters."""

from __future__ import annotations

import base64
import contextlib
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kybernate import keys
from kybernate.adapters.k8s import Api
from kybernate.adapters.pki import make_authority
from kybernate.adapters.pki.requests import CSRS as CSR_PATH
from kybernate.adapters.pki.requests import make_request
from kybernate.errors import ConflictError, RefusedError
from tests.cluster.parts import accounts, pki
from tests.cluster.start import readiness
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

NAMESPACE = "annotations"
READ = {"get", "list", "watch"}
SEES_NODES = {"gpunodes.kyb.ai": READ}
SEES_GRANTS = {"artifactgrants.kyb.ai": READ}
SEES_REVOKED = {f"configmaps:{keys.REVOKED_NODES}": READ}
CERTIFICATES = "certificates.k8s.io"
CSRS = f"certificatesigningrequests.{CERTIFICATES}"
HOOKS = "admissionregistration.k8s.io"

ALLOWED: dict[str, dict[str, set[str]]] = {
    "extender": {
        "pods": READ | {"patch"},
        "nodes": {"get", "list", "watch"},
        "pods/binding": {"create"},
        "events": {"create"},
        "leases.coordination.k8s.io:kyb-extender": {"get", "update"},
        "leases.coordination.k8s.io:kybernate-scheduler": {"get"},
        "endpointslices.discovery.k8s.io:kyb-extender": {"create", "patch"},
        "csistoragecapacities.storage.k8s.io:kyb-extender": {"create", "patch"},
        "checkpointrequests.kyb.ai": READ | {"patch"},
        # Of what was evicted, its successor.
        "artifacts.kyb.ai": {"restore"},
        **SEES_NODES,
    },
    "agent": {
        "pods": READ | {"patch"},
        "pods/status": {"patch"},
        "pods/resize": {"patch"},
        "nodes": {"get"},
        "namespaces": {"get"},
        "gpunodes.kyb.ai": {"create", "get", "patch"},
        "gpunodes/status.kyb.ai": {"patch"},
        "events": {"create", "patch"},
        CSRS: {"create", "get"},
        "checkpointpolicies.kyb.ai": READ,
        "shares.kyb.ai": READ,
        "snapshottemplates.kyb.ai": READ,
        "tierplacements.kyb.ai": READ,
        **SEES_GRANTS,
        **SEES_REVOKED,
    },
    "webhook": {
        f"mutatingwebhookconfigurations.{HOOKS}:kyb-webhook": {"get", "patch"},
        f"validatingwebhookconfigurations.{HOOKS}:kyb-webhook": {"get", "patch"},
        "secrets:kyb-webhook-tls": {"get", "patch"},
        "checkpointrequests.kyb.ai": READ | {"create"},
        "restorerequests.kyb.ai": {"get"},
        **SEES_NODES,
        **SEES_GRANTS,
    },
    "proxy": {
        # What of them may change, test_zero.py says.
        "checkpointrequests.kyb.ai": {"list", "patch", "watch"},
        **SEES_NODES,
        **SEES_REVOKED,
    },
    "controller": {
        # By a policy: those of SnapshotTemplates and RestoreRequests; it deletes the former.
        "pods": READ | {"create", "delete"},
        "nodes": READ,
        "tierplacements.kyb.ai": READ,
        "tierplacements/status.kyb.ai": {"patch"},
        "restorerequests.kyb.ai": READ | {"delete"},
        "restorerequests/status.kyb.ai": {"patch"},
        **SEES_GRANTS,
        "artifacts.kyb.ai": READ | {"create", "delete", "patch", "restore"},
        "pods/eviction": {"create"},
        "events": {"create"},
        # To and from zero only, test_zero.py says.
        "deployments/scale.apps": {"get", "patch"},
        "replicasets.apps": {"get"},
        "horizontalpodautoscalers.autoscaling": {"list"},
        "checkpointpolicies.kyb.ai": READ,
        "checkpointpolicies/status.kyb.ai": {"patch"},
        "checkpointrequests.kyb.ai": READ | {"create", "delete"},
        "checkpointrequests/status.kyb.ai": {"patch"},
        "snapshottemplates.kyb.ai": READ,
        "snapshottemplates/status.kyb.ai": {"patch"},
        "shares.kyb.ai": READ,
        "shares/status.kyb.ai": {"patch"},
        "leases.coordination.k8s.io:kyb-controller": {"get", "update"},
        **SEES_NODES,
        **SEES_REVOKED,
    },
    "registry": {
        "pods": READ,
        "namespaces": READ,
        CSRS: READ,
        f"certificatesigningrequests/approval.{CERTIFICATES}": {"update"},
        f"certificatesigningrequests/status.{CERTIFICATES}": {"update"},
        f"signers.{CERTIFICATES}:{keys.AGENT_SIGNER}": {"approve", "sign"},
        "tierplacements.kyb.ai": READ,
        **SEES_REVOKED,
        **SEES_GRANTS,
    },
}
VERBS = (
    *("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"),
    *("approve", "sign", "attest", "escalate", "bind", "impersonate", "restore"),
)
RESOURCES = (
    *("pods", "pods/binding", "pods/status", "pods/exec", "pods/eviction", "bindings", "nodes"),
    *("nodes/proxy", "nodes/status", "secrets", "configmaps", "services", "serviceaccounts/token"),
    *("events", "events.events.k8s.io", "namespaces", "deployments.apps", "daemonsets.apps"),
    "deployments/scale.apps",
    *("gpunodes.kyb.ai", "gpunodes/status.kyb.ai", "leases.coordination.k8s.io"),
    *("artifactgrants.kyb.ai", "checkpointrequests.kyb.ai", "checkpointrequests/status.kyb.ai"),
    "artifacts.kyb.ai",
    *(f"mutatingwebhookconfigurations.{HOOKS}", f"validatingwebhookconfigurations.{HOOKS}"),
    *(f"validatingadmissionpolicies.{HOOKS}", "clusterroles.rbac.authorization.k8s.io"),
    "customresourcedefinitions.apiextensions.k8s.io",
    *("secrets:kyb-webhook-tls", "secrets:kyb-ca", "secrets:kyb-wrap-keys"),
    "endpointslices.discovery.k8s.io",
    "csistoragecapacities.storage.k8s.io",
    *(CSRS, f"certificatesigningrequests/approval.{CERTIFICATES}"),
    *(f"certificatesigningrequests/status.{CERTIFICATES}", f"signers.{CERTIFICATES}"),
    f"signers.{CERTIFICATES}:kubernetes.io/kube-apiserver-client",
    f"signers.{CERTIFICATES}:kubernetes.io/kubelet-serving",
    *(f"configmaps:{keys.REVOKED_NODES}", "configmaps:other", "users", "groups"),
    *(f"mutatingwebhookconfigurations.{HOOKS}:kyb-webhook",),
    *(f"validatingwebhookconfigurations.{HOOKS}:kyb-webhook",),
)


def may(cluster: Cluster, account: str, verb: str, what: str) -> bool:
    """Ask the API server; `what` is resource[/sub][.group][:name]."""
    path, _, name = what.partition(":")
    first, _, rest = path.partition("/")
    sub, _, group = rest.partition(".") if rest else ("", "", "")
    if not rest:
        first, _, group = first.partition(".")
    attributes = {
        "namespace": keys.NAMESPACE,
        "verb": verb,
        "group": group,
        "resource": first,
        "subresource": sub,
        "name": name,
    }
    user = f"system:serviceaccount:{keys.NAMESPACE}:kyb-{account}"
    return readiness.may(cluster.api(), user, attributes)


@pytest.mark.parametrize("account", sorted(ALLOWED))
def test_an_account_may_do_its_work_and_no_more(control_plane: Cluster, account: str) -> None:
    wanted = {(verb, what) for what, verbs in ALLOWED[account].items() for verb in verbs}
    # A right to all of a resource is one to each of its objects.
    asked = set(itertools.product(VERBS, RESOURCES)) | wanted
    found = {(verb, what) for verb, what in asked if may(control_plane, account, verb, what)}
    assert found == wanted


def test_the_scheduler_may_schedule_and_not_read_secrets(control_plane: Cluster) -> None:
    for verb, what in (
        ("list", "pods"),
        ("create", "pods/binding"),
        ("watch", "nodes"),
        ("update", "leases.coordination.k8s.io:kybernate-scheduler"),
        ("list", "persistentvolumes"),
    ):
        assert may(control_plane, "scheduler", verb, what), (verb, what)
    assert not may(control_plane, "scheduler", "get", "secrets")
    assert not may(control_plane, "scheduler", "patch", "gpunodes/status.kyb.ai")


@pytest.fixture
def pod(control_plane: Cluster) -> Iterator[str]:
    """The path of a plain pod that is bound nowhere."""
    api = control_plane.api()
    for path, name in (("", NAMESPACE), (f"/{NAMESPACE}/serviceaccounts", "default")):
        with contextlib.suppress(ConflictError):
            api.post(f"/api/v1/namespaces{path}", {"metadata": {"name": name}})
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    api.post(path, plain())
    yield f"{path}/p"
    api.delete(f"{path}/p", {"gracePeriodSeconds": 0})


def plain(**metadata: Any) -> dict[str, Any]:
    one = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [one], "schedulerName": "nobody"}
    return {"metadata": {"name": "p", **metadata}, "spec": spec}


def notes(**annotations: str | None) -> dict[str, Any]:
    names = {f"kyb.ai/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return {"metadata": {"annotations": names}}


@pytest.mark.parametrize("annotation", keys.SYSTEM_ANNOTATIONS)
def test_nobody_else_creates_or_adds_system_annotations(
    control_plane: Cluster, pod: str, annotation: str
) -> None:
    api = control_plane.api()
    change = {"metadata": {"annotations": {annotation: "x"}}}
    with pytest.raises(RefusedError, match="leave"):
        api.patch(pod, change)
    with pytest.raises(RefusedError, match="leave"):
        api.patch(f"{pod}/status", change)
    made = plain(annotations={annotation: "x"})
    made["metadata"]["name"] = "q"
    with pytest.raises(RefusedError, match="leave"):
        api.post(pod.rpartition("/")[0], made)
    api.patch(pod, {"metadata": {"annotations": {"other": "x"}, "labels": {"kyb.ai/x": "y"}}})


def test_the_agent_writes_the_seat_and_only_that(control_plane: Cluster, pod: str) -> None:
    agent, admin = control_plane.api("agent"), control_plane.api()
    agent.patch(pod, notes(seat="G0-seat-1", touched_at="2026-11-21T10:00:00Z"))
    # Two policies forbid it, and either may be the one that is told.
    with pytest.raises(RefusedError, match=r"change nothing of a pod|by the Kybernate extender"):
        agent.patch(pod, notes(group="G0"))
    for change in (notes(seat="G1-seat-1"), notes(seat=None)):
        for path in (pod, f"{pod}/status"):
            with pytest.raises(RefusedError, match="agent"):
                admin.patch(path, change)
    agent.patch(pod, notes(seat=None))


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"containers": [{"name": "c", "image": "evil"}]}},
        {"metadata": {"labels": {"app": "other"}}},
        {"metadata": {"annotations": {"other": "x"}}},
        {"metadata": {"finalizers": ["kyb.ai/stay"]}},
    ],
    ids=["image", "label", "annotation", "finalizer"],
)
def test_the_agent_changes_nothing_else_of_a_pod(
    control_plane: Cluster, pod: str, change: dict[str, Any]
) -> None:
    name = control_plane.api().get(pod)["spec"]["containers"][0]["name"]
    if "spec" in change:
        change["spec"]["containers"][0]["name"] = name
    with pytest.raises(RefusedError, match="change nothing of a pod"):
        control_plane.api("agent").patch(pod, change, "strategic")
    if "spec" not in change:
        with pytest.raises(RefusedError, match="change nothing of a pod"):
            control_plane.api("agent").patch(f"{pod}/status", change, "strategic")


@pytest.mark.parametrize("annotation", [*keys.USER_ANNOTATIONS, keys.ORIGINAL_RESOURCES])
def test_a_kubelet_writes_nothing_that_we_read_of_a_pod(
    control_plane: Cluster, pod_of_n1: str, annotation: str
) -> None:
    """Its own pods' status is its to write, with which annotations would come in."""
    kubelet, admin = control_plane.api("node-n1"), control_plane.api()
    changes = [{"metadata": {"annotations": {annotation: text}}} for text in ("x", "y", None)]
    with pytest.raises(RefusedError, match=annotation):
        kubelet.patch(f"{pod_of_n1}/status", changes[0], "strategic")
    # Who makes the pod may, and then it stays.
    admin.patch(pod_of_n1, changes[0])
    for change in changes[1:]:
        with pytest.raises(RefusedError, match=annotation):
            kubelet.patch(f"{pod_of_n1}/status", change, "strategic")
    status = {"status": {"message": "x"}}
    kubelet.patch(f"{pod_of_n1}/status", status, "strategic")
    assert admin.get(pod_of_n1)["metadata"]["annotations"][annotation] == "x"


def test_the_agent_writes_conditions(control_plane: Cluster, pod: str) -> None:
    condition = {"type": keys.WAKEABLE_CONDITION, "status": "True"}
    change = {"status": {"conditions": [condition]}}
    control_plane.api("agent").patch(f"{pod}/status", change, "strategic")
    found = control_plane.api().get(pod)["status"]["conditions"]
    assert [(one["type"], one["status"]) for one in found] == [(keys.WAKEABLE_CONDITION, "True")]


@pytest.mark.parametrize(
    "signer", ["kubernetes.io/kube-apiserver-client", "kubernetes.io/kubelet-serving", "x.io/y"]
)
def test_an_agent_asks_our_signer_alone(agents: dict[str, Api], signer: str) -> None:
    wanted = make_request("n1", ec.generate_private_key(ec.SECP256R1()))
    wanted["spec"]["signerName"] = signer
    with pytest.raises(RefusedError, match=r"certificates of the signer kyb\.ai/agent alone"):
        agents["n1"].post(CSR_PATH, wanted)


def test_a_token_that_names_no_node_asks_for_nothing(control_plane: Cluster) -> None:
    wanted = make_request("n1", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(RefusedError, match="its token names no node"):
        control_plane.api("agent").post(CSR_PATH, wanted)


def test_the_signer_approves_and_signs_for_itself_alone(control_plane: Cluster) -> None:
    """Also where it may write the subresources, the API server asks for the signer's name."""
    wanted = make_request("n1", ec.generate_private_key(ec.SECP256R1()))
    wanted["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client"
    wanted["spec"]["usages"] = ["client auth"]
    made = control_plane.api().post(CSR_PATH, wanted)
    path = f"{CSR_PATH}/{made['metadata']['name']}"
    condition = {"type": "Approved", "status": "True", "reason": "x", "message": "x"}
    made["status"] = {"conditions": [condition]}
    with pytest.raises(RefusedError, match="not permitted to approve"):
        control_plane.api("registry").put(f"{path}/approval", made)
    now = datetime.now(UTC)
    forged = make_authority("x", timedelta(days=1), now).certificate_pem
    made["status"] = {"certificate": base64.b64encode(forged).decode()}
    with pytest.raises(RefusedError, match="not permitted to sign"):
        control_plane.api("registry").put(f"{path}/status", made)
    control_plane.api().delete(path)


@pytest.fixture(scope="module")
def agents(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Api]:
    """The agents of n1 and n2, with tokens as their pods get them."""
    admin, found = control_plane.api(), {}
    service_account = f"/api/v1/namespaces/{keys.NAMESPACE}/serviceaccounts/kyb-agent"
    pods = f"/api/v1/namespaces/{keys.NAMESPACE}/pods"
    for node in ("n1", "n2"):
        with contextlib.suppress(ConflictError):
            admin.post("/api/v1/nodes", {"metadata": {"name": node}})
        spec = {**plain()["spec"], "serviceAccountName": "kyb-agent", "nodeName": node}
        name = f"kyb-agent-{node}"
        made = admin.post(pods, {"metadata": {"name": name}, "spec": spec})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": made["metadata"]["uid"]}
        request = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        user = {"token": admin.post(f"{service_account}/token", request)["status"]["token"]}
        path = tmp_path_factory.mktemp("agents") / node
        authority = control_plane.layout.pki / "ca.crt"
        accounts.write_secret(path, pki.kubeconfig(control_plane.server, authority, user))
        found[node] = Api(path, f"agent-{node}")
    return found


@pytest.fixture
def pod_of_n1(control_plane: Cluster, pod: str) -> str:
    """The path of a pod that is bound to n1."""
    control_plane.api().post(
        f"{pod}/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    )
    return pod


def test_an_agent_writes_to_pods_of_its_own_node_only(
    control_plane: Cluster, agents: dict[str, Api], pod_of_n1: str
) -> None:
    condition = {"type": keys.WAKEABLE_CONDITION, "status": "True"}
    for path, change in (
        (pod_of_n1, notes(seat="G0-seat-1")),
        (f"{pod_of_n1}/status", {"status": {"conditions": [condition]}}),
    ):
        with pytest.raises(RefusedError, match="agent of node n2 may change neither"):
            agents["n2"].patch(path, change, "strategic")
        agents["n1"].patch(path, change, "strategic")
    # A token that names no node may do as before.
    control_plane.api("agent").patch(pod_of_n1, notes(seat="G0-seat-2"))


def test_no_agent_writes_to_a_pod_that_is_bound_nowhere(agents: dict[str, Api], pod: str) -> None:
    with pytest.raises(RefusedError, match="agent of node n1 may change neither"):
        agents["n1"].patch(pod, notes(seat="G0-seat-1"))


def test_an_agent_resizes_requests_of_pods_with_a_seat_on_its_own_node_only(
    control_plane: Cluster, agents: dict[str, Api], pod_of_n1: str
) -> None:
    def resize(node: str, **resources: Any) -> None:
        containers = [{"name": "c", "resources": resources}]
        agents[node].patch(f"{pod_of_n1}/resize", {"spec": {"containers": containers}}, "strategic")

    least = {"cpu": "10m"}
    with pytest.raises(RefusedError, match="only pods with a seat"):
        resize("n1", requests=least)
    agents["n1"].patch(pod_of_n1, notes(seat="G0-seat-1", requests='{"cpu": "1"}'))
    with pytest.raises(RefusedError, match="agent of node n2 may change neither"):
        resize("n2", requests=least)
    with pytest.raises(RefusedError, match="and no limits"):
        resize("n1", limits={"cpu": "8"})
    resize("n1", requests=least)
    found = control_plane.api().get(pod_of_n1)["spec"]["containers"][0]["resources"]["requests"]
    assert found["cpu"] == "10m"


def test_an_agent_speaks_for_its_own_node_only(
    control_plane: Cluster, agents: dict[str, Api]
) -> None:
    nodes = f"/apis/{keys.GROUP}/{keys.VERSION}/gpunodes"
    made: dict[str, Any] = {
        "apiVersion": f"{keys.GROUP}/{keys.VERSION}",
        "kind": keys.GPU_NODE_KIND,
    }
    made |= {"metadata": {"name": "n1"}}
    status = {"status": {"observedGeneration": 1}}
    with pytest.raises(RefusedError, match="agent of node n2 may change neither"):
        agents["n2"].post(nodes, made)
    agents["n1"].post(nodes, made)
    try:
        with pytest.raises(RefusedError, match="agent of node n2 may change neither"):
            agents["n2"].patch(f"{nodes}/n1/status", status)
        agents["n1"].patch(f"{nodes}/n1/status", status)
        control_plane.api("agent").patch(f"{nodes}/n1/status", {"status": None})
    finally:
        control_plane.api().delete(f"{nodes}/n1")


@pytest.fixture
def gated(control_plane: Cluster) -> Iterator[str]:
    """The path of a pod of a gang, held by our gate and by another one."""
    api = control_plane.api()
    for path, name in (("", NAMESPACE), (f"/{NAMESPACE}/serviceaccounts", "default")):
        with contextlib.suppress(ConflictError):
            api.post(f"/api/v1/namespaces{path}", {"metadata": {"name": name}})
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    made = plain(annotations={keys.GANG: "g", keys.GANG_SIZE: "1"})
    made["metadata"]["name"] = "gated"
    made["spec"]["schedulingGates"] = [{"name": keys.GANG_GATE}, {"name": "other"}]
    api.post(path, made)
    yield f"{path}/gated"
    api.delete(f"{path}/gated", {"gracePeriodSeconds": 0})


def ungate(name: str) -> dict[str, Any]:
    return {"spec": {"schedulingGates": [{"name": name, "$patch": "delete"}]}}


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"containers": [{"name": "c", "image": "evil"}]}},
        [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
        {"spec": {"nodeSelector": {"a": "b"}}},
        {"spec": {"activeDeadlineSeconds": 1}},
        ungate("other"),
        {"metadata": {"labels": {"app": "other"}}},
        {"metadata": {"annotations": {"other": "x"}}},
        {"metadata": {"finalizers": ["kyb.ai/stay"]}},
    ],
    ids=["image", "toleration", "selector", "deadline", "gate", "label", "annotation", "finalizer"],
)
def test_the_extender_changes_nothing_else_of_a_pod(
    control_plane: Cluster, gated: str, change: Any
) -> None:
    kind = "json" if isinstance(change, list) else "strategic"
    with pytest.raises(RefusedError, match="change nothing of a pod"):
        control_plane.api("extender").patch(gated, change, kind)


def test_the_extender_writes_a_gang_s_plan_and_lifts_its_gate(
    control_plane: Cluster, gated: str
) -> None:
    extender = control_plane.api("extender")
    extender.patch(gated, notes(gang_plan="{}"))
    with pytest.raises(RefusedError, match="by the Kybernate extender"):
        control_plane.api().patch(gated, notes(gang_plan=None))
    found = extender.patch(gated, ungate(keys.GANG_GATE), "strategic")
    assert found["spec"]["schedulingGates"] == [{"name": "other"}]
    assert (
        keys.GANG_PLAN
        not in extender.patch(gated, notes(gang_plan=None))["metadata"]["annotations"]
    )


def binding(**annotations: str) -> dict[str, Any]:
    made = notes(**annotations)
    made["metadata"]["name"] = "p"
    return {**made, "target": {"kind": "Node", "name": "nowhere"}}


@pytest.fixture
def seated(control_plane: Cluster) -> Iterator[str]:
    """The path of a pod that asks for a seat, where the webhook isn't asked: none runs here."""
    api, made = control_plane.api(), plain()
    with contextlib.suppress(ConflictError):
        api.post(
            "/api/v1/namespaces/kube-system/serviceaccounts", {"metadata": {"name": "default"}}
        )
    resources = {"limits": {keys.seat_resource(1): "1"}}
    made["spec"]["containers"][0]["resources"] = resources
    path = "/api/v1/namespaces/kube-system/pods"
    api.post(path, made)
    yield f"{path}/p"
    api.delete(f"{path}/p", {"gracePeriodSeconds": 0})


def test_the_extender_binds_with_the_group_and_nobody_changes_it(
    control_plane: Cluster, seated: str
) -> None:
    pod = seated
    admin, extender = control_plane.api(), control_plane.api("extender")
    wanted = binding(group="G0", assigned_at="2026-01-01T00:00:00Z")
    for path in (f"{pod}/binding", "/api/v1/namespaces/kube-system/bindings"):
        with pytest.raises(RefusedError, match="extender"):
            admin.post(path, wanted)
    with pytest.raises(RefusedError, match="agent"):
        extender.post(f"{pod}/binding", binding(seat="s"))
    with pytest.raises(RefusedError):
        extender.patch(pod, notes(group="G0"))
    extender.post(f"{pod}/binding", wanted)
    bound = admin.get(pod)
    assert bound["spec"]["nodeName"] == "nowhere"
    assert bound["metadata"]["annotations"][keys.ASSIGNED_GROUP] == "G0"
    for change in (notes(group="G1"), notes(group=None), notes(assigned_at=None)):
        with pytest.raises(RefusedError, match="extender"):
            admin.patch(pod, change)
    replaced = admin.get(pod)
    del replaced["metadata"]["annotations"]
    with pytest.raises(RefusedError, match="extender"):
        admin.put(pod, replaced)


def test_other_schedulers_bind_plain_pods(control_plane: Cluster, pod: str) -> None:
    control_plane.api().post(f"{pod}/binding", binding())
    assert control_plane.api().get(pod)["spec"]["nodeName"] == "nowhere"


def test_the_extender_binds_only_pods_with_a_seat(
    control_plane: Cluster, pod: str, seated: str
) -> None:
    admin, extender = control_plane.api(), control_plane.api("extender")
    wanted = binding(group="G0", assigned_at="2026-01-01T00:00:00Z")
    # The API server's own cache of pods has a new one after a moment; until then this passes.
    until(lambda: not _binds(extender, f"{pod}/binding?dryRun=All", wanted), "it may be bound")
    with pytest.raises(RefusedError, match="only pods with a seat, and p has none"):
        extender.post(f"{pod}/binding", wanted)
    assert "nodeName" not in admin.get(pod)["spec"]
    extender.post(f"{seated}/binding", wanted)
    assert admin.get(seated)["spec"]["nodeName"] == "nowhere"


def _binds(account: Api, path: str, wanted: dict[str, Any]) -> bool:
    with contextlib.suppress(RefusedError):
        account.post(path, wanted)
        return True
    return False


def test_the_controller_evicts_no_pod_without_a_seat(control_plane: Cluster, pod: str) -> None:
    controller, body = control_plane.api("controller"), {"apiVersion": "policy/v1"}
    body |= {"kind": "Eviction", "metadata": {"namespace": NAMESPACE, "name": "p"}}
    # The API server's list of pods is some milliseconds late.
    time.sleep(1.0)
    with pytest.raises(RefusedError, match="only pods with a seat"):
        controller.post(f"{pod}/eviction", body)
    controller.post(f"{pod}/eviction", body, {"dryRun": "All"})
    assert "deletionTimestamp" not in control_plane.api().get(pod)["metadata"]


@pytest.fixture
def request_path(control_plane: Cluster, webhook: object) -> Iterator[str]:
    """An eviction that somebody has asked for."""
    admin = control_plane.api()
    path = f"/apis/{keys.API_VERSION}/namespaces/default/checkpointrequests"
    spec = {"pod": "p", "mode": "Evict", "requestedBy": "admin"}
    body = {"apiVersion": keys.API_VERSION, "kind": keys.CHECKPOINT_REQUEST_KIND, "spec": spec}
    admin.post(path, {**body, "metadata": {"name": "once", "labels": {"a": "b"}}})
    yield f"{path}/once"
    admin.delete(f"{path}/once")


def test_the_extender_writes_nothing_into_a_request_but_who_continues(
    control_plane: Cluster, request_path: str
) -> None:
    extender = control_plane.api("extender")
    found = extender.patch(request_path, notes(successor="u1"))
    assert found["metadata"]["annotations"] == {keys.SUCCESSOR: "u1"}
    for change in (
        notes(other="x"),
        {"metadata": {"labels": {"a": None}}},
        {"metadata": {"finalizers": ["kyb.ai/x"]}},
    ):
        with pytest.raises(RefusedError, match="nothing of a request but"):
            extender.patch(request_path, change)
    with pytest.raises(RefusedError, match="done once, as it was written"):
        extender.patch(request_path, {"spec": {"pod": "q"}})


HOOK_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
EVERYTHING = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}


@pytest.mark.parametrize("kind", HOOK_KINDS)
@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("/webhooks/0/rules/0", EVERYTHING),
        ("/webhooks/0/rules/-", EVERYTHING),
        ("/webhooks/0/namespaceSelector", {}),
        ("/webhooks/0/objectSelector", {"matchLabels": {"a": "b"}}),
        ("/webhooks/0/matchConditions", []),
        ("/webhooks/0/failurePolicy", "Ignore"),
        ("/webhooks/0/timeoutSeconds", 30),
        ("/webhooks/0/name", "other.pods.kyb.ai"),
        ("/webhooks/0/clientConfig", {"url": "https://192.0.2.1/"}),
        ("/webhooks/0/clientConfig/url", "https://127.0.0.1:1/other"),
        ("/webhooks", []),
        ("/metadata/labels/app.kubernetes.io~1part-of", "other"),
        ("/metadata/annotations", {"other": "x"}),
        ("/metadata/finalizers", ["kyb.ai/stay"]),
    ],
)
def test_the_webhook_changes_nothing_of_its_configurations_but_the_ca(
    control_plane: Cluster, kind: str, where: str, value: object
) -> None:
    path = f"/apis/{HOOKS}/v1/{kind}/kyb-webhook"
    step = {"op": "add", "path": where, "value": value}
    with pytest.raises(RefusedError, match=r"nothing of its configurations but clientConfig\.ca"):
        control_plane.api("webhook").patch(path, [step], "json")


@pytest.mark.parametrize("kind", HOOK_KINDS)
def test_the_webhook_adds_no_webhook(control_plane: Cluster, kind: str) -> None:
    api, path = control_plane.api("webhook"), f"/apis/{HOOKS}/v1/{kind}/kyb-webhook"
    more = {**api.get(path)["webhooks"][0], "name": "more.pods.kyb.ai"}
    with pytest.raises(RefusedError, match="nothing of its configurations"):
        api.patch(path, [{"op": "add", "path": "/webhooks/-", "value": more}], "json")
    with pytest.raises(RefusedError):
        api.delete(path)


@pytest.mark.parametrize("kind", HOOK_KINDS)
def test_the_webhook_publishes_its_ca(control_plane: Cluster, kind: str) -> None:
    api, path = control_plane.api("webhook"), f"/apis/{HOOKS}/v1/{kind}/kyb-webhook"
    authority = (control_plane.layout.pki / "ca.crt").read_bytes()
    bundle = base64.b64encode(authority).decode()
    where = "/webhooks/0/clientConfig/caBundle"
    found = api.patch(path, [{"op": "add", "path": where, "value": bundle}], "json")
    assert found["webhooks"][0]["clientConfig"]["caBundle"] == bundle
    # Whoever administers the cluster isn't held by it.
    step = {"op": "add", "path": "/metadata/labels/a", "value": "b"}
    control_plane.api().patch(path, [step, {**step, "op": "remove"}], "json")


@pytest.mark.parametrize("account", ["webhook", "proxy", "scheduler", "registry"])
def test_no_other_account_writes_what_is_the_system_s(
    control_plane: Cluster, pod: str, account: str
) -> None:
    """By RBAC or by a policy: the scheduler may bind each pod and write its status."""
    api = control_plane.api(account)
    for change in (notes(group="G0"), notes(seat="G0-seat-1"), notes(gang_plan="{}")):
        for path in (pod, f"{pod}/status"):
            with pytest.raises(RefusedError):
                api.patch(path, change)
    with pytest.raises(RefusedError):
        api.post(f"{pod}/binding", binding(group="G0", assigned_at="2026-01-01T00:00:00Z"))
    assert not control_plane.api().get(pod)["metadata"].get("annotations")
