"""The failure matrix: document, data and tests agree."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.cluster.layout import REPOSITORY
from tests.faults.document import DOCUMENT, update
from tests.faults.matrix import COLUMNS, MATRIX, TEST_FILE, cells
from tests.faults.strikes import STRIKES

ROWS = [
    *("agent", "helper", "plugin", "kyb-init", "sidecar", "workload", "containerd", "kubelet"),
    *("controller", "api-server", "gpu", "node-reboot", "driver-reload", "disk-full", "clock-jump"),
]


def test_there_are_seventy_five_cells_and_every_row_has_its_fault():
    assert [row.name for row in MATRIX] == ROWS
    assert COLUMNS == ("waiting", "active", "parking", "parked", "waking")
    assert len(cells()) == len({cell.id for cell in cells()}) == 75
    assert set(STRIKES) == set(ROWS)
    assert all(cell.sees.sentence.endswith(".") for cell in cells())


def test_the_document_is_what_the_matrix_renders():
    text = DOCUMENT.read_text()
    assert text == update(text), "run `python -m tests.faults`"


def test_every_cell_of_the_document_names_a_test_that_exists():
    named = re.findall(r"\(`([a-z-]+)`\)$", DOCUMENT.read_text(), re.MULTILINE)
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", TEST_FILE]
    listed = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    found = re.findall(rf"^{re.escape(TEST_FILE)}::test_cell\[(.+)\]$", listed.stdout, re.MULTILINE)
    assert named == found
    assert len(named) == 75
