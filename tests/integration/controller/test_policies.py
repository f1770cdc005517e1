"""Which CheckpointPolicies the API server lets in, and from whom."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError, RefusedError
from tests.integration.controller.conftest import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

POLICIES = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/checkpointpolicies"
TIME = {"cron": "0 8 * * 1-5", "duration": "10h", "turn": {"mode": "on-request"}}


def policy(name: str = "p", **spec: Any) -> dict[str, Any]:
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.CHECKPOINT_POLICY_KIND}
    return {**kind, "metadata": {"name": name}, "spec": {"selector": {}, **spec}}


@pytest.fixture
def api(control_plane: Cluster, namespace: str) -> Iterator[Api]:
    """The administrator; the policy `p` is gone afterwards."""
    found = control_plane.api()
    yield found
    with contextlib.suppress(NotFoundError):
        found.delete(f"{POLICIES}/p")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({}, "it says nothing; write turn, idle"),
        ({"schedule": []}, "it says nothing"),
        ({"turn": {}}, "write mode, weight or both"),
        ({"turn": {"mode": "Always"}}, "Unsupported value"),
        ({"turn": {"mode": "on-request", "weight": 2}}, "leave weight out"),
        ({"turn": {"weight": 1001}}, "less than or equal to 1000"),
        ({"idle": {}}, "name a tier"),
        ({"idle": {"vram": "10 minutes"}}, "should match"),
        ({"turn": {"mode": "auto"}, "precedence": -1}, "greater than or equal to 0"),
        ({"schedule": [{**TIME, "cron": "@daily"}]}, "should match"),
        ({"schedule": [{**TIME, "cron": "0 8 * *"}]}, "should match"),
        ({"schedule": [{"cron": "0 8 * * *", "duration": "1h"}]}, "write turn, idle or both"),
        ({"schedule": [TIME] * 17}, "at most 16 items"),
        ({"onRestoreFailure": "panic"}, "Unsupported value"),
        (
            {
                "turn": {"mode": "auto"},
                "selector": {"matchExpressions": [{"key": "a", "operator": "In"}]},
            },
            "In and NotIn take values",
        ),
    ],
)
def test_what_can_not_be_is_refused_in_words(api: Api, spec: dict[str, Any], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        api.post(POLICIES, policy(**spec))


def test_what_is_written_stays_and_may_change(api: Api) -> None:
    made = api.post(POLICIES, policy(turn={"mode": "always"}, schedule=[TIME]))
    assert made["spec"] == {"selector": {}, "turn": {"mode": "always"}, "schedule": [TIME]}
    changed = api.patch(f"{POLICIES}/p", {"spec": {"turn": {"mode": "auto"}}})
    assert changed["spec"]["turn"] == {"mode": "auto"}
    for selector, found in (("spec.turn.mode=auto", 1), ("spec.turn.mode=always", 0)):
        assert len(api.get(POLICIES, {"fieldSelector": selector})["items"]) == found


def test_nobody_says_what_counts_for_pods_that_they_may_not_change(
    api: Api, users: Callable[[str, list[dict[str, Any]]], Api]
) -> None:
    writes = {
        "apiGroups": ["kyb.ai"],
        "resources": ["checkpointpolicies"],
        "verbs": ["create", "get", "patch"],
    }
    patches = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    mallory = users("policies-mallory", [writes])
    with pytest.raises(RefusedError, match="right to patch pods in namespace requests"):
        mallory.post(POLICIES, policy(turn={"mode": "always"}))
    users("policies-bob", [writes, patches]).post(POLICIES, policy(turn={"mode": "always"}))
    with pytest.raises(RefusedError, match="right to patch pods"):
        mallory.patch(f"{POLICIES}/p", {"spec": {"turn": {"mode": "on-request"}}})
    # What says nothing of pods may be changed by whoever may write the object.
    mallory.patch(f"{POLICIES}/p", {"metadata": {"labels": {"seen": "true"}}})
