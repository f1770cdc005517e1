"""What the house keeps to that no linter knows: rooms that one can overlook."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import PurePosixPath

from nodeagent.seat.record import Seat
from tests.cluster.layout import REPOSITORY

MOST_FILES, MOST_PARTS = 15, 12


def test_no_folder_of_the_product_has_more_files_than_one_can_overlook() -> None:
    parts = [one.parent.name for one in REPOSITORY.glob("*/__init__.py")]
    product = sorted({*parts} - {"tests", "bench"})
    listed = subprocess.run(
        ["git", "ls-files", *product], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    files = [PurePosixPath(one) for one in listed.stdout.splitlines() if one.endswith(".py")]
    counts = Counter(str(one.parent) for one in files if one.name != "__init__.py")
    assert len(counts) > 50
    assert {folder: number for folder, number in counts.items() if number > MOST_FILES} == {}


def test_a_seat_has_few_parts_of_its_own() -> None:
    assert len(Seat.__slots__) <= MOST_PARTS
