"""Waiting until parts of a cluster can do their work; nothing here sleeps a fixed time."""

from __future__ import annotations

import contextlib
import itertools
import ssl
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from tests.cluster.parts.nodes import READY_LIMIT
from tests.cluster.processes.control import log_tail, wait_until
from tests.cluster.spec import AGENT_PROBE_PORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.adapters.k8s import Api
    from tests.cluster.layout import Layout
    from tests.cluster.parts.services import Service
    from tests.cluster.spec import ClusterSpec


def apiserver(layout: Layout, server: str) -> None:
    """Until the API server answers /readyz."""
    context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
    log = layout.logs / "apiserver.log"
    wait_until(
        lambda: answers(f"{server}/readyz", context),
        READY_LIMIT,
        lambda: f"the API server isn't ready:\n{log_tail(log)}",
    )


def kinds(api: Api) -> None:
    """Until objects of ours can be listed: the API server makes a kind's storage when it is first
    asked for one, and refuses lists (429) until that is filled."""
    crds = api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    names = {one["spec"]["names"]["plural"] for one in crds if one["spec"]["group"] == keys.GROUP}

    def listed() -> bool:
        for name in sorted(names):
            try:
                api.get(f"/apis/{keys.API_VERSION}/{name}")
            except (NotFoundError, RetryableError):
                return False
            names.remove(name)
        return True

    wait_until(listed, READY_LIMIT, lambda: f"the API server doesn't serve {sorted(names)}")


def policies(api: Api) -> None:
    """Until admission policies are in force that are there already: the API server takes in new
    ones a second later, all at once. So one more that refuses something is waited for."""
    kind, name = "ValidatingAdmissionPolicy", "one-machine-in-force"
    group = "admissionregistration.k8s.io/v1"
    tried = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
        "resourceNames": [name],
    }
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    for path, one in ((kind, spec), (f"{kind}Binding", binding)):
        body = {"apiVersion": group, "kind": path, "metadata": {"name": name}, "spec": one}
        plural = "policies" if path == kind else "policybindings"
        with contextlib.suppress(ConflictError):
            api.post(f"/apis/{group}/validatingadmission{plural}", body)

    def refused() -> bool:
        try:
            api.post("/api/v1/namespaces/default/configmaps?dryRun=All", tried)
        except RefusedError:
            return True
        return False

    wait_until(refused, READY_LIMIT, lambda: "the API server takes in no admission policy")


def rights(api: Api, user: str, rules: Sequence[dict[str, Any]], namespace: str = "") -> None:
    """Until the API server grants the user these rules of a role, in the namespace, or in every
    one if none is named: what it decides by learns of roles and bindings some ms after they are
    written."""
    names = ("apiGroups", "resources", "verbs", "resourceNames")
    asked = [
        {"namespace": namespace, "group": group, "resource": kind, "subresource": sub}
        | {"verb": verb, "name": name}
        for rule in rules
        for group, what, verb, name in itertools.product(*(rule.get(one) or [""] for one in names))
        for kind, _, sub in (what.partition("/"),)
    ]

    def granted() -> bool:
        while asked and may(api, user, asked[-1]):
            asked.pop()
        return not asked

    wait_until(granted, READY_LIMIT, lambda: f"the API server doesn't let {user} {asked[-1]}")


def may(api: Api, user: str, what: dict[str, str]) -> bool:
    """Whether the API server lets the user, who has logged in, do this (resource attributes of
    authorization.k8s.io/v1)."""
    account = user.startswith("system:serviceaccount:")
    groups = ["system:authenticated", *["system:serviceaccounts"] * account]
    spec = {"user": user, "groups": groups, "resourceAttributes": what}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(api.post(path, {"spec": spec})["status"]["allowed"])


def nodes(api: Api, layout: Layout, names: Sequence[str]) -> None:
    """Until every node is Ready and open for pods."""

    def ready() -> bool:
        rows = api.get("/api/v1/nodes")["items"]
        return {row["metadata"]["name"] for row in rows if node_usable(row)} >= set(names)

    def why_not() -> str:
        tails = [f"{name}:\n{log_tail(layout.logs / f'kubelet-{name}.log')}" for name in names]
        return "not every node became Ready; the kubelets said\n" + "\n".join(tails)

    wait_until(ready, READY_LIMIT, why_not)


def service(one: Service) -> None:
    """Until a service of ours says that it is ready."""
    name, log = one.process.name, one.process.log
    wait_until(
        lambda: answers(one.ready_url),
        READY_LIMIT,
        f"{name} isn't ready ({one.ready_url}); see {log}",
    )


def seats(api: Api, layout: Layout) -> None:
    """Until every node offers seats to the scheduler."""

    def offered() -> bool:
        return all(seats_of(row) for row in api.get("/api/v1/nodes")["items"])

    wait_until(offered, READY_LIMIT, f"the nodes offer no seats; see {layout.logs}/plugin-*.log")


def node_pods(api: Api, spec: ClusterSpec) -> None:
    """Until every node's agent answers; the plugin shows by the seats that its node offers."""
    path = f"/api/v1/namespaces/{keys.NAMESPACE}/pods"

    def why_not() -> str:
        lines = [pod_state(pod) for pod in api.get(path)["items"]]
        return "not every node's agent is ready; the pods:\n" + "\n".join(lines or ["none"])

    for node in spec.node_names if "agent" in spec.running_services else ():
        url = f"http://{spec.node_ip(node)}:{AGENT_PROBE_PORT}/readyz"
        wait_until(partial(answers, url), READY_LIMIT, why_not)


def pod_state(pod: dict[str, Any]) -> str:
    """One line: the pod, its phase, and what its containers wait for or ended of."""
    statuses = pod["status"].get("containerStatuses", [])
    states = [str({**one.get("lastState", {}), **one["state"]})[:600] for one in statuses]
    where = pod["spec"].get("nodeName", "no node yet")
    return f"{pod['metadata']['name']} on {where}: {pod['status']['phase']} {' '.join(states)}"


def make_default_account(api: Api) -> None:
    """Makes the service account that pods of `default` need, without waiting until the
    controller manager does."""

    def made() -> bool:
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        try:
            api.post("/api/v1/namespaces/default/serviceaccounts", body)
        except NotFoundError:
            return False
        except ConflictError:
            return True
        return True

    wait_until(made, READY_LIMIT, "the API server doesn't make the namespace `default`")


def node_usable(node: dict[str, Any]) -> bool:
    """Ready, and open for pods."""
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not node.get("spec", {}).get("taints")


def seats_of(node: dict[str, Any]) -> int:
    """How many seats, of whatever size, the node can give."""
    allocatable = node.get("status", {}).get("allocatable", {})
    return sum(
        int(amount)
        for resource, amount in allocatable.items()
        if keys.seat_resource_size(resource) is not None
    )


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """True if a GET is answered with 200 within two seconds."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
