"""What every program needs: root, CRIU, kyb-enter, Go, and the sources built once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from images import criu
from kybernate.errors import KybernateError
from kybernate.settings.agent import AgentSettings
from tests.cluster.layout import REPOSITORY
from tests.strangers import layers
from tests.strangers.rig import Stand, built

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.strangers.programs import Stranger

TOOLS = ("ip", "unshare", "mount", "pivot_root", "go")
ENTER = REPOSITORY / "build" / "kyb-enter"


@pytest.fixture(scope="session")
def app() -> Iterator[Path]:
    """A folder with all sources, which anybody may read."""
    with tempfile.TemporaryDirectory(prefix="kys", dir="/var/tmp") as folder:
        built(Path(folder))
        yield Path(folder)


@pytest.fixture
def stand(app: Path) -> Iterator[Callable[[Stranger], Stand]]:
    """A pod with this program and an agent above it."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing or not ENTER.exists():
        pytest.skip(f"needs root, build/kyb-enter and {', '.join(missing or TOOLS)}")
    stands: list[Stand] = []
    # Short, for the name of a socket; on a disk, for an overlay.
    with tempfile.TemporaryDirectory(prefix="kyt", dir="/var/tmp") as folder:
        work = Path(folder)
        work.chmod(0o755)

        def make(stranger: Stranger) -> Stand:
            stands.append(Stand(work, _settings(work), stranger, app))
            return stands[-1]

        yield make
        for one in stands:
            one.pod.close()
            print("it said:", *one.pod.lines()[-20:], sep="\n")


def _settings(work: Path) -> AgentSettings:
    try:
        found = criu.for_this_machine(print)
    except KybernateError as error:
        pytest.skip(f"needs CRIU: {error}")
    words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--dir"]
    subprocess.run([*words, str(work / "keys")], check=True, cwd=REPOSITORY, timeout=60)
    (work / "objects").mkdir()
    given = {
        "node": "n1",
        "run_dir": work / "run",
        "state_dir": work / "state",
        "criu": found,
        "kyb_enter": ENTER,
        "artifact_keys": work / "keys",
        "object_store": str(work / "objects"),
        "tier_residency_s": 0.0,
    }
    return AgentSettings.model_validate(given)


@pytest.fixture
def fetched() -> Callable[[Stranger], None]:
    """Skips where the registry can't be reached."""

    def fetch(stranger: Stranger) -> None:
        try:
            layers.fetch(stranger, print)
        except KybernateError as error:
            pytest.skip(f"needs the registries: {error}")

    return fetch
