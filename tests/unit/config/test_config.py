"""The YAML of config/ against the names and rules of the code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from images import chart
from kybernate import keys
from kybernate.api.restoring.grants import read_grant
from kybernate.core.seat.seats import shown
from kybernate.settings.webhook import WebhookSettings
from kybernate.types import SeatState
from tests.unit.webhook.pods import CLUSTER
from webhook.pods.mutate import mutate
from webhook.pods.validate import refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = Path(__file__).parents[3] / "config"
# The chart is made of the others.
FILES = sorted(one for one in CONFIG.rglob("*.yaml") if CONFIG / "chart" not in one.parents)


def documents(folder: str) -> Iterator[dict[str, Any]]:
    for file in sorted((CONFIG / folder).rglob("*.yaml")):
        found = chart.documents(file)
        yield from (one for one in found if isinstance(one, dict) and "kind" in one)


def of_kind(folder: str, kind: str) -> list[dict[str, Any]]:
    return [found for found in documents(folder) if found["kind"] == kind]


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(CONFIG)) for file in FILES])
def test_every_file_is_reached_by_a_kustomization(file: Path) -> None:
    assert chart.documents(file)
    if file.name == "kustomization.yaml" or file.parent.name == "samples":
        return
    listed = yaml.safe_load((file.parent / "kustomization.yaml").read_text())
    generated = [name for entry in listed.get("configMapGenerator", ()) for name in entry["files"]]
    patched = [patch["path"] for patch in listed.get("patches", ()) if "path" in patch]
    assert file.name in [*listed.get("resources", ()), *generated, *patched]


def definition(name: str) -> dict[str, Any]:
    (found,) = (
        one for one in of_kind("crd", "CustomResourceDefinition") if one["metadata"]["name"] == name
    )
    return found


def test_the_crd_is_named_as_in_the_code_and_knows_every_state() -> None:
    crd = definition(f"gpunodes.{keys.GROUP}")
    assert crd["spec"]["names"]["kind"] == keys.GPU_NODE_KIND
    assert crd["spec"]["names"]["shortNames"] == ["gpun"]
    (version,) = crd["spec"]["versions"]
    assert (version["name"], version["subresources"]) == (keys.VERSION, {"status": {}})
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert {"observedGeneration", "conditions"} <= set(status)
    states = status["seats"]["items"]["properties"]["state"]["enum"]
    assert set(states) == {shown(state) for state in SeatState}


def test_the_grants_crd_has_the_fields_that_are_read_and_no_others() -> None:
    path = keys.ARTIFACT_GRANTS_PATH.split("/")
    crd = definition(f"{path[-1]}.{keys.GROUP}")
    assert path[2:4] == [crd["spec"]["group"], crd["spec"]["versions"][0]["name"]]
    assert (crd["spec"]["names"]["kind"], crd["spec"]["scope"]) == (
        keys.ARTIFACT_GRANT_KIND,
        "Namespaced",
    )
    (version,) = crd["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert all(field["description"] for field in fields.values())
    whole = {"to": ["team-b"], "artifacts": ["llama-0"], "until": "2028-01-01T00:00:00Z"}
    assert set(fields) == set(whole)
    assert read_grant({"metadata": {"namespace": "team-a", "name": "g"}, "spec": whole}).until > 0


def test_the_sample_grant_is_one() -> None:
    (sample,) = of_kind("samples", keys.ARTIFACT_GRANT_KIND)
    assert sample["apiVersion"] == keys.API_VERSION
    assert read_grant(sample).namespace == "team-a"


ACCOUNTS = [
    "kyb-agent",
    "kyb-controller",
    "kyb-extender",
    "kyb-proxy",
    "kyb-registry",
    "kyb-scheduler",
    "kyb-webhook",
]


def test_each_service_has_an_account_and_no_role_has_wildcards() -> None:
    accounts = of_kind("rbac", "ServiceAccount")
    assert sorted(account["metadata"]["name"] for account in accounts) == ACCOUNTS
    for role in [*of_kind("rbac", "ClusterRole"), *of_kind("rbac", "Role")]:
        for rule in role["rules"]:
            assert "*" not in str(rule)
            if "secrets" in rule["resources"]:
                assert rule["resourceNames"] == [WebhookSettings().secret]
                assert "create" not in rule["verbs"]


RESTORE_FOR_OTHERS = "kyb-restore"


def test_kubernetes_own_controllers_may_make_pods_that_continue_and_no_more() -> None:
    """Who wrote the template was asked."""
    roles = {one["metadata"]["name"]: one for one in of_kind("rbac", "ClusterRole")}
    rule = {"apiGroups": [keys.GROUP], "resources": ["artifacts"], "verbs": ["restore"]}
    assert roles[RESTORE_FOR_OTHERS]["rules"] == [rule]


def test_bindings_name_our_accounts() -> None:
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        for binding in of_kind("rbac", kind):
            if binding["metadata"]["name"] == RESTORE_FOR_OTHERS:
                continue
            for subject in binding["subjects"]:
                assert subject["namespace"] == keys.NAMESPACE
                assert subject["name"] in ACCOUNTS


EVICT = "evict.pods.kyb.ai"


def test_webhooks_fail_closed_and_are_named_as_the_settings_say() -> None:
    settings = WebhookSettings()
    found = [
        *of_kind("webhook", "MutatingWebhookConfiguration"),
        *of_kind("webhook", "ValidatingWebhookConfiguration"),
    ]
    paths = set()
    for configuration in found:
        assert configuration["metadata"]["name"] == settings.configuration
        hook, *others = (one for one in configuration["webhooks"] if one["name"] != EVICT)
        for one in (hook, *others):
            assert (one["failurePolicy"], one["timeoutSeconds"]) == ("Fail", 5)
            assert one["sideEffects"] == "None"
            assert one["clientConfig"]["service"]["name"] == settings.service
            paths.add(one["clientConfig"]["service"]["path"])
        # Who asks is written into every request, in all namespaces.
        assert all(set(one) >= {"rules"} and "matchConditions" not in one for one in others)
        (condition,) = hook["matchConditions"]
        assert keys.MANAGED_LABEL in condition["expression"]
        assert keys.GPUS_ANNOTATION in condition["expression"]
        (selector,) = hook["namespaceSelector"]["matchExpressions"]
        assert set(selector["values"]) == {"kube-system", keys.NAMESPACE}
    assert paths == {"/mutate", "/validate", "/sign"}


def test_the_webhook_that_sees_every_eviction_is_quick_and_in_nobodys_way() -> None:
    (configuration,) = of_kind("webhook", "ValidatingWebhookConfiguration")
    one = next(one for one in configuration["webhooks"] if one["name"] == EVICT)
    assert (one["failurePolicy"], one["sideEffects"]) == ("Ignore", "NoneOnDryRun")
    assert one["timeoutSeconds"] <= 2
    assert one["clientConfig"]["service"]["path"] == "/evict"
    (selector,) = one["namespaceSelector"]["matchExpressions"]
    assert set(selector["values"]) == {"kube-system", keys.NAMESPACE}


def test_the_policy_keeps_every_system_annotation() -> None:
    policies = {
        policy["metadata"]["name"]: policy
        for policy in of_kind("policy", "ValidatingAdmissionPolicy")
    }
    policy = policies["kyb-system-annotations"]["spec"]
    touched = next(item for item in policy["variables"] if item["name"] == "touched")
    for annotation in keys.SYSTEM_ANNOTATIONS:
        assert f"'{annotation}'" in touched["expression"]
    kubelets = policies["kyb-kubelet-accounts"]["spec"]
    touched = next(item for item in kubelets["variables"] if item["name"] == "touched")
    for annotation in (*keys.USER_ANNOTATIONS, keys.ORIGINAL_RESOURCES):
        assert f"'{annotation}'" in touched["expression"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    ways = {"pods", "pods/status", "pods/resize", "pods/ephemeralcontainers"}
    assert {*ways, "pods/binding", "bindings"} == set(rule["resources"])
    bound = {
        binding["spec"]["policyName"]
        for binding in of_kind("policy", "ValidatingAdmissionPolicyBinding")
    }
    assert bound == set(policies)


def _sample_pods() -> Iterator[dict[str, Any]]:
    for found in documents("samples"):
        if found["kind"] == "Pod":
            yield found
        elif found["kind"] in ("Deployment", "Job"):
            yield found["spec"]["template"]


def test_samples_are_admitted() -> None:
    pods = list(_sample_pods())
    assert pods
    for pod in pods:
        assert refusals(pod, CLUSTER, keys.SCHEDULER_NAME) == []
        assert mutate(pod, CLUSTER, WebhookSettings())
