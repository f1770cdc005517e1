"""`python -m tests.faults`: write the tables into docs/failure-recovery.md."""

from __future__ import annotations

from tests.faults.document import DOCUMENT, update

if __name__ == "__main__":
    DOCUMENT.write_text(update(DOCUMENT.read_text()))
