"""ResourceQuotas of Kubernetes hold for seats and for requests, as a real API server has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import RefusedError
from tests.integration.controller.conftest import NAMESPACE, PODS, REQUESTS, pod, request
from tests.integration.hooks import until
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"


@pytest.fixture
def api(control_plane: Cluster, namespace: str, webhook: object) -> Api:
    return control_plane.api()


@pytest.fixture
def page(control_plane: Cluster, tmp_path: Path) -> Page:
    """docs/how-to/operate/other-controllers.md."""
    reader = Kubectl(control_plane.kubectl_path, tmp_path, control_plane.kubeconfig)
    return Page("other-controllers", reader)


@pytest.fixture
def quota(api: Api, page: Page) -> Iterator[Callable[[str], str]]:
    """That of a line of the page, with room for one more: nobody else reckons here what is used, so
    that is said, too. The answer is what it limits."""
    made: list[str] = []

    def make(name: str) -> str:
        page(f"kubectl -n shop create quota {name}")
        made.append(name)
        (resource, hard), *_ = api.get(f"{QUOTAS}/{name}")["spec"]["hard"].items()
        status = {"hard": {resource: hard}, "used": {resource: str(int(hard) - 1)}}
        api.patch(f"{QUOTAS}/{name}/status", {"status": status})

        def known() -> bool:
            try:
                api.post(PODS, _seat("probe"), {"dryRun": "All"})
            except RefusedError as error:
                return "status unknown" not in str(error)
            return True

        until(known, "admission does not know the quota", 30.0)
        return f"limited: {resource}={hard}"

    yield make
    for one in made:
        api.delete(f"{QUOTAS}/{one}")


def _seat(name: str) -> dict[str, Any]:
    made = pod(name, {keys.seat_resource(1): "1", "memory": "1Gi"})
    made["metadata"]["labels"] = {keys.MANAGED_LABEL: "true"}
    made["metadata"]["annotations"] = {keys.VRAM: "1Gi"}
    made["spec"]["containers"][0]["args"] = ["serve"]
    return made


def _one_more(api: Api, path: str, first: object, second: object) -> str:
    """What is said to the second."""
    api.post(path, first)
    told = ""

    def refused() -> bool:
        nonlocal told
        try:
            # The API server may learn of what was used a moment later.
            api.post(path, second, {"dryRun": "All"})
        except RefusedError as error:
            told = str(error)
        return bool(told)

    until(refused, "the second is let in", 30.0)
    return told


def test_a_quota_holds_for_seats_parked_or_not(api: Api, quota: Callable[[str], str]) -> None:
    limit = quota("seats")
    try:
        told = _one_more(api, PODS, _seat("first"), _seat("second"))
        assert "exceeded quota: seats" in told
        assert limit in told
    finally:
        api.delete(f"{PODS}/first", {"gracePeriodSeconds": 0})


@pytest.mark.usefixtures("door", "seated")
def test_a_quota_holds_for_requests(
    api: Api, quota: Callable[[str], str], seated: Callable[..., str]
) -> None:
    seated()
    limit = quota("requests")
    try:
        told = _one_more(api, REQUESTS, request("first"), request("second"))
        assert "exceeded quota: requests" in told
        assert limit in told
    finally:
        api.delete(f"{REQUESTS}/first")
