"""The component that lets seats leave RAM: in step with the image, the settings and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from images.recipes import CRIU, KYB_ENTER, RECIPES
from kybernate.settings.agent import AgentSettings

REPOSITORY = Path(__file__).parents[3]
CONFIG = REPOSITORY / "config"
RIGHTS = (REPOSITORY / "docs" / "reference" / "rights.md").read_text()
OFFLOAD = (REPOSITORY / "docs" / "how-to/install/offload.md").read_text()


def pod(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["spec"]["template"]["spec"]
    return found


@pytest.fixture
def patch() -> dict[str, Any]:
    return pod(CONFIG / "below-ram" / "agent.yaml")


@pytest.fixture
def container(patch: dict[str, Any]) -> dict[str, Any]:
    (found,) = patch["containers"]
    return dict(found)


def test_it_takes_no_right_away(container: dict[str, Any]) -> None:
    (before,) = pod(CONFIG / "nodeagent" / "daemonset.yaml")["containers"]
    rights = container["securityContext"]["capabilities"]
    assert set(before["securityContext"]["capabilities"]["add"]) < set(rights["add"])
    assert rights["drop"] == ["ALL"]
    assert len(rights["add"]) == len(set(rights["add"]))


def test_what_is_recreated_inherits_no_restriction_of_the_agents(container: dict[str, Any]) -> None:
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"]
    assert security["seccompProfile"] == {"type": "Unconfined"}


def test_every_right_is_told_on_its_page(patch: dict[str, Any], container: dict[str, Any]) -> None:
    for capability in container["securityContext"]["capabilities"]["add"]:
        assert f"`{capability}`" in RIGHTS
    for volume in patch["volumes"]:
        if "hostPath" in volume:
            assert f"`{volume['hostPath']['path']}`" in RIGHTS
        else:
            assert f"`{volume['secret']['secretName']}`" in RIGHTS
    for source in container["envFrom"]:
        ((_, reference),) = source.items()
        assert f"`{reference['name']}`" in RIGHTS
        assert reference["optional"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_registry_has_the_object_stores_credentials(kind: str) -> None:
    (registry,) = pod(CONFIG / "registry" / kind / "deployment.yaml")["containers"]
    ((source,),) = (registry["envFrom"],)
    assert f"secret generic {source['secretRef']['name']} " in OFFLOAD
    assert "KYB_REGISTRY_OBJECT_STORE=" in OFFLOAD


def test_variables_are_settings_of_the_agent(container: dict[str, Any]) -> None:
    values = {one["name"]: one["value"] for one in container["env"]}
    names = {name.removeprefix("KYB_AGENT_").lower() for name in values}
    assert names <= set(AgentSettings.model_fields)
    assert values["KYB_AGENT_CRIU"] == f"/{CRIU}"
    assert values["KYB_AGENT_KYB_ENTER"] == f"/{KYB_ENTER}"
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert values["KYB_AGENT_NVME_DIR"] == mounts["nvme"]
    assert Path(mounts["artifact-keys"]) == AgentSettings(node="n").artifact_keys


def test_volumes_are_mounted(patch: dict[str, Any], container: dict[str, Any]) -> None:
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in patch["volumes"]}


def test_the_agents_image_holds_what_it_takes() -> None:
    assert RECIPES["agent"].tools
    assert RECIPES["agent"].stores
