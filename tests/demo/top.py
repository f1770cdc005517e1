"""`python -m tests.demo.top FILE`: draw what `kubectl kyb top` shows of two example nodes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import yaml

from kybernate.cli.cluster import lines
from kybernate.cli.cluster.seats import screen

from .screen import picture

REPOSITORY = Path(__file__).parents[2]
DRAWN = REPOSITORY / "docs/images/top.svg"
NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
_NODES = Path(__file__).parent / "data/gpunodes.yaml"
_WIDTH = 84


def drawn() -> str:
    """The picture. Raises ValueError if an example is no GPUNode."""
    nodes, problems = lines.statuses(yaml.safe_load(_NODES.read_text())["items"])
    if problems:
        raise ValueError("; ".join(problems))
    return picture(screen(nodes, "table", NOW), _WIDTH)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn())
