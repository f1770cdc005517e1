"""Who may be deleted for a more important pod: by its own word, or else by its policy."""

from __future__ import annotations

from typing import Any

import pytest

from extender.http.wire import Victims
from extender.pages.preempting import Preemption
from extender.state.policies import Policies
from kybernate import keys
from kybernate.types import NodeName, PodUid
from tests.unit.extender.conftest import FakeCluster
from tests.unit.extender.objects import pod, read_pod

NOW = 1_767_225_700.0


def policy(name: str, on_preempt: str, **more: Any) -> dict[str, Any]:
    meta = {"namespace": "default", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    selector = {"matchLabels": {"app": "training"}}
    return {"metadata": meta, "spec": {"selector": selector, "onPreempt": on_preempt, **more}}


@pytest.fixture
def policies() -> Policies:
    return Policies(None, lambda: NOW)  # type: ignore[arg-type]


def labelled(name: str = "a", app: str = "training", **notes: str) -> dict[str, Any]:
    item = pod(name, node="n1", notes={keys.ASSIGNED_GROUP: "G0", **notes})
    item["metadata"]["labels"] = {"app": app}
    return item


def test_a_policy_says_it_of_pods_that_say_nothing(policies: Policies) -> None:
    plain, other = read_pod(labelled()), read_pod(labelled(app="server"))
    assert not policies.expendable(plain)
    policies.on_event("ADDED", policy("p", "kill"))
    assert policies.expendable(plain)
    assert not policies.expendable(other)
    own = read_pod(labelled(**{keys.ON_PREEMPT: "pause"}))
    assert not policies.expendable(own), "its own word counts first"
    policies.on_event("ADDED", policy("before", "pause", precedence=1))
    assert not policies.expendable(plain), "one policy governs a pod"
    policies.on_event("DELETED", policy("before", "pause"))
    policies.on_event("MODIFIED", policy("p", "burn"))
    assert not policies.expendable(plain)
    policies.on_event("DELETED", policy("p", "kill"))
    marked = read_pod(labelled(**{keys.ON_PREEMPT: "kill"}))
    assert (policies.expendable(plain), policies.expendable(marked)) == (False, True)


def test_what_a_policy_gives_up_is_deleted_by_the_scheduler(
    policies: Policies, snapshot: Any
) -> None:
    for name in ("a", "b"):
        snapshot.pod_event("ADDED", labelled(name))
    preemption = Preemption(snapshot, FakeCluster(), expendable=policies.expendable)
    item = pod("new", notes={"kyb.ai/require-group": "G0"})
    item["spec"]["priority"] = 10
    new, proposed = read_pod(item), {NodeName("n1"): Victims((PodUid("uid-a"),), 0)}
    assert preemption.veto(new, proposed) == {}
    policies.on_event("ADDED", policy("p", "kill"))
    assert preemption.veto(new, proposed) == proposed
