"""Which CheckpointPolicies the API server lets in, and from whom."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError, RefusedError
from tests.integration.controller.conftest import (
    LIMIT_S,
    NAMESPACE,
    PODS,
    REQUESTS,
    complete,
    request,
)
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller
    from tests.kit.servers.agentdoor import Door

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
        ({"turn": {}}, "write mode, weight, minResidency, maxWait or priority"),
        ({"turn": {"minResidency": "5"}}, "should match"),
        ({"prefetch": "0"}, "should match"),
        ({"limits": {}}, "write parallel, secondsPerGiB or noProgress"),
        ({"rebalance": {"every": "59s"}}, "every is 1m at least"),
        ({"rebalance": {"every": "0s"}}, "every is 1m at least"),
        ({"limits": {"parallel": 0}}, "greater than or equal to 1"),
        ({"turn": {"mode": "Always"}}, "Unsupported value"),
        ({"turn": {"mode": "on-request", "weight": 2}}, "leave weight out"),
        ({"turn": {"weight": 1001}}, "less than or equal to 1000"),
        ({"idle": {}}, "name a tier"),
        ({"idle": {"vram": "10 minutes"}}, "should match"),
        ({"turn": {"mode": "auto"}, "precedence": -1}, "greater than or equal to 0"),
        ({"schedule": [{**TIME, "cron": "@daily"}]}, "should match"),
        ({"schedule": [{**TIME, "cron": "0 8 * *"}]}, "should match"),
        ({"schedule": [{"cron": "0 8 * * *", "duration": "1h"}]}, "write turn, idle or prefetch"),
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


def test_all_that_is_said_of_turns_prefetch_and_limits_stays(api: Api) -> None:
    spec = {
        "turn": {"minResidency": "5s", "maxWait": "2m", "priority": -10},
        "prefetch": "7",
        "limits": {"parallel": 2, "secondsPerGiB": 30, "noProgress": "1m"},
        "schedule": [{"cron": "30 7 * * *", "duration": "1h", "prefetch": "always"}],
    }
    made = api.post(POLICIES, policy(**spec))
    assert made["spec"] == {"selector": {}, **spec}


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


def test_nobody_has_snapshots_made_of_pods_in_which_they_may_not_run_commands(
    api: Api, users: Callable[[str, list[dict[str, Any]]], Api]
) -> None:
    writes = {"apiGroups": ["kyb.ai"], "resources": ["checkpointpolicies"], "verbs": ["create"]}
    patches = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    runs = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
    with pytest.raises(RefusedError, match="right to create pods/exec in namespace requests"):
        users("policies-eve", [writes, patches]).post(POLICIES, policy(snapshots={"every": "15m"}))
    users("policies-carol", [writes, patches, runs]).post(
        POLICIES, policy(snapshots={"every": "15m"})
    )


def test_nobody_has_pods_moved_by_their_load_who_may_not_approve_moves(
    api: Api, users: Callable[[str, list[dict[str, Any]]], Api]
) -> None:
    policies, plans = ["checkpointpolicies"], ["rebalancerequests"]
    writes = {"apiGroups": ["kyb.ai"], "resources": policies, "verbs": ["create", "patch", "get"]}
    patches = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    evicts = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
    approves = {"apiGroups": ["kyb.ai"], "resources": plans, "verbs": ["approve"]}
    wanted = policy(rebalance={"above": 60})
    dan = users("policies-dan", [writes, patches, evicts])
    for who in (dan, users("policies-erin", [writes, patches, approves])):
        with pytest.raises(RefusedError, match="verb approve for rebalancerequests"):
            who.post(POLICIES, wanted)
    users("policies-frank", [writes, patches, evicts, approves]).post(POLICIES, wanted)
    assert api.get(f"{POLICIES}/p")["spec"]["rebalance"] == {"above": 60}
    with pytest.raises(RefusedError, match="verb approve for rebalancerequests"):
        dan.patch(f"{POLICIES}/p", {"spec": {"selector": {"matchLabels": {"app": "all"}}}})


def test_nobody_but_the_controller_writes_a_status(api: Api) -> None:
    api.post(POLICIES, policy(turn={"mode": "always"}))
    with pytest.raises(RefusedError, match="nobody but Kybernate's controller"):
        api.patch(f"{POLICIES}/p/status", {"status": {"governed": 7}})


# --- with a controller ----------------------------------------------------------------------------


def status(api: Api, name: str = "p") -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{POLICIES}/{name}").get("status") or {}
    return found


def state(api: Api, name: str = "p") -> tuple[str, str, int, int]:
    """Status and reason of its condition; how many pods it governs and selects."""
    found = status(api, name)
    (one,) = found.get("conditions") or [{"status": "", "reason": ""}]
    return one["status"], one["reason"], found.get("governed", -1), found.get("matched", -1)


def at(api: Api, name: str, *wanted: object) -> None:
    until(
        lambda: state(api, name) == wanted, f"{name} is {state(api, name)}, not {wanted}", LIMIT_S
    )


@pytest.fixture
def others(api: Api) -> Iterator[None]:
    """No policy and no request is left."""
    yield
    for path in (POLICIES, REQUESTS):
        for item in api.get(path)["items"]:
            with contextlib.suppress(NotFoundError):
                api.delete(f"{path}/{item['metadata']['name']}")


@pytest.mark.usefixtures("others")
def test_a_status_says_whom_each_governs(
    api: Api, controller: Controller, seated: Callable[..., str]
) -> None:
    api.post(POLICIES, policy(turn={"mode": "always"}))
    at(api, "p", "True", "SelectsNone", 0, 0)
    seated()
    at(api, "p", "True", "Governs", 1, 1)
    wrong = [{**TIME, "timeZone": "Mars"}]
    api.post(POLICIES, policy("wrong", schedule=wrong, precedence=9))
    at(api, "wrong", "False", "Invalid", 0, 0)
    assert "timeZone is 'Mars'" in status(api, "wrong")["conditions"][0]["message"]
    assert state(api) == ("True", "Governs", 1, 1)
    api.patch(f"{POLICIES}/wrong", {"spec": {"schedule": [{**TIME, "timeZone": "Europe/Berlin"}]}})
    at(api, "wrong", "True", "Governs", 1, 1)
    at(api, "p", "True", "Overruled", 0, 1)
    assert status(api, "wrong")["observedGeneration"] == 2
    api.patch(f"{PODS}/a", {"metadata": {"labels": {"app": "llm"}}})
    selector = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}
    api.patch(f"{POLICIES}/wrong", {"spec": {"selector": selector}})
    at(api, "wrong", "True", "SelectsNone", 0, 0)
    at(api, "p", "True", "Governs", 1, 1)
    assert controller.stop() == 0


def running(control_plane: Cluster, name: str = "a", ago: float = 3600.0) -> None:
    """The pod runs, as its kubelet would say, since so many seconds."""
    since = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {"status": {"phase": "Running", "startTime": since}}
    control_plane.api().patch(f"{PODS}/{name}/status", told)


def snapshots(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(REQUESTS)["items"]
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


def sealed(api: Api) -> list[str]:
    return [one["metadata"]["name"] for one in snapshots(api) if complete(one)[1] == "Sealed"]


@pytest.mark.usefixtures("others")
def test_snapshots_are_made_once_a_slot_though_the_controller_is_killed(
    api: Api,
    control_plane: Cluster,
    controller: Controller,
    door: Door,
    seated: Callable[..., str],
) -> None:
    uid, door.takes = seated(), 0.3
    running(control_plane)
    api.post(POLICIES, policy(snapshots={"every": "1m", "to": "nvme", "keep": {"last": 2}}))
    until(lambda: len(snapshots(api)) >= 1, "no snapshot is asked for", LIMIT_S)
    for _ in range(5):
        controller.kill()
        controller.start()
    until(lambda: len(sealed(api)) >= 1, "no snapshot is sealed", LIMIT_S)
    first = snapshots(api)[0]
    assert first["spec"]["requestedBy"] == "system:serviceaccount:kyb-system:kyb-controller"
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("CheckpointPolicy", "p")
    assert {one[1:] for one in door.begun} == {("save", uid, "nvme")}
    # So many slots as have begun since: no two in one.
    assert len(door.begun) == len(snapshots(api)) <= 2
    until(lambda: status(api).get("snapshots", {}).get("total", 0) >= 1, "it is not told", LIMIT_S)
    assert state(api) == ("True", "Governs", 1, 1)


@pytest.mark.usefixtures("others")
def test_of_snapshots_the_newest_stay_and_nobody_elses_goes(
    api: Api,
    control_plane: Cluster,
    controllers: Callable[..., Controller],
    door: Door,
    seated: Callable[..., str],
) -> None:
    uid = seated()
    door.seats.add(uid)
    made = api.post(POLICIES, policy(snapshots={"every": "168h", "keep": {"last": 2}}))
    owner = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.CHECKPOINT_POLICY_KIND,
        "name": "p",
        "uid": made["metadata"]["uid"],
    }
    by_hand = request("by-hand")
    # Who says that a policy has made it is not believed.
    by_hand["metadata"]["ownerReferences"] = [owner]
    api.post(REQUESTS, by_hand)
    machine = control_plane.api("controller")
    for number in range(4):
        one = request(f"slot-{number}")
        one["metadata"]["ownerReferences"] = [owner]
        machine.post(REQUESTS, one)
        if number == 0:
            (controller := controllers()).start()
        until(lambda name=f"slot-{number}": name in sealed(api), "not sealed", LIMIT_S)  # type: ignore[misc]
        time.sleep(1.1)  # so that each has a second of its own to have ended in
    until(lambda: len(sealed(api)) == 3, f"still {sealed(api)}", LIMIT_S)
    assert sealed(api) == ["by-hand", "slot-2", "slot-3"]
    kept = {one["status"]["operation"] for one in snapshots(api)}
    assert set(door.dropped) == {name for name, *_ in door.begun} - kept
    door.drops = False
    machine.post(REQUESTS, {**one, "metadata": {**one["metadata"], "name": "slot-9"}})
    until(lambda: "slot-9" in sealed(api), "not sealed", LIMIT_S)
    controller.kill()
    assert len(sealed(api)) == 4, "what its agent could not drop is still told of"
    door.drops = True
    controller.start()
    until(lambda: len(sealed(api)) == 3, f"still {sealed(api)}", LIMIT_S)
    assert "slot-2" not in sealed(api)


@pytest.mark.usefixtures("others")
def test_the_controllers_account_may_ask_for_snapshots_of_policies_alone(
    api: Api, control_plane: Cluster, webhook: object
) -> None:
    machine = control_plane.api("controller")
    for mode in ("Snapshot", "Park"):
        with pytest.raises(RefusedError, match=f"may not ask for mode {mode}"):
            machine.post(REQUESTS, request("once", mode))
