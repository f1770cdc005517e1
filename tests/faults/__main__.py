"""`python -m tests.faults`: write the tables into docs/reference/failure-recovery.md; with --rows,
print the rows' tests that lie elsewhere, one a line, as pytest takes them from a file."""

from __future__ import annotations

import sys

from tests.faults.below import elsewhere
from tests.faults.document import DOCUMENT, update

if __name__ == "__main__":
    if sys.argv[1:] == ["--rows"]:
        print(*elsewhere(), sep="\n")
    else:
        DOCUMENT.write_text(update(DOCUMENT.read_text()))
