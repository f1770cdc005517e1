"""Our dashboards of a whole cluster with a registry and an object store, on which also goes wrong
what can go wrong: no panel is empty, and what they show is so."""

from __future__ import annotations

import math
import sys
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
import requests

from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.types import Tier
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import AGENT_PROBE_PORT, PLUGIN_PROBE_PORT
from tests.e2e.node.test_guard import HOLD, holding
from tests.e2e.tiers.test_restores import Site, seats, site
from tests.kit.clients.kubectl import Kubectl
from tests.kit.clients.models import Models
from tests.kit.pods import SeatPod, ready
from tests.kit.servers import prometheus
from tests.kit.servers.prometheus import PANELS, meant
from tests.simgpu import Fault, Faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.pods import Pods
    from tests.kit.servers.prometheus import Prometheus

__all__ = ["seats", "site"]
"""Fixtures, the same as of restores: two nodes, an object store, a registry."""

pytestmark = pytest.mark.e2e

FILLED_S = 180.0
TRUE_S = 30.0
GIB = 1 << 30

FAILURES = "nodes: Failures A"
OF_SCRAPES = {"__name__", "instance", "job", "pod"}

Shown = dict[tuple[str, ...], float]
"""What a panel shows: the values of its labels, in the order of their names, with the figure."""


def scraped(site: Site) -> dict[str, dict[str, str]]:
    """What config/monitoring/scrape.yaml finds on a cluster whose services are pods."""
    ports, cluster = site.cluster.ports, site.cluster
    found = {
        f"127.0.0.1:{port}": {"pod": name, "node": ""}
        for name, port in {
            "kyb-extender": ports.extender_probe,
            "kyb-webhook": ports.webhook_probe,
            "kyb-controller": ports.controller,
            "kyb-proxy": ports.proxy,
        }.items()
    }
    found[site.registry_probe.removeprefix("http://")] = {"pod": "kyb-registry", "node": ""}
    for node in cluster.nodes:
        for name, port in {"agent": AGENT_PROBE_PORT, "plugin": PLUGIN_PROBE_PORT}.items():
            found[f"{node.ip}:{port}"] = {"pod": f"kyb-{name}-{node.name}", "node": node.name}
    return found


@pytest.fixture
def kubectl(site: Site, tmp_path: Path) -> Kubectl:
    return Kubectl(site.cluster.kubectl_path, tmp_path, site.cluster.kubeconfig)


@pytest.fixture
def models(site: Site) -> Iterator[Models]:
    client = Models(site.cluster.proxy_url)
    yield client
    client.close()


@pytest.fixture
def misfortunes(site: Site, seats: Pods) -> Iterator[None]:
    """What no cluster should have: a seat that takes more than it declares and so can't be parked,
    another that waits for it, with a request; a pod for which there is no place; and a process that
    uses a GPU without a seat."""
    seats.create(SeatPod("liar", node="n1", vram="1Gi", annotations={keys.REQUIRE_GROUP: "G1"}))
    seats.wait(["liar"], ready, 90, "Ready")
    seats.create(SeatPod("other", node="n1", annotations={keys.REQUIRE_GROUP: "G1"}))
    seats.create(SeatPod("late", node="n9"))
    entry = ("nsenter", "-m", "-p", "-t", str(site.cluster.node("n2").pid), "--")
    command = (*entry, sys.executable, "-c", HOLD, str(GIB))
    with holding(*command, LD_LIBRARY_PATH="/run/simgpu/lib", PYTHONPATH=str(REPOSITORY)):
        yield


class Waiting:
    """A request for a model that can't be served, asked again when it was refused."""

    def __init__(self, site: Site, model: str) -> None:
        self._site, self._model = site, model
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        client = Models(self._site.cluster.proxy_url)
        while not self._over.is_set():
            with suppress(requests.RequestException):  # the proxy ends before it does
                client.ask(self._model)
            self._over.wait(0.5)


