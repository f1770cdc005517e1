"""What the API server makes of the CRDs that are generated: it keeps what agents say, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from kybernate import keys
from kybernate.api.crds import CRDS
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


MADE_ON = {"product": "H200", "driver": "580.1"}
POD: dict[str, Any] = {"spec": {"containers": []}}
SELECTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpunode": ({}, {"driver": {"version": "580.1"}, "agent": {"version": "0.2.0"}}),
    "artifact": ({}, {"artifact": "a/b@1", "pod": "b", "model": "llama,7b"}),
    "artifactgrant": ({"to": ["b"], "artifacts": ["*"], "until": "never"}, {}),
    "checkpointpolicy": ({"selector": {}, "turn": {"mode": "always"}}, {}),
    "checkpointrequest": ({"pod": "b", "mode": "Park"}, {}),
    "rebalancerequest": ({"move": {"pod": "b", "to": {"group": "G1"}}}, {}),
    "restorerequest": (
        {"source": {"artifact": "b"}, "as": "clone"},
        {"observedGeneration": 1, "pod": "c", "node": "n1"},
    ),
    "snapshottemplate": (
        {"template": POD},
        {"artifact": {"name": "a/b@1", "request": "r", "madeOn": MADE_ON}},
    ),
    "tierplacement": (
        {"selector": {}, "copies": {"object": 1}, "pinnedUntil": "2028-01-01T00:00:00Z"},
        {},
    ),
    "share": ({"weight": 200, "quota": {"gpuSeconds": 60}}, {}),
}
"""An object of each kind, by its fields: spec and status."""


@pytest.mark.parametrize("kind", CRDS)
@pytest.mark.usefixtures("webhook")
def test_objects_of_each_kind_are_found_by_the_fields_to_select_by(
    control_plane: Cluster, kind: str
) -> None:
    crd, (spec, status) = CRDS[kind], SELECTED[kind]
    api = control_plane.api()
    # What only the controller may write.
    ours = api if kind == "gpunode" else control_plane.api("controller")
    within = "/namespaces/default" if crd.scope == "Namespaced" else ""
    path = f"/apis/{keys.API_VERSION}{within}/{crd.resource}"
    told = {"status": status} if status else {}
    body = {"apiVersion": keys.API_VERSION, "kind": crd.kind, "metadata": {"name": "found"}}
    made = body | ({"spec": spec} if spec else {}) | told
    (ours if kind == "artifact" else api).post(path, made)
    try:
        if status and crd.has_status:
            ours.patch(f"{path}/found/status", told)
        for field in crd.select:
            value = said({"spec": spec, **told}, field)
            wanted = value.replace(",", "\\,").replace("=", "\\=")
            for selector in (f"{field[1:]}={wanted}", f"{field[1:]}!={wanted}x"):
                found = [one["metadata"]["name"] for one in selected(api, path, selector)]
                assert "found" in found, selector
            assert selected(api, path, f"{field[1:]}={wanted}x") == []
        assert crd.select
    finally:
        api.delete(f"{path}/found")


def selected(api: Api, path: str, selector: str) -> list[dict[str, Any]]:
    """The objects that a field selector finds."""
    found: list[dict[str, Any]] = api.get(path, {"fieldSelector": selector})["items"]
    return found


def said(item: Any, field: str) -> str:
    """What an object says in a field, as a selector writes it; nothing where it is absent."""
    for name in field[1:].split("."):
        item = item.get(name, {})
    return "" if item == {} else str(item)
