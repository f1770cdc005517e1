"""What wraps the namespaces' keys is the registry's alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from images.chart import documents
from kybernate.settings.registry import RegistrySettings

CONFIG = Path(__file__).parents[3] / "config"
SECRET = "kyb-wrap-keys"
ALL = [
    (path, one)
    for path in sorted(CONFIG.rglob("*.yaml"))
    for one in documents(path)
    if isinstance(one, dict)
]


def test_the_registrys_deployments_alone_mount_it() -> None:
    named = {path.parent.parent.name for path, one in ALL if SECRET in str(one)}
    assert named == {"registry"}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_it_lies_where_the_registry_looks(kind: str) -> None:
    (found,) = [
        one
        for path, one in ALL
        if path.parent == CONFIG / "registry" / kind and one.get("kind") == "Deployment"
    ]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    secrets = {one.get("secret", {}).get("secretName"): one["name"] for one in spec["volumes"]}
    (container,) = spec["containers"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert (
        Path(mounts[secrets[SECRET]]["mountPath"]) == RegistrySettings.model_validate({}).wrap_keys
    )
    assert mounts[secrets[SECRET]]["readOnly"]


def test_no_account_of_ours_reads_secrets() -> None:
    """So that what isn't mounted isn't had by asking for it either."""
    for path, one in ALL:
        for rule in one.get("rules") or () if one.get("kind") in ("ClusterRole", "Role") else ():
            if {"secrets", "*"} & set(rule.get("resources", ())):
                named = set(rule.get("resourceNames", ()))
                assert named, (path, rule)
                assert SECRET not in named, (path, rule)