def figures(server: Prometheus, name: str) -> Shown:
    """What a panel shows now; what is no number it doesn't show."""
    found = {}
    for one in server.ask(meant(PANELS[name])):
        told = sorted(one["metric"].keys() - OF_SCRAPES)
        found[tuple(one["metric"][label] for label in told)] = float(one["value"][1])
    return {labels: value for labels, value in found.items() if math.isfinite(value)}


def truth(site: Site) -> dict[str, Shown]:
    """What panels are to show, by what the API server and the registry say."""
    rows = {
        (node.name, one["pod"]): one
        for node in site.cluster.nodes
        for one in site.cluster.api().get(f"{keys.GPU_NODES_PATH}/{node.name}")["status"]["seats"]
    }
    awake = sum(one["state"] == "active" for one in rows.values())
    parked = rows["n1", "one"]
    assert (parked["state"], parked["tier"]) == ("parked", "object")
    page = site.registry.page(wire.Filter(namespace="default", place=Tier.OBJECT))
    whole = [copy for one in page.items for copy in one.copies if copy.place is Tier.OBJECT]
    assert all(copy.state is wire.CopyState.VERIFIED for copy in whole)
    gpus = site.cluster.api().get(f"{keys.GPU_NODES_PATH}/n2")["status"]["gpus"]
    (foreign,) = (one["uuid"] for one in gpus if one["index"] == 0)
    return {
        "cluster: GPU nodes A": {(): 2},
        "cluster: Seats awake A": {(): awake},
        "cluster: Seats parked A": {(): 1},
        "cluster: Pods that wait A": {(): 1},
        "cluster: Requests that wait A": {("default/other",): 1},
        "control-plane: Controllers that act A": {(): 1},
        "control-plane: Watches interrupted A": {(): 0},
        "control-plane: Copies of artifacts A": {("object", "verified"): len(whole)},
        "nodes: GPUs that are well A": {("n1",): 2, ("n2",): 2},
        "nodes: GPU memory of processes without a seat A": {(foreign, "n2"): GIB},
        "nodes: Parked bytes by tier A": {("n1", "object"): parked["savedBytes"]},
    }


@pytest.mark.slow
def test_each_panel_shows_what_is_so(
    site: Site,
    seats: Pods,
    misfortunes: None,
    kubectl: Kubectl,
    models: Models,
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        where = {keys.REQUIRE_GROUP: "G0"}
        seats.create(SeatPod(name, node="n1", bytes_="1GiB", annotations=where))
    made = seats.wait(["one", "two"], ready, 60, "Ready")
    faults, uid = Faults(site.cluster.simgpu_root("n1")), made["one"]["metadata"]["uid"]
    with ExitStack() as stack:
        stack.enter_context(Waiting(site, "other"))
        server = stack.enter_context(prometheus.server(tmp_path, scraped(site)))
        empty, failed, until = set(PANELS), 0.0, time.monotonic() + FILLED_S
        while empty or not failed:
            assert time.monotonic() < until, sorted(empty)
            for name in ("one", "two"):
                assert models.ask(name).status == 200
            faults.inject(Fault.CHECKPOINT_FAILS, pod=uid, times=1)
            kubectl("kyb", "park", "one", "--tier", "object")
            # The scheduler and the API server ask extender and webhook about it.
            seats.delete(["guest"], grace=0)
            seats.gone(["guest"], 60)
            seats.create(SeatPod("guest", node="n2", bytes_="1GiB"))
            empty -= {name for name in empty if figures(server, name)}
            # An increase is seen from the second failure on.
            failed = figures(server, FAILURES).get(("CUDA_ERROR_OPERATING_SYSTEM", "park"), 0.0)
        wait_until(lambda: site.seat("n1", "one").get("tier") == "object", 60, "it isn't parked")
        assert server.ask("up == 0") == []
        told: dict[str, Shown] = {}

        def so() -> bool:
            wanted = truth(site)
            told.update({name: figures(server, name) for name in wanted})
            return all(is_.items() <= told[name].items() for name, is_ in wanted.items())

        wait_until(so, TRUE_S, lambda: f"{told}\nis shown, and is\n{truth(site)}")
