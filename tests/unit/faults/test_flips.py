"""The table of changed bits: its tests exist, and every module that writes files is known."""

from __future__ import annotations

import re

from tests.cluster.layout import REPOSITORY
from tests.faults.flips import FLIPS, NONE

PARTS = ("kybernate", "nodeagent", "registry", "deviceplugin", "proxy", "sidecar", "extender")
EQUIPMENT = ("kybernate/local/simgpu/", "kybernate/gen/")
WRITES = re.compile(
    r"\.write_text\(|\.write_bytes\(|os\.fsync\(|\.rename\(|\b(?:part|beside|new|temporary)\.replace\("
)


def test_whoever_writes_a_file_says_what_becomes_of_a_changed_bit():
    writers = {
        str(path.relative_to(REPOSITORY))
        for part in PARTS
        for path in (REPOSITORY / part).rglob("*.py")
        if WRITES.search(path.read_text())
    }
    writers = {name for name in writers if not name.startswith(EQUIPMENT)}
    told = {name for row in FLIPS for name in row.writers} | set(NONE)
    assert writers - told == set(), "add what they write to tests/faults/flips.py"
    assert [name for name in told if not (REPOSITORY / name).exists()] == []
