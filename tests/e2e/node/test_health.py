"""A GPU fails and recovers: what the node offers follows, and pods of other GPUs don't notice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.kit.pods import SeatPod, ready
from tests.simgpu import Faults

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

NAMES = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
SICK, WELL = NAMES[0], NAMES[1:]
FELL_OFF_THE_BUS = 79
LIMIT = 60.0


def test_a_gpus_loss_and_recovery(
    cluster: Cluster, pods: Pods, models: Models, figures: list[str]
) -> None:
    for number, name in enumerate(NAMES):
        group = {keys.REQUIRE_GROUP: f"G{number}"}
        pods.create(SeatPod(name, node="n1", annotations=group))
    pods.wait(NAMES, ready, 90, "Ready")
    first = {name: models.ask(name) for name in NAMES}
    before = {name: traces(pods.get(name)) for name in NAMES}
    all_seats = offered(cluster)
    faults = Faults(cluster.simgpu_root("n1"))

    began = time.monotonic()
    faults.lose_gpu(0)
    faults.xid(0, FELL_OFF_THE_BUS)
    wait_until(lambda: offered(cluster) < all_seats, LIMIT, "the seats stay offered", every=0.02)
    down = time.monotonic() - began
    for name in WELL:
        assert models.ask(name).counter == first[name].counter + 1
    lost = all_seats - offered(cluster)

    began = time.monotonic()
    faults.lose_gpu(0, lost=False)
    wait_until(
        lambda: offered(cluster) == all_seats, LIMIT, "the seats don't come back", every=0.02
    )
    up = time.monotonic() - began
    figures.append(
        f"GPU unhealthy: {lost} of {all_seats} seats down {down:.2f} s after the Xid, "
        f"up {up:.2f} s after its recovery"
    )
    for name in WELL:
        answer = models.ask(name)
        assert answer.body["kyb"]["boot"] == first[name].body["kyb"]["boot"]
        assert answer.counter == first[name].counter + 2
        assert traces(pods.get(name)) == before[name]
    pods.wait([SICK], lambda pod: ready(pod) and traces(pod)[0] == 1, 60, "started again")
    assert models.ask(SICK).intact


def offered(cluster: Cluster) -> int:
    """Seats of one GPU that n1 can give, held ones included."""
    node = cluster.api().get("/api/v1/nodes/n1")
    return int(node["status"]["allocatable"].get(keys.seat_resource(1), "0"))


def traces(pod: dict[str, Any]) -> tuple[int, str]:
    """How often its container was started again, and since when it is Ready."""
    (status,) = pod["status"]["containerStatuses"]
    (since,) = (
        one["lastTransitionTime"] for one in pod["status"]["conditions"] if one["type"] == "Ready"
    )
    return status["restartCount"], since
