"""A node that is cut off and runs on: its pod continues elsewhere once somebody has said that the
node is off, and what clients see is of one copy at most, also when the node is back.

docs/how-to/operate/when-a-node-fails.md, docs/concepts/requests.md
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

import click
import pytest
import requests

from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.cli.agent.link import connected
from kybernate.errors import KybernateError
from kybernate.gen import agent_pb2 as pb
from kybernate.types import Tier
from tests.cluster.processes.control import wait_until
from tests.e2e.tiers.partition import Partition, processes, workload
from tests.e2e.tiers.test_drains import REQUESTS, TAINT, bound, deployment, standing_of, the_pod
from tests.e2e.tiers.test_restores import Site, reader, seats, site
from tests.kit.clients.models import Models
from tests.kit.pods import PORT, Pods, ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.clients.kubectl import Kubectl

__all__ = ["deployment", "reader", "seats", "site"]
"""Fixtures, the same as of restores and drains: a Deployment's pod on one of two nodes."""

pytestmark = pytest.mark.e2e

FAR = 1000
"""How often the old copy is asked, beyond what any client could: so its answers are told apart."""
COUNT = """
import http.client, json, sys
link = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
for _ in range(int(sys.argv[2])):
    link.request("POST", "/v1/chat/completions", b'{"max_tokens": 1}')
    told = json.load(link.getresponse())["kyb"]
print(told["counter"])
"""


class Client:
    """Asks for the model all the time, by way of the proxy; `counters` are of all answers, in their
    order."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.counters: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def is_answered(self) -> None:
        """Return once one more answer has come."""
        had = len(self.counters)
        wait_until(lambda: len(self.counters) > had, 60, "no client is answered")

    def _run(self) -> None:
        while not self._over.wait(0.25):
            one = Models(self._site.cluster.proxy_url)
            with suppress(requests.RequestException, KeyError, ValueError):
                self.counters.append(one.ask("toy", limit=10).counter)
            one.close()


def asked_inside(uid: str, times: int = 1) -> int:
    """What the last of so many answers counts to somebody beside the pod, on its node."""
    pids = processes(uid)
    assert pids, "nothing of it runs"
    words = ["nsenter", "-n", "-t", str(pids[0]), "--", sys.executable, "-c", COUNT]
    done = subprocess.run(
        [*words, str(PORT), str(times)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout, done.stderr
    return int(done.stdout)


def saving(site: Site, node: str, pod: str) -> subprocess.Popen[str]:
    """Somebody on the node has its agent keep a snapshot in the object store."""
    socket = f"/proc/{site.cluster.node(node).pid}/root{keys.AGENT_SOCKET}"
    words = [sys.executable, "-m", "kybernate.cli", "agent", "--socket", socket]
    words += ["save", pod, "--tier", "object", "--json"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def states(site: Site, uid: str) -> list[str]:
    """The artifacts of a pod that the registry knows."""
    return [
        one.id for one in site.registry.page(wire.Filter(namespace="default", pod_uid=uid)).items
    ]


def is_kept(site: Site, artifact: str) -> bool:
    """Whether the registry knows that people keep it in the object store."""
    return site.registry.get(artifact).facts.get(wire.PERSON_HOLD) == Tier.OBJECT


def removed(site: Site, node: str, uid: str) -> None:
    """A person lets the snapshot of this pod go, whose request has made it, at the node's agent."""
    asked = site.cluster.api().get(REQUESTS)["items"]
    (made,) = [
        one["status"]["operation"]
        for one in asked
        if one["spec"]["mode"] == "Snapshot" and one["status"].get("podUID") == uid
    ]
    socket = f"/proc/{site.cluster.node(node).pid}/root{keys.AGENT_SOCKET}"

    def done() -> bool:
        # The agent has just been started again.
        with suppress(click.ClickException), connected(socket) as agent:
            return bool(agent.DropSnapshot(pb.DropSnapshotRequest(name=made), timeout=5).artifact)
        return False

    wait_until(done, 60, "its agent doesn't know of it")


def missed(site: Site, way: Partition, name: str, other: str) -> str:
    """The node is, and its pod is deleted, as Kubernetes does after 5 minutes. The name of the pod
    in its place, which waits by then."""
    wait_until(lambda: not way.is_ready(), 90, "nobody misses the node")
    site.cluster.kubectl("delete", "pod", name, "--wait=false")
    second = bound(Pods(site.cluster.api()), other)
    wait_until(lambda: bool(site.sentence(second, "RestoreWaits")), 60, "it doesn't wait")
    return second


@contextmanager
def declared_off(site: Site, node: str) -> Iterator[None]:
    """Somebody says that the node is off, which it isn't."""
    site.cluster.kubectl("taint", "node", node, f"{TAINT}=nodeshutdown:NoExecute")
    try:
        yield
    finally:
        with suppress(KybernateError):
            site.cluster.kubectl("taint", "node", node, f"{TAINT}-")


