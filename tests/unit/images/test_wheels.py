"""Which locked packages a part of the product gets, and that they suffice."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions

from images import wheels
from images.cache import REPOSITORY

REFUSE = """
import pkgutil, sys, importlib
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import kybernate.local
for module in pkgutil.walk_packages(kybernate.local.__path__, "kybernate.local."):
    if module.name != "kybernate.local.nvme":
        importlib.import_module(module.name)
"""


def names(lines: str) -> set[str]:
    return set(re.findall(r"^([A-Za-z0-9._-]+)==", lines, re.MULTILINE))


def test_an_extra_alone_has_all_that_it_wants() -> None:
    """Whatever other layers have: aiohttp's idna is the Kubernetes client's, too."""
    found = names(wheels.alone("local"))
    assert {"aiohttp", "idna", "yarl", "cuda-bindings", "pydantic", "click"} <= found
    assert not {"kubernetes", "playwright", "obstore"} & found


def test_local_mode_needs_no_more_than_its_extra() -> None:
    """That is what `pip install kybernate` brings. Where the extra `checkpoint` is missing, models
    stay in RAM, and `rights.stays_in_ram` says so."""
    brought = {re.sub(r"[-_.]+", "-", name).lower() for name in names(wheels.alone("local"))}
    others = {
        module
        for module, owners in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", one).lower() for one in owners} & {*brought, "kybernate"}
    }
    assert "kubernetes" in others
    done = subprocess.run(
        [sys.executable, "-c", REFUSE.format(refused=sorted(others))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1500:]
