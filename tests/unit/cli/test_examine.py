"""What `kubectl kyb doctor` asks an API server for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kybernate.cli.cluster.examine import gather
from kybernate.errors import RefusedError

CRDS = sorted(Path(__file__).parents[3].glob("config/crd/*.yaml"))
PLURALS = {
    found["spec"]["names"]["plural"]
    for file in CRDS
    if (found := yaml.safe_load(file.read_text())).get("kind") == "CustomResourceDefinition"
}


class Api:
    """An API server that serves these objects of ours, and shows nothing else."""

    def __init__(self, served):
        self.served = served

    def get(self, path, *_, **__):
        if path == "/apis/kyb.ai/v1alpha1":
            return {"resources": [{"name": name} for name in self.served]}
        raise RefusedError(f"GET {path}: you may not")


def test_no_object_of_ours_is_missing_where_all_are_served():
    assert len(PLURALS) > 8
    assert gather(Api(PLURALS)).missing_kinds == ()


@pytest.mark.parametrize("plural", sorted(PLURALS))
def test_each_object_of_ours_is_missed(plural):
    assert gather(Api(PLURALS - {plural})).missing_kinds == (plural,)
