"""ResourceQuotas of Kubernetes hold for seats and for requests, as a real API server has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import RefusedError
from tests.integration.controller.conftest import NAMESPACE, PODS, REQUESTS, pod, request
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
SEATS = f"requests.{keys.seat_resource(1)}"
ASKED = f"count/checkpointrequests.{keys.GROUP}"


@pytest.fixture
def api(control_plane: Cluster, namespace: str, webhook: object) -> Api:
    return control_plane.api()


@pytest.fixture
def quota(api: Api) -> Iterator[Callable[[str], None]]:
    """One of the resource; nobody else reckons here what is used, so that is said, too."""

    def make(resource: str) -> None:
        hard = {resource: "1"}
        api.post(QUOTAS, {"metadata": {"name": "one"}, "spec": {"hard": hard}})
        api.patch(f"{QUOTAS}/one/status", {"status": {"hard": hard, "used": {resource: "0"}}})

        def known() -> bool:
            try:
                api.post(PODS, _seat("probe"), {"dryRun": "All"})
            except RefusedError as error:
                return "status unknown" not in str(error)
            return True

        until(known, "admission does not know the quota", 30.0)

    yield make
    api.delete(f"{QUOTAS}/one")


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


def test_a_quota_holds_for_seats_parked_or_not(api: Api, quota: Callable[[str], None]) -> None:
    quota(SEATS)
    try:
        told = _one_more(api, PODS, _seat("first"), _seat("second"))
        assert "exceeded quota: one" in told
        assert f"limited: {SEATS}=1" in told
    finally:
        api.delete(f"{PODS}/first", {"gracePeriodSeconds": 0})


@pytest.mark.usefixtures("door", "seated")
def test_a_quota_holds_for_requests(
    api: Api, quota: Callable[[str], None], seated: Callable[..., str]
) -> None:
    seated()
    quota(ASKED)
    try:
        told = _one_more(api, REQUESTS, request("first"), request("second"))
        assert "exceeded quota: one" in told
    finally:
        api.delete(f"{REQUESTS}/first")
