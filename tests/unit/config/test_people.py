"""What config/rbac gives to people."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kybernate import keys
from tests.unit.config.test_config import definition, of_kind

AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"
READ = {"get", "list", "watch"}
WRITE = {"create", "update", "patch", "delete", "deletecollection"}
ASKED_BY = (
    *("checkpointrequests", "checkpointpolicies"),
    *("rebalancerequests", "restorerequests", "snapshottemplates", "tierplacements"),
)
SHOWN, GRANTS, NODES, VIEW_NODES = "artifacts", "artifactgrants", "gpunodes", "kyb-view-nodes"


def added() -> dict[str, dict[str, set[str]]]:
    """What is added to Kubernetes' own roles, as resources and verbs, by role."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for role in of_kind("rbac", "ClusterRole"):
        for label in role["metadata"].get("labels", ()):
            if label.startswith(AGGREGATE):
                _add(found[label.removeprefix(AGGREGATE)], role)
    return found


def _add(rights: dict[str, set[str]], role: dict[str, Any]) -> None:
    for rule in role["rules"]:
        assert rule["apiGroups"] == [keys.GROUP]
        for resource in rule["resources"]:
            rights[resource] |= set(rule["verbs"])


def test_kubernetes_own_roles_get_the_objects_of_a_namespace() -> None:
    """As Kubernetes has it, `edit` has all of `view` and `admin` all of `edit`; a grant gives away
    all memory of a pod, and is an admin's to write."""
    both = READ | WRITE
    assert added() == {
        "view": {**dict.fromkeys(ASKED_BY, READ), GRANTS: READ, SHOWN: READ},
        "edit": {**dict.fromkeys(ASKED_BY, both), SHOWN: {"restore"}},
        "admin": {GRANTS: both, "rebalancerequests": {"approve"}},
    }


def test_every_object_of_a_namespace_is_for_its_people_to_see() -> None:
    kinds = [one["spec"] for one in of_kind("crd", "CustomResourceDefinition")]
    ours = {one["names"]["plural"] for one in kinds if one["scope"] == "Namespaced"}
    assert set(added()["view"]) == ours


def test_nodes_are_read_by_a_role_that_somebody_must_give() -> None:
    """GPUNodes name pods of all namespaces."""
    assert definition(f"{NODES}.{keys.GROUP}")["spec"]["scope"] == "Cluster"
    (role,) = (
        one for one in of_kind("rbac", "ClusterRole") if one["metadata"]["name"] == VIEW_NODES
    )
    rights: dict[str, set[str]] = defaultdict(set)
    _add(rights, role)
    assert rights == {NODES: READ}
    assert not [one for one in role["metadata"]["labels"] if one.startswith(AGGREGATE)]
    bound = {one["roleRef"]["name"] for one in of_kind("rbac", "ClusterRoleBinding")}
    assert VIEW_NODES not in bound
