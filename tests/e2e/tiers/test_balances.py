"""Two models share G01 and are both asked all the time: a policy moves one to G23 by itself, and
no request is lost.

docs/how-to/operate/rebalance-by-load.md
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.tiers.test_drains import APPS, REQUESTS, reader
from tests.e2e.tiers.test_rebalances import RBAL, Caller, place
from tests.e2e.tiers.test_restores import seats, standing
from tests.kit.howto import Page
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.tiers.test_restores import Site
    from tests.kit.clients.kubectl import Kubectl
    from tests.kit.pods import Pods

    Json = dict[str, Any]

__all__ = ["reader", "seats"]

pytestmark = pytest.mark.e2e

PAIRS = {
    "profiles": [
        {"name": "2x", "resource": keys.seat_resource(2), "groupSize": 2, "seatsPerGroup": 3}
    ]
}
MODELS = ("oak", "fir")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two groups of two GPUs a node, and agents that tell every second how busy seats are."""
    with standing(
        tmp_path_factory, GpuSpec(count=4), PAIRS, KYB_AGENT_ACTIVITY_INTERVAL_S="1"
    ) as found:
        yield found


@pytest.fixture
def models(site: Site, seats: Pods) -> Iterator[tuple[str, ...]]:
    """Deployments of one pod each, which prefer group G01 of n1."""
    api = site.cluster.api()
    for name in MODELS:
        note = {keys.PREFER_GROUP: "G01"}
        slow = ("--token-delay=0.2",)
        pod = SeatPod(name, 2, "8Gi", "1GiB", node="n1", annotations=note, arguments=slow)
        made = pod.manifest()
        meta = {**made["metadata"], "labels": {**made["metadata"]["labels"], "app": name}}
        del meta["name"]
        labels = {"matchLabels": {"app": name}}
        template = {"metadata": meta, "spec": made["spec"]}
        spec = {"replicas": 1, "selector": labels, "template": template}
        spec["strategy"] = {"type": "Recreate"}
        api.post(f"{APPS}/deployments", {"metadata": {"name": name}, "spec": spec})
    yield MODELS
    site.cluster.kubectl("delete", "cpol", "--all")
    for name in MODELS:
        api.delete(f"{APPS}/deployments/{name}", {"propagationPolicy": "Background"})
    wait_until(lambda: not seats.all(), 60, "its pods stay")
    for path in (RBAL, REQUESTS):
        for item in api.get(path)["items"]:
            api.delete(f"{path}/{item['metadata']['name']}")


def by_model(seats: Pods) -> dict[str, Json]:
    """The ready pod of each model that has one."""
    every = [one for one in seats.all().values() if ready(one)]
    return {one["metadata"]["labels"]["app"]: one for one in every}


def labelled(seats: Pods) -> bool:
    """Whether both models have a pod with the page's label, and no other pods."""
    found = by_model(seats)
    return set(found) == set(MODELS) == {
        one["metadata"]["labels"]["app"]
        for one in seats.all().values()
        if one["metadata"]["labels"].get("balance") == "by-load"
    } and len(seats.all()) == len(MODELS)


def test_a_model_leaves_a_busy_group_by_itself_and_no_request_is_lost(
    site: Site, seats: Pods, models: tuple[str, ...], reader: Kubectl
) -> None:
    page, api = Page("rebalance-by-load", reader), site.cluster.api()
    wait_until(lambda: set(by_model(seats)) == set(models), 120, "they don't serve")
    for name in models:
        page("kubectl -n shop patch", deployment=name)
    wait_until(lambda: labelled(seats), 120, "they don't serve with their label")
    before = by_model(seats)
    assert {place(one) for one in before.values()} == {("n1", "G01")}
    # The averages of a quarter of an hour are low after half a minute.
    page.changed("checkpointpolicy-balance", rebalance={"above": 2, "every": "1h"})
    with page, ExitStack() as calls:
        callers = [calls.enter_context(Caller(site, name)) for name in models]
        page("kubectl -n shop apply")
        wait_until(lambda: bool(api.get(RBAL)["items"]), 180, "no move is asked for")
        # An event is written once: one whose controller is killed before it does is never told.
        wait_until(
            lambda: "moves to group G23" in page("kubectl -n shop get events"), 30, "nobody says so"
        )
        site.cluster.process("controller").kill9()
        wait_until(lambda: moved(site), 240, "it is not moved")
        (asked,) = api.get(RBAL)["items"]
        assert "balance-" in page("kubectl -n shop get rbal")
        since = [len(one.answers) for one in callers]
        wait_until(
            lambda: all(
                len(one.answers) > then + 3 for one, then in zip(callers, since, strict=True)
            ),
            90,
            "somebody gets no answers any more",
        )
        told = page("kubectl -n shop get cpol")
        assert "no GPU of its pods is busier" in told or "less than" in told, told
    assert asked["spec"].get("approvedPlan", "") == ""
    assert asked["spec"]["requestedBy"] == keys.CONTROLLER_USER
    after = by_model(seats)
    (gone,) = [name for name in models if place(after[name]) == ("n1", "G23")]
    (stayed,) = [name for name in models if name != gone]
    assert after[stayed]["metadata"]["uid"] == before[stayed]["metadata"]["uid"]
    assert after[gone]["metadata"]["annotations"][keys.PREFER_GROUP] == "G01"
    for one in callers:
        one.lost_nothing()
    assert len(api.get(RBAL)["items"]) == 1, "one move is its budget"


def moved(site: Site) -> bool:
    """Whether the one RebalanceRequest has ended well."""
    found = [one.get("status", {}) for one in site.cluster.api().get(RBAL)["items"]]
    reasons = [one["conditions"][0]["reason"] for one in found if one.get("conditions")]
    assert not {*reasons} & {"StepFailed", "Displaced", "NoPlan"}, found
    return reasons == ["Moved"]
