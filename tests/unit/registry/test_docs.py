"""docs/reference/registry.md leaves nothing out that is counted, and config/ installs what it
says."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from kybernate.settings.registry import RegistrySettings
from registry import metrics
from registry.commands import COMMANDS

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "registry.md").read_text()


def test_every_metric_is_listed_with_its_labels() -> None:
    ours = {id(one) for one in vars(metrics).values()}
    listed = 0
    for collector, names in REGISTRY._collector_to_names.items():
        if id(collector) in ours and collector is not metrics.COPIES:
            counts = collector._type == "counter"
            name = f"{collector._name}_total" if counts else min(names, key=len)
            assert f"`{name}`" in TEXT, name
            assert all(f"`{label}`" in TEXT for label in collector._labelnames), name
            listed += 1
    assert listed == 6
    (family,) = metrics.COPIES.collect()
    assert f"`{family.name}`" in TEXT


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_told_of(name: str) -> None:
    assert f" {name}" in TEXT


def test_the_limits_are_those_of_the_settings() -> None:
    settings = RegistrySettings.model_validate({})
    assert f"limited to {settings.max_body_bytes >> 10} KiB" in TEXT
    assert f"port {settings.listen.rpartition(':')[2]}" in TEXT
    assert f"own, {settings.probe_listen.rpartition(':')[2]}" in TEXT