def back(site: Site, way: Partition, node: str, uid: str) -> None:
    """All gets through again. What ends the old copy is its agent: the kubelet hears of nothing
    until then."""
    kubelet = site.cluster.node(node).kubelet
    kubelet.signal(signal.SIGSTOP)
    way.heal()
    began = time.monotonic()
    wait_until(lambda: not workload(uid), 150, "the old copy runs on")
    print(f"the old copy ended {time.monotonic() - began:.1f} s after the node was back")
    kubelet.signal(signal.SIGCONT)


def test_a_pod_whose_node_is_cut_off_continues_elsewhere_and_is_never_two(
    site: Site, seats: Pods, deployment: str, reader: Kubectl, tmp_path: Path
) -> None:
    """The object store stays within the node's reach, which is worse than if that were cut, too:
    what its agent saves meanwhile counts for nothing."""
    first = the_pod(seats)
    name, uid = (first["metadata"][key] for key in ("name", "uid"))
    node = first["spec"]["nodeName"]
    (other,) = {"n1", "n2"} - {node}
    with Partition(site, node, tmp_path) as way, Client(site) as client:
        client.is_answered()
        done = reader("kyb", "snapshot", name)
        assert not done.returncode, (done.stdout, done.stderr)
        artifact = site.saved(uid)
        wait_until(lambda: is_kept(site, artifact), 20, "the registry isn't told that it is kept")
        client.is_answered()
        way.cut()
        before = asked_inside(uid)
        second = missed(site, way, name, other)
        assert asked_inside(uid) > before, "it runs on"
        assert not ready(seats.get(second)), "nothing proves that the other has stopped"
        of_one = len(client.counters)

        with declared_off(site, node):
            successor = the_pod(seats, but=uid)["metadata"]["uid"]
            client.is_answered()
            assert asked_inside(uid, FAR) > FAR, "it still does"
            save = saving(site, node, name)
            client.is_answered()
            back(site, way, node, uid)
            print("a save of the old copy:", *save.communicate(timeout=60))
            client.is_answered()
            seats.gone([name], 120)
            wait_until(lambda: site.seat(node, name) == {}, 60, "it is still told of")
        client.is_answered()
    assert not workload(uid)
    # Its kubelet removes the pod's sandbox once the pod is gone.
    wait_until(lambda: not processes(uid), 60, "something of it is left")
    one_by_one(client.counters[:of_one])
    one_by_one(client.counters[of_one:])
    assert standing_of(site, f"{REQUESTS}/lost-{uid}") == "Evicted"
    # A person has had it made, and its successor's node needs it no more.
    wait_until(lambda: not site.registry.pod("default", uid).artifact, 60, "it is claimed still")
    assert site.registry.pod("default", uid).successor == successor
    assert states(site, uid) == [artifact], "it has written nothing that counts"
    removed(site, node, uid)
    wait_until(lambda: not states(site, uid), 60, "what nobody keeps any more is still known")


def one_by_one(counters: list[int]) -> None:
    """The answers are of one copy, and none of one that has been asked by others."""
    assert counters == sorted({*counters})
    assert counters[-1] < FAR


def test_while_nobody_says_that_the_node_is_off_the_other_waits_until_it_is_back(
    site: Site, seats: Pods, deployment: str, reader: Kubectl, tmp_path: Path
) -> None:
    """The proof is its own agent's word then."""
    first = the_pod(seats)
    name, uid = (first["metadata"][key] for key in ("name", "uid"))
    node = first["spec"]["nodeName"]
    (other,) = {"n1", "n2"} - {node}
    with Partition(site, node, tmp_path) as way, Client(site) as client:
        client.is_answered()
        done = reader("kyb", "snapshot", name)
        assert not done.returncode, (done.stdout, done.stderr)
        client.is_answered()
        way.cut()
        second = missed(site, way, name, other)
        assert workload(uid), "it runs on"
        assert not ready(seats.get(second))
        way.heal()
        # The old copy answers requests that have waited for it, until its agent ends it.
        wait_until(lambda: not workload(uid), 150, "the old copy runs on")
        of_one = len(client.counters)
        successor = the_pod(seats, but=uid)
        assert not workload(uid), "both run"
        assert successor["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{uid}"
        client.is_answered()
        client.is_answered()
    one_by_one(client.counters[:of_one])
    one_by_one(client.counters[of_one:])
    assert client.counters[of_one] > 2, "it has begun again"
    known = site.registry.pod("default", uid)
    assert (known.stopped, known.successor) == ("agent", successor["metadata"]["uid"])
