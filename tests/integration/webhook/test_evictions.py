"""Evictions at a real API server: held back, asked for by an object, and let go in the end."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
import requests

from kybernate import keys
from kybernate.errors import ConflictError, KybernateError, NotFoundError
from tests.integration.hooks import until
from tests.integration.webhook.conftest import (
    GPU_NODE,
    NAMESPACE,
    STATUS,
    create,
    pods_path,
    seat_pod,
)
from tests.integration.webhook.test_admission import VRAM
from tests.unit.webhook.reviews import eviction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.hooks import Webhook

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:Unverified HTTPS"),
]

NODE = "evictednode"
REQUESTS = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/checkpointrequests"


class Site:
    """A pod that has its seat on a node with an object store, as its GPUNode says."""

    def __init__(self, cluster: Cluster, uid: str) -> None:
        self.api, self.uid = cluster.api(), uid
        self.hook = f"https://127.0.0.1:{cluster.ports.webhook}"
        self._agent, self._controller = cluster.api("agent"), cluster.api("controller")

    def tell(self, **seat: Any) -> None:
        """What its agent writes of the seat."""
        row = {"name": "G0-seat-1", "group": "G0", "namespace": NAMESPACE, "pod": "leaves"}
        tiers = [{"name": "ram"}, {"name": "object"}]
        status = {**STATUS, "tiers": tiers, "seats": [{"uid": self.uid, **row, **seat}]}
        self._agent.patch(f"{keys.GPU_NODES_PATH}/{NODE}/status", {"status": status})

    def evict(self, *, dry_run: bool = False) -> str:
        """Empty if it is let go, else what is answered."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction"}
        meta = {"namespace": NAMESPACE, "name": "leaves"}
        path = f"{pods_path(NAMESPACE, 'leaves')}/eviction"
        try:
            params = {"dryRun": "All"} if dry_run else {}
            self.api.post(path, {**body, "metadata": meta}, params)
        except KybernateError as error:
            return str(error)
        return ""

    def requests(self) -> list[dict[str, Any]]:
        """Those for its pod: a sample of ours may be there, too."""
        found: list[dict[str, Any]] = self.api.get(REQUESTS)["items"]
        return [one for one in found if one["spec"]["pod"] == "leaves"]

    def end(self, name: str, reason: str, **more: object) -> None:
        """What the controller writes of a request that has ended."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {
            "type": "Complete",
            "status": "True" if more else "False",
            "reason": reason,
            "message": "so it is",
            "lastTransitionTime": stamp,
        }
        status = {"podUID": self.uid, "completionTime": stamp, "conditions": [condition], **more}
        self._controller.patch(f"{REQUESTS}/{name}/status", {"status": status})


@pytest.fixture
def site(control_plane: Cluster, namespace: str, webhook: Webhook) -> Iterator[Site]:
    api = control_plane.api()
    control_plane.api("agent").post(keys.GPU_NODES_PATH, {**GPU_NODE, "metadata": {"name": NODE}})
    made = create(api, NAMESPACE, seat_pod("leaves", annotations=VRAM))
    found = Site(control_plane, made["metadata"]["uid"])
    yield found
    api.delete(f"{keys.GPU_NODES_PATH}/{NODE}")
    for request in found.requests():
        api.delete(f"{REQUESTS}/{request['metadata']['name']}")
    with contextlib.suppress(NotFoundError):
        api.delete(pods_path(NAMESPACE, "leaves"), {"gracePeriodSeconds": 0})


def known(site: Site, text: str) -> None:
    """Once the webhook has heard of it: what it doesn't know goes at once."""
    body = eviction("leaves", NAMESPACE, dryRun=True)

    def told() -> bool:
        answer = requests.post(f"{site.hook}/evict", json=body, verify=False, timeout=10)  # noqa: S501
        return text in str(answer.json()["response"].get("warnings"))

    until(told, "it would be let go")


def asked(site: Site) -> dict[str, Any]:
    """The request that was made for its eviction, once it is."""
    known(site, "object store")
    assert "once its state is in the object store" in site.evict()
    until(lambda: bool(site.requests()), "nothing is asked for")
    (request,) = site.requests()
    return request


def test_a_pod_is_held_back_until_its_state_is_in_the_object_store(site: Site) -> None:
    site.tell(state="active")
    request, name = asked(site), f"evict-{site.uid}-1"
    assert request["metadata"]["name"] == name
    spec = request["spec"]
    assert (spec["pod"], spec["mode"], spec["tier"]) == ("leaves", "Evict", "object")
    assert spec["requestedBy"] == "system:serviceaccount:kyb-system:kyb-webhook"
    known(site, f"{name} is new")
    assert f"{name} is new" in site.evict()
    assert len(site.requests()) == 1
    site.tell(state="parked", tier="object", savedBytes=7)
    site.end(name, "Cancelled")
    until(lambda: site.evict() == "", "it is held back still")


def test_a_pod_whose_state_is_there_already_goes_once_a_request_names_its_successors_maker(
    site: Site,
) -> None:
    site.tell(state="parked", tier="object", savedBytes=7)
    name = asked(site)["metadata"]["name"]
    site.end(name, "Evicted", owner="job", artifact={"tier": "object", "bytes": 7})
    until(lambda: site.evict() == "", "it is held back still")
    assert [one["metadata"]["name"] for one in site.requests()] == [name]


def test_a_dry_run_leaves_nothing_behind(site: Site) -> None:
    site.tell(state="active")
    known(site, "object store")
    assert site.evict(dry_run=True) == ""
    time.sleep(1.0)
    assert site.requests() == []


def test_what_can_not_be_saved_is_let_go(site: Site) -> None:
    site.tell(state="active")
    site.end(asked(site)["metadata"]["name"], "Refused")
    until(lambda: site.evict() == "", "it is held back still")


def test_while_something_is_done_to_it_nobody_evicts_it(site: Site) -> None:
    site.tell(state="parked", tier="object", savedBytes=7, operation="move")
    known(site, "move is under way")
    assert "move is under way" in site.evict()
    assert site.requests() == []


def test_the_webhook_makes_no_other_requests(site: Site, control_plane: Cluster) -> None:
    hook = control_plane.api("webhook")
    spec = {"pod": "leaves", "mode": "Evict", "tier": "object"}
    body = {"apiVersion": keys.API_VERSION, "kind": keys.CHECKPOINT_REQUEST_KIND}
    for name, wrong in (
        ("other", {}),
        ("evict-a", {"mode": "Park"}),
        ("evict-a", {"mode": "Snapshot"}),
        ("evict-a", {"tier": "nvme"}),
    ):
        with pytest.raises(KybernateError, match="may not ask for mode"):
            hook.post(REQUESTS, {**body, "metadata": {"name": name}, "spec": {**spec, **wrong}})
    with contextlib.suppress(ConflictError):
        hook.post(REQUESTS, {**body, "metadata": {"name": "evict-a"}, "spec": spec})
    assert [one["metadata"]["name"] for one in site.requests()] == ["evict-a"]


def test_who_may_not_evict_makes_nothing_of_it(site: Site, control_plane: Cluster) -> None:
    """The API server asks for the right before any webhook."""
    site.tell(state="active")
    api: Api = control_plane.api("webhook")
    body = {"apiVersion": "policy/v1", "kind": "Eviction"}
    with pytest.raises(KybernateError, match="cannot create resource"):
        api.post(
            f"{pods_path(NAMESPACE, 'leaves')}/eviction",
            {**body, "metadata": {"namespace": NAMESPACE, "name": "leaves"}},
        )
    assert site.requests() == []
