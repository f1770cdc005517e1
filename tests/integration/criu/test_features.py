"""CRIU's knowledge of the kernel comes from the node, not from the first container."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu import Criu, features
from kybernate.adapters.kernel.freezer import CgroupFreezer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.node.containers import Node
    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration


def test_a_container_without_any_network_can_be_the_first(
    seat: Callable[..., Seat], node: Node
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as cache:
        tools = replace(node.tools, cache=Path(cache))
        one = seat("sleep", "1000")
        one.criu = Criu(tools, CgroupFreezer(), node.work / "criu")
        known = Path(cache, features.FILE)
        assert known.stat().st_size
        number = known.stat().st_ino
        target = ["nsenter", "--net", "--target", str(one.container.init)]
        subprocess.run([*target, "ip", "link", "set", "lo", "down"], check=True, timeout=10)
        one.freeze()
        one.dump()
        assert known.stat().st_ino == number
