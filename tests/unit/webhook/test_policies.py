"""What config/ says to the API server fits the names in the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kybernate import keys
from webhook.pods import validate

CONFIG = Path(__file__).parents[3] / "config"


def text(path: str) -> str:
    return (CONFIG / path).read_text()


def hook(name: str) -> dict[str, Any]:
    """The one that is asked about pods."""
    found = yaml.safe_load(text(f"webhook/{name}.yaml"))["webhooks"]
    return next(dict(one) for one in found if ".pods." in one["name"])


@pytest.mark.parametrize(
    "annotation",
    # With the first the webhook is asked; the second isn't ours.
    sorted(set(keys.USER_ANNOTATIONS) - {keys.GPUS_ANNOTATION}),
)
def test_every_annotation_of_a_user_without_a_seat_is_told(annotation: str) -> None:
    assert f"'{annotation}'" in text("policy/opt-in.yaml")


@pytest.mark.parametrize("variable", keys.SYSTEM_ENV)
def test_the_policy_for_debug_containers_knows_every_variable(variable: str) -> None:
    assert variable.startswith("KYB_") or f"'{variable}'" in text("policy/debug-containers.yaml")


def test_the_policy_for_debug_containers_knows_every_capability_but_the_debuggers() -> None:
    named = text("policy/debug-containers.yaml")
    for capability in validate.CAPABILITIES - {"SYS_PTRACE"}:
        assert f"'{capability}'" in named
    assert "'SYS_PTRACE'" not in named


def test_the_policy_for_later_changes_has_the_webhook_s_limit() -> None:
    assert f"> {validate.LONGEST})" in text("policy/sizing-annotations.yaml")


def test_every_annotation_of_the_code_is_the_users_or_the_systems() -> None:
    annotations = {
        value
        for name, value in vars(keys).items()
        if name.isupper() and isinstance(value, str) and value.startswith(f"{keys.GROUP}/")
    }
    others = {
        *(keys.API_VERSION, keys.RESOURCE_PREFIX, keys.MANAGED_LABEL, keys.GPU_NODE_LABEL),
        *(keys.ORIGINAL_RESOURCES, keys.WAKEABLE_CONDITION),
        *(keys.REPLACE_CONDITION, keys.CDI_KIND, keys.AGENT_SIGNER, keys.SUCCESSOR),
        *(keys.OF_POD_LABEL, keys.OF_OWNER_LABEL, keys.TIER_LABEL, keys.OF_POLICY_LABEL),
        keys.MOMENT_LABEL,
        *(keys.ZERO_LABEL, keys.WANTED, keys.WHY),
        keys.MADE_FOR,
    }
    known = {*keys.USER_ANNOTATIONS, *keys.SYSTEM_ANNOTATIONS, *others}
    assert annotations <= known


def test_both_webhooks_are_asked_about_the_same_pods_and_have_no_side_effects() -> None:
    mutating, validating = hook("mutating"), hook("validating")
    for field in ("matchConditions", "namespaceSelector", "failurePolicy", "sideEffects"):
        assert mutating[field] == validating[field], field
    created, debugged = mutating["rules"]
    assert [created] == validating["rules"]
    # What comes of this is judged by a policy.
    assert (debugged["resources"], debugged["operations"]) == (
        ["pods/ephemeralcontainers"],
        ["UPDATE"],
    )
    assert (mutating["sideEffects"], mutating["failurePolicy"]) == ("None", "Fail")
    assert mutating["reinvocationPolicy"] == "IfNeeded"
