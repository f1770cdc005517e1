"""Every manifest of config/samples, applied to a real API server as a user would."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kybernate import keys
from kybernate.errors import ConflictError
from tests.integration.webhook.conftest import create

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("webhook")]

FOLDER = Path(__file__).parents[3] / "config" / "samples"


def objects(file: Path) -> list[dict[str, Any]]:
    """Those of a manifest; none of a YAML file that is no manifest."""
    found = [one for one in yaml.safe_load_all(file.read_text()) if one]
    return [one for one in found if isinstance(one, dict) and "apiVersion" in one]


SAMPLES = sorted(file for file in FOLDER.glob("*.yaml") if objects(file))


@pytest.mark.parametrize("file", SAMPLES, ids=[file.stem for file in SAMPLES])
def test_a_sample_is_applied(control_plane: Cluster, namespace: str, file: Path) -> None:
    found = objects(file)
    for one in found:
        made = {"metadata": {"name": one["metadata"].get("namespace", namespace)}}
        with contextlib.suppress(ConflictError):
            control_plane.api().post("/api/v1/namespaces", made)
    elsewhere = any("namespace" in one["metadata"] for one in found)
    where = [] if elsewhere else ["-n", namespace]
    said = control_plane.kubectl("apply", *where, "-f", str(file))
    assert said.count("created") == len(found)
    for one in found:
        _admitted(control_plane, namespace, one)


def _admitted(cluster: Cluster, namespace: str, sample: dict[str, Any]) -> None:
    """What the webhook makes of its pod, if it has one: no controller runs here that would make the
    pods of a Deployment. Of all others the API server has said what there is to say."""
    if sample["kind"] == "Deployment":
        pod = sample["spec"]["template"]
    elif sample["kind"] == "Pod":
        pod = sample
    else:
        return
    name = f"of-{sample['metadata']['name']}"
    made = create(
        cluster.api(),
        namespace,
        {**pod, "metadata": {**pod["metadata"], "name": name}},
        dryRun="All",
    )
    (container,) = made["spec"]["containers"]
    (seat,) = [one for one in container["resources"]["limits"] if keys.seat_resource_size(one)]
    assert container["command"][0] == keys.KYB_INIT_PATH
    assert seat in container["resources"]["requests"]
