"""`make check` tells all that is stale at once, and `make generated` makes all of it."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from tests.cluster.layout import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = REPOSITORY / "scripts" / "check-generated.sh"
PYTHON = """#!/bin/sh
# In place of each generator: it makes one file.
case $2 in
  grpc_tools.protoc)
    to=${6#--python_out=}
    mkdir -p "$to/kybernate/gen"
    echo new >"$to/kybernate/gen/a_pb2.py" ;;
  kybernate.api.crds) echo new >"$3/seat.yaml" ;;
  tests.unit.docs.reference.generated) echo new >"$3/metrics.md" ;;
  images.chart)
    mkdir -p "$3"
    echo new >"$3/values.yaml" ;;
  bench.page | tests.demo.top) echo new >"$3" ;;
  *) echo new ;;
esac
"""
MADE = (
    "kybernate/gen/a_pb2.py",
    "config/crd/seat.yaml",
    "config/models.schema.json",
    "config/chart/values.yaml",
    "docs/reference/metrics.md",
    "docs/reference/node/migration.md",
    "docs/reference/node/states.md",
    "docs/images/top.svg",
    "docs/results/benchmarks.md",
)


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    command = ["sh", str(SCRIPT), str(python)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def lay(folder: Path, text: str) -> None:
    for name in (*MADE, "docs/design/0001-a.md", "docs/design/README.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("(0001-a.md)\n" if name.endswith("README.md") else text)


def test_all_that_is_stale_is_told_and_one_command(tmp_path: Path) -> None:
    lay(tmp_path, "old\n")
    told = check(tmp_path)
    *stale, last = told.stderr.splitlines()
    assert told.returncode == 1
    assert stale == [f"{name} is stale" for name in MADE]
    assert "make generated" in last


def test_what_is_as_generated_passes(tmp_path: Path) -> None:
    lay(tmp_path, "new\n")
    told = check(tmp_path)
    assert (told.returncode, told.stderr) == (0, "")


def test_all_that_is_compared_is_made_by_one_command() -> None:
    generators = set(re.findall(r'^"\$py" -m (\S+)', SCRIPT.read_text(), re.MULTILINE))
    command = ["make", "-n", "generated"]
    made = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert len(generators) == 8
    assert generators <= set(re.findall(r" -m (\S+)", made.stdout))
