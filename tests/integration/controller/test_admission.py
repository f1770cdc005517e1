"""Which CheckpointRequests the API server lets in, and from whom."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.errors import NotFoundError, RefusedError
from tests.integration.controller.conftest import NAMESPACE, REQUESTS, request
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

ASKS = {"apiGroups": ["kyb.ai"], "resources": ["checkpointrequests"], "verbs": ["create"]}


@pytest.fixture
def api(control_plane: Cluster, namespace: str, webhook: object) -> Iterator[Api]:
    """The administrator; the request `once` is gone afterwards."""
    found = control_plane.api()
    yield found
    with contextlib.suppress(NotFoundError):
        found.delete(f"{REQUESTS}/once")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"mode": "Levitate"}, "Unsupported value"),
        ({"mode": "Snapshot", "tier": "ram"}, "outlives the RAM of its processes"),
        ({"mode": "Evict", "tier": "tape"}, "Unsupported value"),
        ({"mode": "Wake", "tier": "ram"}, "a wake brings the seat into GPU memory"),
        ({"mode": "Park", "tier": "tape"}, "Unsupported value"),
        ({"mode": "Park", "of": "../nodes"}, "should match"),
        ({"mode": "Park", "of": ""}, "at least 1 char"),
        ({"mode": "Park", "deadlineSeconds": 0}, "greater than or equal to 1"),
        ({"mode": "Park", "deadlineSeconds": 86401}, "less than or equal to 86400"),
        ({"mode": "Park", "ttlSecondsAfterFinished": -1}, "greater than or equal to 0"),
    ],
)
def test_what_nobody_can_do_is_refused_in_words(api: Api, spec: dict[str, Any], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        api.post(REQUESTS, request("once", **spec))


def test_defaults_columns_and_fields(api: Api) -> None:
    made = api.post(REQUESTS, request("once", "Park", tier="nvme"))
    assert made["spec"] == {
        "pod": "a",
        "mode": "Park",
        "tier": "nvme",
        "deadlineSeconds": 600,
        "requestedBy": "admin",
    }
    for selector, found in (("spec.pod=a", 1), ("spec.pod=b", 0), ("spec.mode=Park", 1)):
        assert len(api.get(REQUESTS, {"fieldSelector": selector})["items"]) == found


@pytest.mark.parametrize(
    "change",
    [{"pod": "b"}, {"mode": "Snapshot"}, {"deadlineSeconds": 5}, {"requestedBy": "eve"}],
)
def test_what_was_asked_never_changes(api: Api, change: dict[str, Any]) -> None:
    api.post(REQUESTS, request("once", "Park"))
    with pytest.raises(RefusedError, match="done once, as it was written"):
        api.patch(f"{REQUESTS}/once", {"spec": change})
    api.patch(f"{REQUESTS}/once", {"metadata": {"labels": {"team": "a"}}})


def test_who_asks_is_written_whatever_the_request_says(api: Api) -> None:
    made = api.post(REQUESTS, request("once", "Park", requestedBy="eve"))
    assert made["spec"]["requestedBy"] == "admin"


def test_nobody_asks_for_what_they_may_not_do_to_the_pod(
    api: Api, users: Callable[..., Api]
) -> None:
    rights = {
        "Park": {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
        "Snapshot": {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
        "Evict": {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    }
    for right, rule in rights.items():
        # Of pod a alone: a right to one pod is none to another.
        name = f"may-{right.lower()}"
        user = users(name, [ASKS, {**rule, "resourceNames": ["a"]}])
        for mode in rights:
            if mode == right:
                until(lambda: _may(user, mode), f"{name} has no right yet")  # noqa: B023
                made = user.post(REQUESTS, request("once", mode))
                who = f"system:serviceaccount:{NAMESPACE}:{name}"
                assert made["spec"]["requestedBy"] == who
                api.delete(f"{REQUESTS}/once")
            else:
                with pytest.raises(RefusedError, match=f"may not ask for mode {mode} of pod a"):
                    user.post(REQUESTS, request("once", mode))
            assert _may(user, "Wake") is (right == "Park"), "who may park a pod may wake it"
            with pytest.raises(RefusedError, match=f"may not ask for mode {mode} of pod b"):
                user.post(REQUESTS, request("once", mode, of="b"))


def _may(user: Api, mode: str) -> bool:
    """RBAC takes a moment to hear of a new role."""
    with contextlib.suppress(RefusedError):
        user.post(REQUESTS, request("once", mode), {"dryRun": "All"})
        return True
    return False


def test_users_write_no_status(api: Api, users: Callable[..., Api]) -> None:
    rules = {**ASKS, "verbs": ["create", "get", "update", "patch"]}
    editor = users(
        "editor", [rules, {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    )
    until(lambda: _may(editor, "Park"), "the editor has no right yet")
    made = editor.post(REQUESTS, request("once", "Park"))
    forged = {"podUID": "x", "node": "n2", "operation": "ckpt-x"}
    with pytest.raises(RefusedError, match="cannot patch"):
        editor.patch(f"{REQUESTS}/once/status", {"status": forged})
    version = made["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": version}, "status": forged}
    assert "status" not in editor.patch(f"{REQUESTS}/once", change)


def test_not_even_who_may_do_all_in_the_namespace_writes_a_status(
    control_plane: Cluster, api: Api, users: Callable[..., Api]
) -> None:
    owner = users("owner", [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
    until(lambda: _may(owner, "Park"), "the owner has no right yet")
    owner.post(REQUESTS, request("once", "Park"))
    forged = {"status": {"podUID": "x", "node": "n2", "operation": "drain-n2"}}
    for user in (owner, api):
        with pytest.raises(RefusedError, match="nobody but Kybernate's controller writes"):
            user.patch(f"{REQUESTS}/once/status", forged)
    control_plane.api("controller").patch(f"{REQUESTS}/once/status", forged)
