"""Seats as CheckpointPolicies have them, by the clock."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import yaml

from kybernate import keys
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.e2e.seats.test_seats import running_container, states
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

SAMPLE = REPOSITORY / "config" / "samples" / "checkpointpolicy.yaml"
SHIFT_S = 30
WHERE = {keys.REQUIRE_GROUP: "G0"}
COUNTER = {"args": ["-m", "tests.workloads.counter", "--interval", "0.2"], "ports": []}
"""Nobody calls it, so it has no port on which it would have to serve first."""


@pytest.fixture
def kept(cluster: Cluster) -> Iterator[None]:
    """No policy is left."""
    yield
    cluster.kubectl("delete", "checkpointpolicies", "--all")


def next_minute() -> datetime:
    """The beginning of a minute, with time to prepare for it."""
    now = datetime.now(UTC)
    return now.replace(second=0, microsecond=0) + timedelta(minutes=1 if now.second < 35 else 2)


def shifted(begin: datetime) -> str:
    """The sample, with a day of half a minute from then on."""
    found = yaml.safe_load(SAMPLE.read_text())
    (day,) = found["spec"]["schedule"]
    cron = f"{begin.minute} {begin.hour} {begin.day} {begin.month} *"
    day |= {"cron": cron, "timeZone": "UTC", "duration": f"{SHIFT_S}s", "idle": {"vram": "2s"}}
    return yaml.safe_dump(found)


@pytest.mark.usefixtures("kept")
def test_training_leaves_its_gpu_by_day_and_goes_on_at_its_step(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    """As docs/how-to/workloads/share-by-the-clock.md has it, with a day of half a minute."""
    pods.create(SeatPod("server", node="n1", annotations=WHERE))
    pods.wait(["server"], ready, 60, "Ready")
    pods.create(SeatPod("training", node="n1", annotations=WHERE, more=COUNTER))
    cluster.kubectl("label", "pod", "training", "workload=training")

    pods.wait(["training"], running_container, 60, "running")

    def state(pod: str = "training") -> str:
        return states(cluster, "n1").get(pod, "")

    def steps() -> list[int]:
        found = re.findall(r"^counter=(\d+)", pods.log("training"), re.MULTILINE)
        return [int(step) for step in found]

    wait_until(lambda: len(steps()) > 2, 60, "it does not train")
    begin = next_minute()
    cluster.kubectl("apply", "-f", "-", text=shifted(begin))
    # At night it wants its GPU whenever nobody else is asked.
    assert models.ask("server").intact
    wait_until(lambda: state() == "active", 30, "it does not come back by itself at night")
    assert time.time() < begin.timestamp(), "this machine is too slow for a night of half a minute"

    time.sleep(begin.timestamp() - time.time())
    wait_until(lambda: state() == "parked", 15, "it does not leave its GPU by day")
    assert models.ask("server").intact
    stood = steps()
    time.sleep(4)
    assert state() == "parked"
    assert steps() == stood
    assert time.time() < begin.timestamp() + SHIFT_S, "this machine is too slow for such a day"

    time.sleep(begin.timestamp() + SHIFT_S - time.time())
    wait_until(lambda: state() == "active", 20, "it does not come back in the evening")
    wait_until(lambda: len(steps()) > len(stood) + 2, 20, "it does not train on")
    assert steps() == list(range(1, len(steps()) + 1)), "no step is lost, and none done twice"
