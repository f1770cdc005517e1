"""The registry's image has what it needs: Python's sqlite3, PostgreSQL's client, the commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from images.build import layers
from images.cache import silent
from images.recipes import NOBODY, RECIPES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

CHROOT = shutil.which("chroot") or "/usr/sbin/chroot"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the root folder")
def test_it_runs_in_its_own_root(tmp_path: Path) -> None:
    recipe, root = RECIPES["registry"], tmp_path / "root"
    for layer in layers(recipe, silent):
        with tarfile.open(layer.path) as tar:
            tar.extractall(root, filter="fully_trusted")  # noqa: S202 - our own layer
    given = dict(one.split("=", 1) for one in recipe.env)
    given["KYB_REGISTRY_DATABASE"] = "sqlite:////tmp/registry.db"
    for path in (root, tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o011)

    def run(*arguments: str) -> str:
        argv = [CHROOT, f"--userspec={NOBODY}", str(root), *recipe.entrypoint[:1], *arguments]
        done = subprocess.run(
            argv, env=given, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "0 pods" in run("-m", "registry", "settle", "--why", "new")
    assert "implementation" in run(
        "-c",
        "import psycopg, registry.service, kybernate.checkpoint.catalogue;"
        "print('implementation', psycopg.pq.__impl__)",
    )
