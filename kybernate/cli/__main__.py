"""`python -m kybernate.cli`: the same as the console script."""

from __future__ import annotations

from kybernate.cli import begin

if __name__ == "__main__":
    begin()
