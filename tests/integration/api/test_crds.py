"""What the API server makes of the CRDs that are generated: it keeps what agents say, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from kybernate import keys
from kybernate.api.gpunodes import GroupRow, LinkRow, Status, read_status
from kybernate.errors import RefusedError
from tests.unit.api.gpunodes import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

NODE = f"{keys.GPU_NODES_PATH}/crds"
GRANTS = f"/apis/{keys.API_VERSION}/namespaces/default/artifactgrants"


@pytest.fixture(scope="module")
def api(control_plane: Cluster) -> Iterator[Api]:
    api = control_plane.api()
    body = {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND}
    api.post(keys.GPU_NODES_PATH, {**body, "metadata": {"name": "crds"}})
    try:
        yield api
    finally:
        api.delete(NODE)


def keep(api: Api, status: dict[str, Any]) -> dict[str, Any]:
    """The status as the API server keeps it."""
    api.patch(f"{NODE}/status", {"status": None})
    found = api.patch(f"{NODE}/status", {"status": orjson.loads(orjson.dumps(status))})
    kept: dict[str, Any] = found["status"]
    return kept


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STATUSES)
def test_what_an_agent_says_is_kept_whole(api: Api, status: Status) -> None:
    _, again = read_status({"status": keep(api, status.dump())})
    assert again == status


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status(links=(LinkRow("a", "a", "nvlink"),)), "two different GPUs"),
        (
            Status(groups=(GroupRow("G0", "kyb.ai/gpu-2x-seat", ("a",), 1, 1),)),
            "for the n GPUs of the group",
        ),
        (Status(device_strategy="magic"), "Unsupported value"),
        (Status(groups=(GroupRow("G 0", "kyb.ai/gpu-1x-seat", ("a",), 1, 1),)), "should match"),
    ],
)
def test_what_no_agent_says_is_refused(api: Api, status: Status, text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        keep(api, status.dump())


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"to": ["b"], "artifacts": ["*"]}, "until"),
        ({"to": ["B"], "artifacts": ["*"], "until": "never"}, "lower-case letters"),
        ({"to": ["b"], "artifacts": ["*", "x"], "until": "never"}, "alone for all"),
        ({"to": ["b"], "artifacts": ["x"], "until": "soon"}, "until"),
        ({"to": [], "artifacts": ["x"], "until": "never"}, "at least 1 items"),
    ],
)
def test_a_grant_of_another_form_is_refused(api: Api, spec: dict[str, Any], text: str) -> None:
    grant = {"apiVersion": keys.API_VERSION, "kind": keys.ARTIFACT_GRANT_KIND}
    with pytest.raises(RefusedError, match=text):
        api.post(GRANTS, {**grant, "metadata": {"name": "g"}, "spec": spec})
