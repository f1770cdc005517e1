"""Who may name an artifact in a pod, or in the template of what makes pods."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.core.artifacts.listed import object_name
from kybernate.errors import NotFoundError, RefusedError
from tests.integration.controller.conftest import NAMESPACE, NODE, PODS
from tests.integration.controller.conftest import pod as plain_pod
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

    Json = dict[str, Any]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("namespace", "webhook")]

ARTIFACT = f"{NAMESPACE}/a@20260131T120000Z-00c0ffee"
OLDER = f"{NAMESPACE}/a@20260130T120000Z-00c0ffee"
SOURCES = (ARTIFACT, "pod/5e1f0a00-aaaa-bbbb-cccc-0123456789ab", "template/birch")
SELECTED = {"matchLabels": {"app": "x"}}
KINDS = {
    "": ["pods", "pods/status", "pods/binding", "replicationcontrollers"],
    "apps": ["controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"],
    "batch": ["cronjobs", "jobs"],
}
MAKES = [
    {"apiGroups": [group], "resources": kinds, "verbs": ["create", "delete", "get", "patch"]}
    for group, kinds in KINDS.items()
]
RESTORE = {"apiGroups": [keys.GROUP], "resources": ["artifacts"], "verbs": ["restore"]}
SAYS = "may not restore it: that takes the verb restore on artifacts.kyb.ai in namespace requests"


def seat_pod(name: str = "x", **notes: str) -> Json:
    found = plain_pod(name, {keys.seat_resource(1): "1", "memory": "1Gi"})
    found["spec"]["containers"][0]["args"] = ["serve"]
    labels = {keys.MANAGED_LABEL: "true", "app": "x"}
    found["metadata"] |= {"labels": labels, "annotations": {keys.VRAM: "1Gi", **notes}}
    return found


def workloads(**notes: str) -> dict[str, tuple[str, Json]]:
    """What makes pods, by the field that has their annotations: where it is made, and it."""
    pod = seat_pod(**notes)
    del pod["metadata"]["name"]
    once = {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}}
    spec = {"selector": SELECTED, "template": pod}
    apps, batch = (f"/apis/{group}/v1/namespaces/{NAMESPACE}" for group in ("apps", "batch"))
    core = f"/api/v1/namespaces/{NAMESPACE}"
    found = {
        f"{core}/replicationcontrollers": {"spec": {"template": pod}},
        f"{apps}/daemonsets": {"spec": spec},
        f"{apps}/deployments": {"spec": spec},
        f"{apps}/replicasets": {"spec": spec},
        f"{apps}/statefulsets": {"spec": {**spec, "serviceName": "x"}},
        f"{apps}/controllerrevisions": {"revision": 1, "data": {"spec": {"template": pod}}},
        f"{batch}/jobs": {"spec": {"template": once}},
        f"{batch}/cronjobs": {
            "spec": {"schedule": "@daily", "jobTemplate": {"spec": {"template": once}}}
        },
    }
    where = {"cronjobs": "spec.jobTemplate.", "controllerrevisions": "data."}
    return {
        path: (f"{where.get(path.rpartition('/')[2], '')}spec.template.metadata.annotations", one)
        for path, one in found.items()
    }


@pytest.fixture
def api(control_plane: Cluster) -> Iterator[Api]:
    """The administrator; nothing that a test made is left."""
    found = control_plane.api()
    yield found
    for where in (*workloads(), PODS):
        for item in found.get(where)["items"]:
            with contextlib.suppress(NotFoundError):
                found.delete(f"{where}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})


def refused(act: Callable[[], object]) -> str:
    """What is said against it, empty if it is done."""
    try:
        act()
    except RefusedError as error:
        return str(error)
    return ""


def tries(user: Api, body: Json, path: str = PODS) -> str:
    named = {**body, "metadata": {**body.get("metadata", {}), "name": "x"}}
    return refused(lambda: user.post(path, named, {"dryRun": "All"}))


def annotate(user: Api, path: str, note: str, **more: Any) -> str:
    change = {"metadata": {"annotations": {keys.RESTORE_FROM: note, **more}}}
    return refused(lambda: user.patch(path, change))


def test_a_pod_names_no_artifact_that_its_maker_may_not_restore(
    api: Api, users: Callable[[str, list[Json]], Api]
) -> None:
    user, both = users("pod-maker", MAKES), users("pod-restorer", [*MAKES, RESTORE])
    until(lambda: not tries(user, seat_pod()), "no right yet")
    for source in SOURCES:
        body = seat_pod(**{keys.RESTORE_FROM: source, keys.RESTORE_AS: "template"})
        said = tries(user, body)
        assert SAYS in said
        assert f"metadata.annotations has {keys.RESTORE_FROM}: {source}, and system:service" in said
        until(lambda body=body: not tries(both, body), "no right yet")
        assert not tries(api, body)


def test_the_right_to_one_artifact_is_to_it_alone(
    users: Callable[[str, list[Json]], Api], api: Api
) -> None:
    one = {**RESTORE, "resourceNames": [object_name(ARTIFACT)]}
    user = users("of-one-artifact", [*MAKES, one])
    named = seat_pod(**{keys.RESTORE_FROM: ARTIFACT})
    until(lambda: not tries(user, named), "no right yet")
    for other in (OLDER, *SOURCES[1:]):
        body = seat_pod(**{keys.RESTORE_FROM: other, keys.RESTORE_AS: "template"})
        assert SAYS in tries(user, body)
        assert not tries(api, body)


def test_another_namespaces_artifact_is_left_to_its_grants(
    users: Callable[[str, list[Json]], Api],
) -> None:
    user = users("of-nothing", MAKES)
    until(lambda: not tries(user, seat_pod()), "no right yet")
    foreign = seat_pod(
        **{keys.RESTORE_FROM: ARTIFACT.replace(NAMESPACE, "other"), keys.RESTORE_AS: "template"}
    )
    assert "an ArtifactGrant there must let requests restore a" in tries(user, foreign)


def test_an_artifact_is_not_written_into_a_pod_later_either(
    control_plane: Cluster, api: Api, users: Callable[[str, list[Json]], Api]
) -> None:
    user, both = users("pod-changer", MAKES), users("pod-changer-2", [*MAKES, RESTORE])
    api.post(PODS, seat_pod())
    one = f"{PODS}/x"
    until(lambda: not refused(lambda: user.get(one)), "no right yet")
    bound = {"metadata": {"name": "x", "annotations": {keys.RESTORE_FROM: ARTIFACT}}}
    bound["target"] = {"kind": "Node", "name": NODE}
    for said in (
        annotate(user, one, ARTIFACT),
        annotate(user, f"{one}/status", ARTIFACT),
        refused(lambda: user.post(f"{one}/binding", bound)),
    ):
        assert SAYS in said
    until(lambda: not annotate(both, one, ARTIFACT), "no right yet")
    # What was written by somebody with the right stays as it is.
    assert SAYS in annotate(user, one, ARTIFACT, **{keys.RESTORE_AS: "clone"})
    assert SAYS in annotate(user, one, OLDER)
    user.patch(one, {"metadata": {"labels": {"other": "x"}, "annotations": {"other": "x"}}})
    user.patch(one, {"metadata": {"annotations": {keys.RESTORE_FROM: None}}})
    # The extender says of whom a pod is the successor.
    control_plane.api("extender").post(f"{one}/binding", bound)
    assert api.get(one)["metadata"]["annotations"][keys.RESTORE_FROM] == ARTIFACT


def test_no_template_names_an_artifact_that_its_writer_may_not_restore(
    api: Api, users: Callable[[str, list[Json]], Api]
) -> None:
    user, both = users("owner", MAKES), users("owner-2", [*MAKES, RESTORE])
    notes = {keys.RESTORE_FROM: ARTIFACT, keys.RESTORE_AS: "template"}
    until(lambda: not tries(user, seat_pod()), "no right yet")
    until(lambda: not tries(both, seat_pod(**notes)), "no right yet")
    for path, (field, body) in workloads(**notes).items():
        said = tries(user, body, path)
        assert SAYS in said
        assert said.count(f"{field} has {keys.RESTORE_FROM}: {ARTIFACT}") == 1
        assert not tries(both, body, path), path
        assert not tries(user, workloads()[path][1], path), path


def test_what_has_one_already_is_changed_by_who_may_change_it(
    api: Api, users: Callable[[str, list[Json]], Api]
) -> None:
    user = users("scaler", MAKES)
    notes = {keys.RESTORE_FROM: ARTIFACT, keys.RESTORE_AS: "template"}
    path = next(one for one in workloads() if one.endswith("deployments"))
    api.post(path, {**workloads(**notes)[path][1], "metadata": {"name": "x"}})
    one = f"{path}/x"
    until(lambda: not refused(lambda: user.patch(one, {"spec": {"replicas": 2}})), "no right yet")
    pods = {"spec": {"template": {"metadata": {"annotations": {keys.RESTORE_FROM: OLDER}}}}}
    assert SAYS in refused(lambda: user.patch(one, pods))
    pods["spec"]["template"]["metadata"]["annotations"] = {keys.RESTORE_AS: "clone"}
    assert SAYS in refused(lambda: user.patch(one, pods))
    pods["spec"]["template"]["metadata"]["annotations"] = {"other": "x"}
    user.patch(one, pods)
