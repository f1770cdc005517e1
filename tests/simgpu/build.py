"""Compile the simulated driver."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from kybernate.errors import ConfigError

SOURCES = Path(__file__).resolve().parents[2] / "native" / "simgpu"
_DEADLINE = 120.0


def build(out_dir: Path) -> Path:
    """Compile libraries and tool into `out_dir` and return it; only what changed is compiled.

    Takes a few seconds. Raises ConfigError when gcc or make is missing or a source doesn't compile.
    """
    missing = [tool for tool in ("gcc", "make") if shutil.which(tool) is None]
    if missing:
        raise ConfigError("PATH", f"install {' and '.join(missing)} to build the simulated driver")
    out_dir.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["make", "-s", "-C", str(SOURCES), f"OUT={out_dir.resolve()}"],
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=False,
    )
    if done.returncode != 0:
        raise ConfigError("native/simgpu", f"does not compile:\n{done.stderr.strip()}")
    return out_dir
