"""Which Shares the API server lets in, from whom, and what their statuses say of all nodes."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.api.events import stamp
from kybernate.errors import NotFoundError, RefusedError
from tests.integration.controller.conftest import LIMIT_S
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.kit.servers.agentdoor import Door
    from tests.kit.servers.controllerserver import Controller

pytestmark = pytest.mark.integration

DAY = 86_400.0


def share(name: str = "team", **spec: Any) -> dict[str, Any]:
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.SHARE_KIND}
    return {**kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def api(control_plane: Cluster) -> Iterator[Api]:
    """The administrator; the Share `team` is gone afterwards."""
    found = control_plane.api()
    yield found
    with contextlib.suppress(NotFoundError):
        found.delete(f"{keys.SHARES_PATH}/team")


@pytest.fixture
def rogue(api: Api) -> Iterator[str]:
    """The path of the GPUNode of a node that is an attacker's."""
    path = f"{keys.GPU_NODES_PATH}/rogue"
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND}
    api.post(keys.GPU_NODES_PATH, {**kind, "metadata": {"name": "rogue"}})
    yield path
    api.delete(path)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (share(weight=0), "greater than or equal to 1"),
        (share(weight=100_001), "less than or equal to 100000"),
        (share(window="a day"), "should match"),
        (share(window="59s"), "between 1m and 744h"),
        (share(window="745h"), "between 1m and 744h"),
        (share(quota={}), "name a quota"),
        (share(quota={"gpuSeconds": -1}), "greater than or equal to 0"),
        (share("a.b", weight=7), "has the name of its namespace"),
    ],
)
def test_what_can_not_be_is_refused_in_words(api: Api, body: dict[str, Any], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        api.post(keys.SHARES_PATH, body)


def test_it_is_an_administrators(
    api: Api, control_plane: Cluster, users: Callable[[str, list[dict[str, Any]]], Api]
) -> None:
    made = api.post(keys.SHARES_PATH, share())
    assert made["spec"] == {"weight": 100, "window": "24h"}
    for who in (users("shares-ann", []), control_plane.api("agent")):
        with pytest.raises(RefusedError):
            who.patch(f"{keys.SHARES_PATH}/team", {"spec": {"weight": 900}})
        with pytest.raises(RefusedError):
            who.patch(f"{keys.SHARES_PATH}/team/status", {"status": {"used": {}}})
    assert control_plane.api("agent").get(keys.SHARES_PATH)["items"]


def test_what_nodes_have_counted_is_added_up_whoever_is_killed(
    api: Api,
    control_plane: Cluster,
    door: Door,
    controllers: Callable[..., Controller],
) -> None:
    api.post(keys.SHARES_PATH, share(quota={"gpuSeconds": 100}))
    begins = time.time() // DAY * DAY
    agent = control_plane.api("agent")

    def told(seconds: float, since: float = begins) -> None:
        used = {"since": stamp(since), "gpuSeconds": seconds, "wakes": 3}
        rows = [{"namespace": "team", "used": used}]
        path = f"{keys.GPU_NODES_PATH}/n1/status"
        agent.patch(path, {"status": {"usage": rows}})

    def state() -> tuple[str, str, float]:
        status = api.get(f"{keys.SHARES_PATH}/team").get("status", {})
        (condition,) = status.get("conditions") or [{"status": "", "reason": ""}]
        used = status.get("used", {})
        return condition["status"], condition["reason"], used.get("gpuSeconds", -1)

    first = controllers().start()
    until(lambda: state() == ("True", "NoSeats", 0), LIMIT_S)
    told(40)
    until(lambda: state() == ("True", "WithinQuota", 40), LIMIT_S)
    first.kill()
    told(101)
    controllers().start()
    until(lambda: state() == ("False", "GpuSecondsUsedUp", 101), LIMIT_S)
    # What was used yesterday is over.
    told(500, begins - DAY)
    until(lambda: state() == ("True", "NoSeats", 0), LIMIT_S)


def test_a_rogue_node_takes_nothing_from_what_others_have_counted(
    api: Api,
    control_plane: Cluster,
    door: Door,
    controllers: Callable[..., Controller],
    rogue: str,
) -> None:
    api.post(keys.SHARES_PATH, share(quota={"gpuSeconds": 100, "parkedGiBPerNode": 1}))
    begins = stamp(time.time() // DAY * DAY)
    agent = control_plane.api("agent")

    def told(node: str, *uses: dict[str, Any]) -> None:
        rows = [{"namespace": "team", "used": {"since": begins, **one}} for one in uses]
        agent.patch(f"{node}/status", {"status": {"usage": rows}})

    def used() -> tuple[str, float]:
        status = api.get(f"{keys.SHARES_PATH}/team").get("status", {})
        (condition,) = status.get("conditions") or [{"reason": ""}]
        return condition["reason"], status.get("used", {}).get("gpuSeconds", -1)

    controllers().start()
    told(f"{keys.GPU_NODES_PATH}/n1", {"gpuSeconds": 60, "wakes": 3})
    until(lambda: used() == ("WithinQuota", 60), LIMIT_S)
    # Less than nothing, or more than once, would count against what n1 has told.
    for field in ("gpuSeconds", "parkedGiBHours", "wakes", "parkedBytes"):
        with pytest.raises(RefusedError, match="greater than or equal to 0"):
            told(rogue, {field: -60})
    with pytest.raises(RefusedError, match="Duplicate value"):
        told(rogue, {"gpuSeconds": 30}, {"gpuSeconds": 30})
    # Too much: the namespace comes last, and the status says so.
    told(rogue, {"gpuSeconds": 1e300, "parkedBytes": 2**62})
    until(lambda: used()[0] == "GpuSecondsUsedUp", LIMIT_S)
    # Too little hides what was used of the rogue itself, and what it had told before.
    told(rogue)
    until(lambda: used() == ("WithinQuota", 60), LIMIT_S)
