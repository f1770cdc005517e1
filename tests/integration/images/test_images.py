"""Images as they are built here: the same bytes each time, and nothing in them but Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from images.build import build
from images.cache import REPOSITORY, cache_root, silent
from images.debs import unpack
from images.recipes import NOBODY, RECIPES
from images.userland import PACKAGES, PYTHON, STDLIB

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

MIB = 1 << 20
PYTHON_3_11 = b"\xa7\r\r\n"
"""How a module that this Python compiled begins, whatever Python this host has."""

UNCHECKED_HASH = 1
"""The flags of a compiled module that holds neither a time nor a hash to check."""


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (built,) = build(["sidecar"], silent, tmp_path_factory.mktemp("out"))
    return built.archive


def read(archive: tarfile.TarFile, digest: str) -> bytes:
    file = archive.extractfile("blobs/" + digest.replace(":", "/"))
    assert file is not None
    return file.read()


def opened(path: Path) -> tuple[dict[str, Any], list[tarfile.TarInfo], dict[str, bytes]]:
    """The image's configuration, the entries of all its layers, and its files' contents."""
    entries, contents = [], {}
    with tarfile.open(path) as archive:
        index = archive.extractfile("index.json")
        assert index is not None
        manifest = json.loads(read(archive, json.load(index)["manifests"][0]["digest"]))
        config = json.loads(read(archive, manifest["config"]["digest"]))["config"]
        for number, layer in enumerate(manifest["layers"]):
            part = path.with_name(f"layer-{number}.tar")
            part.write_bytes(read(archive, layer["digest"]))
            with tarfile.open(part) as tar:
                for entry in tar:
                    entries.append(entry)
                    file = tar.extractfile(entry) if entry.isfile() else None
                    contents[entry.name] = file.read() if file else b""
    return config, entries, contents


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path, sidecar: Path) -> None:
    unpack(PACKAGES, silent)
    cache, out = tmp_path / "cache", tmp_path / "out"
    cache.mkdir()
    (cache / "debs").symlink_to(cache_root() / "debs")
    env = {**os.environ, "KYB_CACHE": str(cache), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    argv = [sys.executable, "-m", "images", "build", "sidecar", "--out", str(out)]
    subprocess.run(argv, cwd=REPOSITORY, env=env, check=True, timeout=200, capture_output=True)
    assert (out / sidecar.name).read_bytes() == sidecar.read_bytes()


def test_entries_have_no_owner_and_no_time_and_stand_in_order(sidecar: Path) -> None:
    _, entries, contents = opened(sidecar)
    assert {(one.uid, one.gid, one.mtime, one.uname) for one in entries} == {(0, 0, 0, "")}
    compiled = [data for name, data in contents.items() if name.endswith(".pyc")]
    assert len(compiled) > 200
    assert {int.from_bytes(data[4:8], "little") for data in compiled} == {UNCHECKED_HASH}
    assert {data[:4] for data in compiled} == {PYTHON_3_11}


def test_the_sidecar_is_python_and_its_standard_library_and_no_more(sidecar: Path) -> None:
    config, entries, contents = opened(sidecar)
    assert sum(one.size for one in entries) < 32 * MIB
    assert config["User"] == NOBODY
    assert config["Entrypoint"] == list(RECIPES["sidecar"].entrypoint)
    assert "libc6=2.36" in config["Labels"]["ai.kyb.debian"]
    programs = {one.name for one in entries if one.isfile() and one.mode & 0o111}
    assert {name for name in programs if "/bin/" in f"/{name}"} == {PYTHON}
    assert not any("dist-packages" in name for name in contents)
    assert f"{STDLIB}/ssl.pyc" in contents
    assert not [name for name in contents if name.startswith(STDLIB) and name.endswith(".py")]


def test_no_entry_can_be_written_by_others_but_tmp(sidecar: Path) -> None:
    _, entries, _ = opened(sidecar)
    loose = {one.name for one in entries if one.mode & 0o022 and not one.issym()}
    assert loose == {"tmp"}
    assert not [one.name for one in entries if one.mode & 0o6000]
