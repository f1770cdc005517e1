"""Seats as CheckpointPolicies have them, by the clock, and as Shares divide them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import yaml

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.e2e.seats.test_seats import running_container, states
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

SHIFT_S = 30
WHERE = {keys.REQUIRE_GROUP: "G0"}
COUNTER = {"args": ["-m", "tests.workloads.counter", "--interval", "0.2"], "ports": []}
"""Nobody calls it, so it has no port on which it would have to serve first."""


@pytest.fixture
def reader(cluster: Cluster, tmp_path: Path) -> Kubectl:
    """kubectl of somebody who follows a page."""
    return Kubectl(cluster.kubectl_path, tmp_path, cluster.kubeconfig)


@pytest.fixture
def kept(cluster: Cluster) -> Iterator[None]:
    """No policy is left."""
    yield
    cluster.kubectl("delete", "checkpointpolicies", "--all")


def next_minute() -> datetime:
    """The beginning of a minute, with time to prepare for it."""
    now = datetime.now(UTC)
    return now.replace(second=0, microsecond=0) + timedelta(minutes=1 if now.second < 35 else 2)


def shifted(page: Page, begin: datetime) -> None:
    """The page's sample, with a day of half a minute from then on."""
    (day,) = page.sample("checkpointpolicy")["spec"]["schedule"]
    cron = f"{begin.minute} {begin.hour} {begin.day} {begin.month} *"
    day |= {"cron": cron, "timeZone": "UTC", "duration": f"{SHIFT_S}s", "idle": {"vram": "2s"}}
    page.changed("checkpointpolicy", schedule=[day])


@pytest.mark.usefixtures("kept")
def test_training_leaves_its_gpu_by_day_and_goes_on_at_its_step(
    cluster: Cluster, pods: Pods, models: Models, reader: Kubectl
) -> None:
    """As docs/how-to/workloads/share-by-the-clock.md has it, with a day of half a minute."""
    pods.create(SeatPod("server", node="n1", annotations=WHERE))
    pods.wait(["server"], ready, 60, "Ready")
    pods.create(SeatPod("training", node="n1", annotations=WHERE, more=COUNTER))
    page = Page("share-by-the-clock", reader)
    page("kubectl -n shop label pod")

    pods.wait(["training"], running_container, 60, "running")

    def state(pod: str = "training") -> str:
        return states(cluster, "n1").get(pod, "")

    def steps() -> list[int]:
        found = re.findall(r"^counter=(\d+)", pods.log("training"), re.MULTILINE)
        return [int(step) for step in found]

    wait_until(lambda: len(steps()) > 2, 60, "it does not train")
    begin = next_minute()
    shifted(page, begin)
    page("kubectl -n shop apply")
    # At night it wants its GPU whenever nobody else is asked.
    assert models.ask("server").intact
    wait_until(lambda: state() == "active", 30, "it does not come back by itself at night")
    assert time.time() < begin.timestamp(), "this machine is too slow for a night of half a minute"

    time.sleep(begin.timestamp() - time.time())
    wait_until(lambda: state() == "parked", 15, "it does not leave its GPU by day")
    assert models.ask("server").intact
    stood = steps()
    with page:
        assert "Governs" in page("kubectl -n shop get cpol")
        (row,) = (one for one in page("kubectl kyb seats").splitlines() if "training" in one)
        assert "parked" in row
    time.sleep(2)
    assert state() == "parked"
    assert steps() == stood
    assert time.time() < begin.timestamp() + SHIFT_S, "this machine is too slow for such a day"

    time.sleep(begin.timestamp() + SHIFT_S - time.time())
    wait_until(lambda: state() == "active", 20, "it does not come back in the evening")
    wait_until(lambda: len(steps()) > len(stood) + 2, 20, "it does not train on")
    assert steps() == list(range(1, len(steps()) + 1)), "no step is lost, and none done twice"


TEAMS = ("default", "research")
"""Two namespaces that train on one GPU."""
MEASURED_S = 40.0


@pytest.fixture
def teams(cluster: Cluster) -> Iterator[None]:
    """Two namespaces, whose Shares go with their pods."""
    cluster.kubectl("create", "namespace", "research")
    account = "/api/v1/namespaces/research/serviceaccounts"
    wait_until(lambda: bool(cluster.api().get(account)["items"]), 30, "no account for its pods")
    yield
    cluster.kubectl("delete", "shares", "--all")
    cluster.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "-n", "research")


@pytest.mark.usefixtures("teams")
def test_two_teams_have_a_gpu_as_their_shares_say(
    cluster: Cluster, pods: Pods, reader: Kubectl
) -> None:
    """As docs/how-to/operate/share-between-teams.md has it; of the other team a Share tells what it
    has used, and weighs what none does."""
    page = Page("share-between-teams", reader)
    other = {**page.sample("share"), "metadata": {"name": "default"}, "spec": {"weight": 100}}
    cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(other))
    page("kubectl apply -f config/samples/share.yaml")
    trains = SeatPod("team", node="n1", annotations={**WHERE, keys.TURN: "always"}, more=COUNTER)
    for team in TEAMS:
        cluster.api().post(f"/api/v1/namespaces/{team}/pods", trains.manifest())

    def used() -> dict[str, float]:
        items = cluster.api().get(keys.SHARES_PATH)["items"]
        told = {one["metadata"]["name"]: one.get("status", {}).get("used", {}) for one in items}
        return {team: float(told[team].get("gpuSeconds", 0)) for team in TEAMS}

    wait_until(lambda: min(used().values()) > 1, 90, "one of them never has the GPU")
    before = used()
    most = MEASURED_S + 90
    wait_until(lambda: sum(used().values()) - sum(before.values()) > MEASURED_S, most, "idle")
    after = used()
    had = {team: after[team] - before[team] for team in TEAMS}
    # Turns last some seconds, and use is told every 15 s.
    assert had["research"] / sum(had.values()) == pytest.approx(0.75, abs=0.12)
    with page:
        assert "research" in page("kubectl get shares")
        assert " 300 " in page("kubectl get share research")
        assert "research" not in page("kubectl -n research get events")
        page("kubectl patch share research")
        spec = cluster.api().get(f"{keys.SHARES_PATH}/research")["spec"]
        assert spec["weight"] == 600
        page("kubectl delete share research")
        page("kubectl create clusterrolebinding divides-gpus")
        cluster.kubectl("delete", "clusterrolebinding", "divides-gpus")
