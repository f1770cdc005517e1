"""Fields of a CheckpointPolicy that hold seats, each with real pods: how long one stays and waits,
which come into RAM ahead of need, and how many are put away at a time.

docs/concepts/policies.md
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.tiers.test_restores import Site, seats, standing
from tests.kit.clients.models import Models
from tests.kit.pods import PODS, SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.pods import Pods

    Json = dict[str, Any]

__all__ = ["seats"]

pytestmark = pytest.mark.e2e

LABELS = {"app": "governed"}
REQUESTS = f"/apis/{keys.API_VERSION}/namespaces/default/checkpointrequests"
STAYS_S, WAITS_S = 12.0, 16.0
MAX_WAIT_S = 3.0
"""What the agents say of those of whom no policy does."""
IDLE_S = 10.0
"""A caller on a busy machine may be late by less: its pod has traffic all the same."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two nodes with a GPU each."""
    told = {"MAX_WAIT_S": MAX_WAIT_S, "IDLE_AFTER_S": IDLE_S}
    settings = {f"KYB_AGENT_{name}": f"{value:g}" for name, value in told.items()}
    with standing(tmp_path_factory, GpuSpec(count=1), **settings) as found:
        yield found


@pytest.fixture
def models(site: Site) -> Iterator[Models]:
    """A client of the proxy."""
    found = Models(site.cluster.proxy_url)
    yield found
    found.close()


@pytest.fixture
def govern(site: Site, seats: Pods) -> Iterator[Any]:
    """Has the pods with the labels governed by a policy of these fields, and by nothing else."""

    def governed(**fields: object) -> None:
        spec = {"selector": {"matchLabels": LABELS}, **fields}
        made = {"apiVersion": keys.API_VERSION, "kind": "CheckpointPolicy", "spec": spec}
        site.cluster.kubectl("delete", "cpol", "--all")
        text = yaml.safe_dump({**made, "metadata": {"name": "fields"}})
        site.cluster.kubectl("create", "-f", "-", text=text)

    yield governed
    site.cluster.kubectl("delete", "cpol", "--all")


def create(site: Site, seats: Pods, *names: str, priority: str = "", **labels: str) -> None:
    """Pods on one GPU, each a model of its name, once they are ready."""
    for name in names:
        made = SeatPod(name, node="n1", bytes_="1GiB").manifest()
        made["metadata"]["labels"] |= labels
        if priority:
            made["spec"]["priorityClassName"] = priority
        site.cluster.api().post(PODS, made)
    seats.wait([*names], ready, 60, "Ready")


@contextmanager
def called(site: Site, name: str, number: int = 8) -> Iterator[None]:
    """So many clients call a model all the time: there is a moment without a request only where all
    of them are late at once, for their requests take different times."""
    over, answered = threading.Event(), set[int]()

    def call(tokens: int) -> None:
        client = Models(site.cluster.proxy_url)
        while not over.is_set():
            client.ask(name, limit=120, max_tokens=tokens, token_delay=0.05)
            answered.add(tokens)
        client.close()

    threads = [threading.Thread(target=call, args=(one + 2,)) for one in range(number)]
    for one in threads:
        one.start()
    try:
        wait_until(lambda: len(answered) == number, 60, "nobody answers")
        yield
    finally:
        over.set()
        for one in threads:
            one.join(120)


def test_a_busy_pod_keeps_its_gpu_for_its_residency(
    site: Site, seats: Pods, models: Models, govern: Any
) -> None:
    govern(turn={"minResidency": f"{STAYS_S:g}s"})
    create(site, seats, "stays", **LABELS)
    create(site, seats, "other")
    assert models.ask("other").intact
    before = time.monotonic()
    with called(site, "stays"):
        assert models.ask("other", limit=120).intact
        assert time.monotonic() - before >= STAYS_S


def test_a_pod_waits_for_its_time_behind_more_important_ones(
    site: Site, seats: Pods, models: Models, govern: Any
) -> None:
    site.cluster.kubectl("create", "priorityclass", "important", "--value=1000")
    try:
        govern(turn={"maxWait": f"{WAITS_S:g}s"})
        create(site, seats, "waits", **LABELS)
        create(site, seats, "first", priority="important")
        with called(site, "first"):
            answer = models.ask("waits", limit=120)
        assert (answer.intact, answer.seconds >= WAITS_S) == (True, True)
    finally:
        site.cluster.kubectl("delete", "priorityclass", "important")


def test_an_offloaded_pod_comes_into_ram_ahead_of_its_requests(
    site: Site, seats: Pods, govern: Any
) -> None:
    create(site, seats, "rises", **LABELS)
    govern(idle={"vram": "1s", "ram": "1s"}, prefetch="never")
    wait_until(lambda: site.seat("n1", "rises").get("tier") == "nvme", 60, "it is not offloaded")
    govern(prefetch="always")
    wait_until(lambda: site.seat("n1", "rises").get("tier") == "ram", 60, "it does not come up")
    assert site.seat("n1", "rises")["state"].lower() == "parked", "nobody has called for it"


def times(status: Json) -> tuple[str, str]:
    """From when to when it took, to the second: two may begin within one, one after the other."""
    return status["startTime"], status["completionTime"]


def test_pods_of_a_policy_are_put_away_as_many_at_a_time_as_it_lets(
    site: Site, seats: Pods, govern: Any
) -> None:
    names = ("one", "two")
    create(site, seats, *names, **LABELS)
    govern(limits={"parallel": 1})
    for name in names:
        wait_until(lambda name=name: site.seat("n1", name) != {}, 20, "not told of")
    try:
        site.cluster.kubectl(
            "drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data", "--force",
            "--timeout=150s", limit=170,
        )  # fmt: skip
        items = site.cluster.api().get(REQUESTS)["items"]
        assert len(items) == len(names)
        ends = {one["status"]["conditions"][0]["reason"] for one in items}
        assert ends == {"Evicted"}
        ((_, first_ended), (second_began, _)) = sorted(times(one["status"]) for one in items)
        assert second_began >= first_ended
    finally:
        site.cluster.kubectl("uncordon", "n1")
        site.cluster.kubectl("delete", "ckpt", "--all")
