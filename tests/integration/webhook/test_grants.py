"""ArtifactGrants: which ones the API server takes, and what the webhook lets in by them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError, RefusedError
from tests.integration.hooks import until
from tests.integration.webhook.conftest import NAMESPACE, create, pods_path, seat_pod
from tests.integration.webhook.test_admission import VRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster
    from tests.integration.hooks import Webhook

pytestmark = pytest.mark.integration

OWNER = "granting"
SAVED = f"{OWNER}/llama-0@20260131T120000Z-00c0ffee"
COPY = {**VRAM, keys.RESTORE_FROM: SAVED, keys.RESTORE_AS: "template"}


WHOLE = {"to": ["team-b"], "artifacts": ["*"], "until": "never"}


def grant(**spec: object) -> dict[str, Any]:
    """For all of the namespace, unless `spec` says otherwise."""
    return exactly({**WHOLE, **spec})


def exactly(spec: dict[str, object]) -> dict[str, Any]:
    meta = {"apiVersion": keys.API_VERSION, "kind": keys.ARTIFACT_GRANT_KIND}
    return {**meta, "metadata": {"name": "g"}, "spec": spec}


@pytest.fixture
def path(control_plane: Cluster) -> Iterator[str]:
    """Where ArtifactGrants of the saved states' namespace are."""
    api = control_plane.api()
    with contextlib.suppress(ConflictError):
        api.post("/api/v1/namespaces", {"metadata": {"name": OWNER}})
    path = keys.ARTIFACT_GRANTS_PATH.replace("artifactgrants", f"namespaces/{OWNER}/artifactgrants")
    yield path
    for found in api.get(path)["items"]:
        api.delete(f"{path}/{found['metadata']['name']}")


@pytest.mark.parametrize(
    "spec",
    [
        WHOLE,
        {"to": ["team-b", "0"], "artifacts": ["llama-0", "a.b-c.d"], "until": "never"},
        {"to": ["x" * 63], "artifacts": ["x" * 253], "until": "2028-01-01T00:00:00.5+02:00"},
    ],
    ids=["all", "artifacts", "until"],
)
def test_what_is_right_is_taken(control_plane: Cluster, path: str, spec: dict[str, Any]) -> None:
    made = control_plane.api().post(path, exactly(spec))
    assert made["spec"] == spec


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"to": []}, "spec.to"),
        ({"to": "team-b"}, "spec.to"),
        ({"to": ["*"]}, "name namespaces, such as team-b"),
        ({"to": ["Team-B"]}, "name namespaces, such as team-b"),
        ({"to": ["team-b-"]}, "name namespaces, such as team-b"),
        ({"to": ["team-b\n"]}, "name namespaces, such as team-b"),
        ({"to": ["x" * 64]}, "may not be"),
        ({"to": ["team-b", "team-b"]}, "Duplicate"),
        ({"to": ["team-b", OWNER]}, f"spec.to names {OWNER}, where the ArtifactGrant lies itself"),
        ({"artifacts": []}, "spec.artifacts"),
        ({"artifacts": [SAVED]}, "name pods, such as llama-0"),
        ({"artifacts": ["*", "llama-0"]}, '"\\*" alone for all'),
        ({"artifacts": ["llama-*"]}, "name pods, such as llama-0"),
        ({"artifacts": ["x" * 254]}, "may not be"),
        ({"until": "tomorrow"}, "date-time"),
        ({"until": "2028-01-01T00:00:00"}, "date-time"),
        ({"until": ""}, "date-time"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_its_field(
    control_plane: Cluster, path: str, spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(RefusedError, match=says):
        control_plane.api().post(path, grant(**spec))


@pytest.mark.parametrize("field", list(WHOLE))
@pytest.mark.parametrize("instead", ["", "s"], ids=["missing", "misspelled"])
def test_what_is_missing_or_misspelled_grants_nothing(
    control_plane: Cluster, path: str, field: str, instead: str
) -> None:
    spec = {name: value for name, value in WHOLE.items() if name != field}
    # kubectl asks the API server to refuse what it doesn't know; others let it be dropped.
    wrong = {**spec, **({field + instead: WHOLE[field]} if instead else {})}
    with pytest.raises(RefusedError, match=rf"spec\.{field}: Required"):
        control_plane.api().post(path, exactly(wrong))


def test_a_field_that_is_taken_out_later_is_refused(control_plane: Cluster, path: str) -> None:
    api = control_plane.api()
    api.post(path, grant(artifacts=["llama-0"], until="2028-01-01T00:00:00Z"))
    for field in ("artifacts", "until"):
        with pytest.raises(RefusedError, match=rf"spec\.{field}: Required"):
            api.patch(f"{path}/g", {"spec": {field: None}})


def test_one_without_a_spec_or_with_its_own_namespace_put_in_later_is_refused(
    control_plane: Cluster, path: str
) -> None:
    api, empty = control_plane.api(), grant()
    del empty["spec"]
    with pytest.raises(RefusedError, match="spec: Required"):
        api.post(path, empty)
    api.post(path, grant(to=["team-b"]))
    with pytest.raises(RefusedError, match="where the ArtifactGrant lies itself"):
        api.patch(f"{path}/g", {"spec": {"to": [OWNER]}})


def test_whose_accounts_read_them_write_none(control_plane: Cluster, path: str) -> None:
    control_plane.api().post(path, grant(to=["team-b"]))
    for account in ("agent", "webhook"):
        api = control_plane.api(account)
        assert [found["metadata"]["name"] for found in api.get(path)["items"]] == ["g"]
        with pytest.raises(RefusedError, match="forbidden"):
            api.patch(f"{path}/g", {"spec": {"to": ["team-c"]}})
    with pytest.raises(RefusedError, match="forbidden"):
        control_plane.api("proxy").get(path)


def test_a_copy_of_anothers_state_needs_a_grant(
    control_plane: Cluster, namespace: str, webhook: Webhook, path: str
) -> None:
    api, wanted = control_plane.api(), seat_pod("of-another", annotations=COPY)
    refused = f"belongs to namespace {OWNER}; an ArtifactGrant there must let {NAMESPACE} restore"

    def admitted() -> bool:
        try:
            create(api, namespace, wanted, dryRun="All")
        except RefusedError as error:
            assert refused in str(error)  # noqa: PT017 - any number of times, till it is heard of
            return False
        return True

    assert not admitted()
    api.post(path, grant(to=["team-c"]))
    api.patch(f"{path}/g", {"spec": {"artifacts": ["llama-0"], "to": [NAMESPACE]}})
    until(admitted, "the grant isn't heard of")
    create(api, namespace, wanted)
    api.delete(pods_path(namespace, "of-another"), {"gracePeriodSeconds": 0})
    api.delete(f"{path}/g")
    until(lambda: not admitted(), "that it was taken back isn't heard of")
    assert "Traceback" not in webhook.log()
