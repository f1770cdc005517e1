"""The component that brings kyb-runtime to the nodes: in step with the image and the page."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.recipes import KYB_RUNTIME

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "config" / "runtime"
PAGE = (REPOSITORY / "docs" / "how-to/install/runtime-wrapper.md").read_text()
TARGET = "/opt/kybernate"


@pytest.fixture
def spec() -> dict[str, Any]:
    patch = yaml.safe_load((FOLDER / "agent.yaml").read_text())
    found: dict[str, Any] = patch["spec"]["template"]["spec"]
    return found


@pytest.fixture
def init(spec: dict[str, Any]) -> dict[str, Any]:
    (found,) = spec["initContainers"]
    return dict(found)


def install(init: dict[str, Any], image: Path, node: Path) -> None:
    """The init container's program, on folders of ours."""
    code = init["command"][2].replace(f"/{KYB_RUNTIME}", str(image / KYB_RUNTIME))
    code = code.replace(f"{TARGET}/", f"{node}/")
    runc = {one["name"]: one["value"] for one in init["env"]}
    subprocess.run([sys.executable, "-c", code], env=runc, check=True, timeout=60)


def test_it_puts_the_images_program_onto_the_node(init: dict[str, Any], tmp_path: Path) -> None:
    image, node = tmp_path / "image", tmp_path / "node"
    (image / KYB_RUNTIME).parent.mkdir(parents=True)
    node.mkdir()
    for text in ("first", "second"):
        (image / KYB_RUNTIME).write_text(text)
        (image / KYB_RUNTIME).chmod(0o755)
        install(init, image, node)
        assert (node / "kyb-runtime").read_text() == text
        assert (node / "kyb-runtime").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in node.iterdir()) == ["kyb-runtime", "kyb-runtime.real"]
    assert (node / "kyb-runtime.real").readlink() == Path("/usr/bin/runc")


def test_an_administrators_link_to_runc_stays(init: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / KYB_RUNTIME).parent.mkdir(parents=True)
    (tmp_path / KYB_RUNTIME).touch()
    (tmp_path / "kyb-runtime.real").symlink_to("/elsewhere/runc")
    install(init, tmp_path, tmp_path)
    assert (tmp_path / "kyb-runtime.real").readlink() == Path("/elsewhere/runc")


def test_it_writes_to_one_folder_and_has_no_right(
    spec: dict[str, Any], init: dict[str, Any]
) -> None:
    (volume,) = spec["volumes"]
    assert volume["hostPath"]["path"] == TARGET
    assert [one["mountPath"] for one in init["volumeMounts"]] == [TARGET]
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert f"`{TARGET}/kyb-runtime`" in PAGE


def test_the_runtimes_are_told_of_that_program() -> None:
    plugins = tomllib.loads((FOLDER / "containerd.toml").read_text())["plugins"]
    runc = plugins["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["runc"]
    assert runc["options"]["BinaryName"] == f"{TARGET}/kyb-runtime"
    crio = tomllib.loads((FOLDER / "crio.conf").read_text())["crio"]["runtime"]
    assert crio["runtimes"]["runc"]["runtime_path"] == f"{TARGET}/kyb-runtime"
