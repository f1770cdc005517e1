"""The tables of faults: every row has a test of its own, which exists."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from tests.cluster.layout import REPOSITORY
from tests.faults.below import BREAKAGES
from tests.faults.document import ROWS


def test_every_row_names_exactly_one_test_of_its_own():
    named = [row.test for rows in ROWS.values() for row in rows]
    assert [test for test, count in Counter(named).items() if count > 1] == []
    files = sorted({test.partition("::")[0] for test in named})
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", *files]
    listed = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    found = Counter(listed.stdout.splitlines())
    found.update({test.partition("[")[0] for test in found if "[" in test})
    assert [test for test in named if found[test] != 1] == []


def test_every_part_is_killed_and_every_place_fails():
    said = " ".join(row.fault for row in BREAKAGES)
    for word in (
        *("agent", "CRIU", "kyb-init", "helper", "seals", "packs", "fetches"),
        *(
            "full",
            "power",
            "away",
            "slow",
            "half",
            "lists",
            "chunk",
            "unsigned",
            "driver",
            "memory",
        ),
    ):
        assert word in said
