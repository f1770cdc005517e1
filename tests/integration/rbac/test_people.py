"""People get what the roles of config/rbac say, by bindings as whoever administers makes them."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from kybernate.errors import ConflictError
from tests.cluster.start import readiness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAMESPACE, ELSEWHERE = "people", "elsewhere"
READ = {"get", "list", "watch"}
WRITE = {"create", "update", "patch", "delete", "deletecollection"}
PLANS = "rebalancerequests"
ASKED_BY = (
    *("checkpointrequests", "checkpointpolicies"),
    *(PLANS, "restorerequests", "snapshottemplates", "tierplacements"),
)
KINDS = (*ASKED_BY, "artifactgrants", "artifacts", "gpunodes", "shares")
VIEW = ("kyb-requests-view", "kyb-grants-view")
EDIT = (*VIEW, "kyb-requests-edit")
ADMINS = ("kyb-grants", "kyb-requests-approve")
ADMIN = (*EDIT, *ADMINS)
# No controller of Kubernetes' runs here that would add these to its own roles: each is bound.
ROLES = {"viewer": VIEW, "editor": EDIT, "admin": ADMIN}


@pytest.fixture
def people(control_plane: Cluster) -> None:
    """A user for each of Kubernetes' own roles, in NAMESPACE."""
    with contextlib.suppress(ConflictError):
        control_plane.api().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for user, roles in ROLES.items():
        for role in roles:
            bind(control_plane, user, role, f"/namespaces/{NAMESPACE}/rolebindings")


def bind(cluster: Cluster, user: str, role: str, path: str) -> None:
    kind = "ClusterRoleBinding" if path == "/clusterrolebindings" else "RoleBinding"
    group = "rbac.authorization.k8s.io"
    body = {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": f"{user}-{role}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    api = cluster.api()
    with contextlib.suppress(ConflictError):
        api.post(f"{RBAC}{path}", body)
    rules = api.get(f"{RBAC}/clusterroles/{role}")["rules"]
    readiness.rights(api, user, rules, NAMESPACE if kind == "RoleBinding" else "")


def rights(cluster: Cluster, user: str, namespace: str = NAMESPACE) -> dict[str, set[str]]:
    """What the API server lets the user do, of all that could be asked of our objects."""
    found = {
        kind: {verb for verb in READ | WRITE if may(cluster, user, verb, kind, namespace)}
        for kind in every(KINDS)
    }
    return {kind: verbs for kind, verbs in found.items() if verbs}


def every(kinds: Iterable[str]) -> list[str]:
    return ["".join(parts) for parts in itertools.product(kinds, ("", "/status"))]


def may(cluster: Cluster, user: str, verb: str, what: str, namespace: str) -> bool:
    kind, _, sub = what.partition("/")
    asked = {"namespace": namespace, "verb": verb, "group": keys.GROUP, "resource": kind}
    asked["subresource"] = sub
    return readiness.may(cluster.api(), user, asked)


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize(
    ("user", "asks", "grants"),
    [("viewer", READ, READ), ("editor", READ | WRITE, READ), ("admin", *[READ | WRITE] * 2)],
)
def test_people_of_a_namespace_may_what_their_role_says(
    control_plane: Cluster, user: str, asks: set[str], grants: set[str]
) -> None:
    wanted = {**dict.fromkeys(ASKED_BY, asks), "artifactgrants": grants, "artifacts": READ}
    assert rights(control_plane, user) == wanted
    assert rights(control_plane, user, ELSEWHERE) == {}


@pytest.mark.usefixtures("people")
def test_only_admins_approve_plans_and_only_those_of_their_namespace(
    control_plane: Cluster,
) -> None:
    asked = [(user, where) for user in ROLES for where in (NAMESPACE, ELSEWHERE)]
    found = [one for one in asked if may(control_plane, one[0], "approve", PLANS, one[1])]
    assert found == [("admin", NAMESPACE)]


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_kubernetes_own_roles_take_ours(control_plane: Cluster, role: str) -> None:
    """By labels, which are all that its controller goes by."""
    api = control_plane.api()
    wanted = api.get(f"{RBAC}/clusterroles/{role}")["aggregationRule"]["clusterRoleSelectors"]
    (selector,) = (one["matchLabels"] for one in wanted)
    names = {
        one["metadata"]["name"]
        for one in api.get(f"{RBAC}/clusterroles")["items"]
        if selector.items() <= (one["metadata"].get("labels") or {}).items()
    }
    ours = {"view": VIEW, "edit": ("kyb-requests-edit",), "admin": ADMINS}
    # And the next lesser one of Kubernetes' own, with all that it has.
    lesser = {"view": (), "edit": ("view",), "admin": ("edit",)}
    assert {one for one in names if not one.startswith("system:")} == {*ours[role], *lesser[role]}


def test_who_may_see_nodes_sees_nodes_and_nothing_else(control_plane: Cluster) -> None:
    assert rights(control_plane, "watcher") == {}
    bind(control_plane, "watcher", "kyb-view-nodes", "/clusterrolebindings")
    assert rights(control_plane, "watcher") == {"gpunodes": READ}
